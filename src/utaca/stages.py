"""The stages of a run, in the order in which they run; without heavy imports."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A stage: its target's ``name``, what it makes, and the ``rules`` of the workflow that make it.

    ``checked`` are those of the rules that need more than files of the run: a model, memory, disk or an endpoint.
    """

    name: str
    makes: str
    rules: tuple[str, ...]
    checked: tuple[str, ...] = ()


STAGES = (
    Stage(
        "biographies",
        "people, facts and their prose",
        ("draw_biographies", "write_biographies"),
        checked=("write_biographies",),
    ),
    Stage("corpus", "the padding prose", ("corpus",), checked=("corpus",)),
    Stage("documents", "biographies padded to the scale's lengths", ("fill", "pad"), checked=("fill", "pad")),
    Stage(
        "trajectories",
        "answers under small budgets, each token with its signals",
        ("decode_trajectories",),
        checked=("decode_trajectories",),
    ),
    Stage(
        "labels",
        "labels of these tokens: correct, hallucinated or unknown",
        ("label", "correct_labels", "label_traces", "label_tasks", "review_labels"),
        checked=("label", "label_traces", "label_tasks"),
    ),
    Stage("detectors", "every variant of the detector, all seeds", ("train_detector",), checked=("train_detector",)),
    Stage("detections", "the detectors' verdicts on the test trajectories", ("detect",), checked=("detect",)),
    Stage(
        "generations",
        "answers at the operating points",
        ("generate", "replay", "time_answers"),
        checked=("generate", "replay", "time_answers"),
    ),
    Stage(
        "scores",
        "the judge's scores of these answers",
        ("score", "score_replays", "review_scores"),
        checked=("score", "score_replays"),
    ),
    Stage(
        "tasks",
        "benchmarks of other domains, if points answer them",
        ("task_examples", "task_trajectories", "task_answers", "task_scores"),
    ),
    Stage("traces", "answers token by token, as pages", ("view_traces",)),
)
