"""The typed config: every key, its type and its default; ``schema.yaml`` has its meaning.

The classes are pydantic dataclasses, which validate their values. :mod:`utaca.settings.validation` says in sentences
what is wrong with a config; ``config/README.md`` and ``config/schema.json`` are generated from the classes and the
meanings (``docs/config_page.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from utaca.layout import Layout
from utaca.settings.triggers import TriggerText
from utaca.settings.validation import Distinct, Number, Plain, Whole, as_number, keys

Site = Literal["attention", "mlp", "residual"]
SITES = get_args(Site)
"""Where in the last layer an embedding is read: output of the attention sub-layer, of the MLP, residual stream."""

SIGNALS = tuple(sorted(path.stem for path in (Path(__file__).parents[1] / "detection" / "signals").glob("[!_]*.py")))
"""Signals of a token, one number each: the files of :mod:`utaca.detection.signals`."""
RECORDED = ("margin", "retrieval")
"""Signals that trajectories record in any case, so that a run may later have a detector that reads them."""

FIXED, ADAPTIVE = "infllm", "utaca"
"""Methods that decode from block memory, with budgets in blocks: a fixed budget, and one with an update policy."""
CONTEXT_METHODS = tuple(
    sorted({path.stem for path in (Path(__file__).parents[1] / "methods").glob("[!_]*.py")} - {FIXED, ADAPTIVE})
)
"""The other context-management methods: the files of :mod:`utaca.methods`."""
AGREEMENT = "agreement"
NO_DETECTOR = "no_detector"
FAMILIES = {
    "detector": ADAPTIVE,
    "margin": "margin",
    "agreement": AGREEMENT,
    "every": NO_DETECTOR,
    "never": NO_DETECTOR,
}
"""What tables call adaptive points, by the kind of their trigger."""
EXPANDED = tuple(dict.fromkeys(FAMILIES.values()))
"""Families of points whose budgets follow an update policy."""
BLOCK_METHODS = (FIXED, *EXPANDED)
"""Families of points that decode from block memory, if they have no base method."""


OWN = -1
"""Value of ``prefill_budget`` and ``question_budget``: document or question is read under the budget of its answer."""

TOKENS = "tokens"
"""Value of ``representatives``: every token of a block represents the block."""

CLIPPED, PACKED = "clipped", "packed"
"""Values of ``far_positions``: far keys all at one distance, or side by side before the window."""

VALIDATION = "validation"
TEST = "test"
SWEEP = "sweep"
ABLATION = "ablation"
METHODS = "methods"
SECTIONS = {VALIDATION: VALIDATION, TEST: TEST, SWEEP: TEST, ABLATION: TEST, METHODS: TEST}
"""Sections of ``decode``, each with the split of its documents; any other section is a set of ``tasks``."""
ALL = 0
"""Value of a point's ``seeds``: every seed."""

NOT_RUN = "not run: "
"""Beginning of an answer's ``finish`` if its method could not run; a sentence with the reason follows."""

CLASSIFIER = "results/training/llmlingua_classifier"
"""Path of the token classifier for LLMLingua-2 that ``training/Snakefile`` trains, outside of any run."""


Seeds = Annotated[
    Whole,
    BeforeValidator(lambda value: ALL if value == "all" else value),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": "all"}]}),
]
OptionalText = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
"""A text that may be empty; YAML's null becomes an empty text."""


def setting(
    default: Any,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    transport: bool = False,
    hidden: bool = False,
    listed: Sequence[str] = (),
) -> Any:
    """A config key, whose meaning is in ``schema.yaml``, with the names ``listed`` after it; bounds are inclusive.

    The default is a value, ``...`` for a key that must be set, or a class of keys with their defaults. A ``transport``
    key (an address, a limit) never changes a result and so triggers no rerun. No message shows the value of a
    ``hidden`` key.
    """
    about = {"ge": minimum, "le": maximum, "json_schema_extra": {"hidden": hidden}}
    # Stages that resume if the repr of their settings is unchanged must also resume if a transport key changes.
    about |= {"exclude": transport, "repr": not transport}
    if isinstance(default, type):
        about |= {"default_factory": dict, "validate_default": True}
    elif isinstance(default, list | dict):
        about |= {"default_factory": default.copy}
    else:
        about |= {"default": default, "validate_default": True}
    return lambda meaning: Field(description=": ".join([meaning, *[", ".join(listed)] * bool(listed)]), **about)


Evidence = Literal["complete", "partial", "missing"]
EVIDENCE = get_args(Evidence)
"""How much of the evidence for its question a document, or a benchmark's prompt, holds: all, half, nothing."""


@keys
class PathSettings:
    """A trajectory whose budget sinks from K_max, and rises to it again at regular steps, as in adaptive decoding."""

    budget: Whole = setting(..., minimum=2)
    policy: str = setting(...)
    every: Whole = setting(0, minimum=0)

    def __str__(self) -> str:
        return f"K_max={self.budget}, {self.policy.capitalize()}" + (f", every {self.every}" if self.every else "")


@keys
class SplitSettings:
    """How much of one split is made."""

    biographies: Whole = setting(..., minimum=1)
    tokens: list[Whole] = setting(...)
    mean_tokens: Whole = setting(0, minimum=0)
    shards: Whole = setting(1, minimum=1)
    budgets: list[Whole] = setting(...)
    paths: list[PathSettings] = setting([])
    evidence: Annotated[list[Evidence], Distinct] = setting(["complete"])
    people: OptionalText = setting("")

    @property
    def trajectories(self) -> int:
        """Number of answers that are decoded: one per document, condition of its evidence, and budget or path."""
        return self.biographies * len(self.evidence) * (len(self.budgets) + len(self.paths))


@keys
class ScaleSettings:
    """Sizes of a run."""

    name: str = setting(...)
    train: SplitSettings = setting(SplitSettings)
    validation: SplitSettings = setting(SplitSettings)
    test: SplitSettings = setting(SplitSettings)
    detector_steps: Whole = setting(..., minimum=1)
    detector_seeds: Whole = setting(8, minimum=1)
    replays: Whole = setting(0, minimum=0)
    timed: Whole = setting(0, minimum=0)
    bootstrap: Whole = setting(2000, minimum=100)


@keys
class MemorySettings:
    """InfLLM's block memory."""

    block_size: Whole = setting(16, minimum=1)
    n_init: Whole = setting(128, minimum=0)
    n_local: Whole = setting(4096, minimum=1)
    representatives: Literal["attention_mass", "tokens"] = setting("attention_mass")
    far_positions: Literal["clipped", "packed"] = setting(CLIPPED)
    n_representatives: Whole = setting(4, minimum=1)
    prefill_chunk: Whole = setting(2048, minimum=1)
    prefill_budget: Whole = setting(16, minimum=OWN)
    question_budget: Whole = setting(0, minimum=OWN)
    question_chunk: Whole = setting(0, minimum=0)
    storage: Literal["device", "host"] = setting("device", transport=True)

    @property
    def layout(self) -> Layout:
        """How a text is parted into initial tokens, blocks and local window."""
        return Layout(self.n_init, self.n_local, self.block_size)


@keys
class BarSettings:
    """What a score of a set of `tasks` is to reach or, with ``most``, not to exceed."""

    set: str = setting(...)
    limit: Number = setting(..., minimum=-100.0, maximum=100.0)
    most: bool = setting(False)
    point: str = setting("full")
    minus: OptionalText = setting("")

    def __str__(self) -> str:
        return f"{'<=' if self.most else '>='} {self.limit:g}"


@keys
class ReaderSettings:
    """The language model that answers."""

    name: str = setting(...)
    path: str = setting(...)
    revision: OptionalText = setting("")
    dtype: Literal["auto", "float32", "bfloat16"] = setting("auto")
    device: Literal["auto", "cpu", "cuda"] = setting("auto")
    weights: Literal["auto", "packed", "plain"] = setting("auto")
    prompt: Literal["compact", "instruct"] = setting("compact")
    max_new_tokens: Whole = setting(64, minimum=1)
    budget: Whole = setting(32, minimum=1, transport=True)
    margin: Number = setting(1.0, minimum=0.0, transport=True)
    memory: MemorySettings = setting(MemorySettings)
    positions: Whole = setting(0, minimum=0)
    graphs: bool = setting(False)
    methods: dict[str, dict[str, Plain]] = setting({})
    bars: list[BarSettings] = setting([], transport=True)


@keys
class CorpusSettings:
    """Where padding prose comes from."""

    name: str = setting(...)
    source: Literal["embedded", "folder", "wikipedia"] = setting(...)
    path: OptionalText = setting("")


@keys
class EndpointSettings:
    """An OpenAI-compatible endpoint in one of the roles writer, labeller, judge."""

    name: str = setting(...)
    kind: Literal["reference", "remote"] = setting("remote")
    base_url: OptionalText = setting("", transport=True)
    model: str = setting(...)
    api_key_env: OptionalText = setting("", transport=True, hidden=True)
    temperature: Number = setting(0.0, minimum=0.0, maximum=2.0)
    top_p: Number = setting(1.0, minimum=0.0, maximum=1.0)
    seed: Whole = setting(0)
    max_tokens: Whole = setting(2048, minimum=1)
    reasoning_effort: Literal["", "low", "medium", "high"] = setting("")
    concurrency: Whole = setting(64, minimum=1, transport=True)
    timeout_s: Number = setting(120.0, minimum=0.1, transport=True)
    backoff_s: Number = setting(0.5, minimum=0.001, transport=True)
    patience_s: Number = setting(300.0, minimum=0.0, transport=True)
    prompt_price: Number = setting(0.0, minimum=0.0, transport=True)
    completion_price: Number = setting(0.0, minimum=0.0, transport=True)
    attempts: Whole = setting(3, minimum=1)
    max_failed: Number = setting(0.05, minimum=0.0, maximum=1.0)

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The cost of prompt and completion tokens, in USD."""
        return (prompt_tokens * self.prompt_price + completion_tokens * self.completion_price) / 1e6


POLICY = r"(set|sub)\.([1-9][0-9]{0,8})"
"""Regular expression for an update policy in the config; Python refuses to read a number of thousands of digits."""


@keys
class TrajectorySettings:
    """What is recorded of the compact-budget answers that detectors learn from and are measured on."""

    sites: Annotated[list[Site], Distinct] = setting(["attention"])
    expanded: Whole = setting(0, minimum=0)


@keys
class DetectorSettings:
    """A variant of the uncertainty detector and its training (paper, appendix B)."""

    kind: Literal["softmax", "evidential"] = setting("softmax")
    classes: Annotated[Literal[2, 3], BeforeValidator(as_number)] = setting(3)
    label: Literal["judged", "needed"] = setting("judged")
    signals: Annotated[list[str], Distinct] = setting(["margin"], listed=SIGNALS)
    embedding: bool = setting(True)
    site: Site = setting("attention")
    lstm: bool = setting(True)
    chain: Whole = setting(1, minimum=1)
    decision: Literal["argmax", "youden"] = setting("argmax")
    start: OptionalText = setting("")
    taken: OptionalText = setting("")
    sets: list[str] = setting([])
    mixed: bool = setting(False)

    def differing(self, other: DetectorSettings) -> str:
        """The first key, alphabetically, that makes the weights of two variants incompatible; "" if none does."""
        keys = ("classes", "embedding", "kind", "lstm", "signals", "site")
        return next((key for key in keys if getattr(self, key) != getattr(other, key)), "")


@keys
class PointSettings:
    """An operating point."""

    method: str = setting(...)
    budget: Whole = setting(0, minimum=0)
    policy: OptionalText = setting("")
    trigger: TriggerText = setting("")
    base: OptionalText = setting("")
    seeds: Seeds = setting(1, minimum=0)

    @property
    def adaptive(self) -> bool:
        """Whether the point has an update policy, and a trigger that expands its budget."""
        return self.method == ADAPTIVE

    @property
    def detected(self) -> bool:
        """Whether a detector expands the point's budget."""
        return self.adaptive and self.trigger.kind == "detector"

    @property
    def detector(self) -> str:
        """The detector variant that the point's trigger names; "" if the trigger names none."""
        return str(self.trigger) if self.detected else ""

    @property
    def family(self) -> str:
        """What tables call the point: its method or, of an adaptive one, by what expands its budget."""
        return FAMILIES[self.trigger.kind] if self.adaptive else self.method

    @property
    def in_blocks(self) -> bool:
        """Whether the point is decoded from block memory."""
        return self.method in (FIXED, ADAPTIVE) and not self.base

    @property
    def together(self) -> bool:
        """Whether the point's answers may share passes with other answers (:attr:`GenerationSettings.together`)."""
        return self.in_blocks or self.method == "full"


@keys
class OperatingPoint(PointSettings):
    """An operating point as it is decoded: by its name in ``points``, and under one seed of its detector."""

    name: str = setting("")
    seed: Whole = setting(0, minimum=0)

    @property
    def label(self) -> str:
        """The point's name in paths and files, with its seed if it has several seeds, as in ``ours-seed3``."""
        return f"{self.name}-seed{self.seed}" if self.detected and self.seeds != 1 else self.name


@keys
class TaskSetSettings:
    """Rows of a task of a benchmark, as they are asked."""

    task: str = setting(...)
    files: dict[str, str] = setting({})
    pool: list[str] = setting([])
    articles: list[str] = setting([])
    length: Whole = setting(0, minimum=0)
    examples: Whole = setting(0, minimum=0)
    mended: bool = setting(False)
    evidence: Annotated[list[Evidence], Distinct] = setting(["complete"])
    asked: Whole = setting(1, minimum=1)
    block_size: Whole = setting(0, minimum=0)
    budgets: list[Whole] = setting([])


@keys
class TasksSettings:
    """Benchmarks of other domains (docs/benchmarks.md)."""

    path: str = setting("data/benchmarks")
    sets: dict[str, TaskSetSettings] = setting({})


@keys
class GenerationSettings:
    """How answers are decoded."""

    together: bool = setting(True)


class Comparison(NamedTuple):
    """A planned comparison of a point with InfLLM at equal tokens or, with ``over``, of two points' gains on InfLLM."""

    label: str
    over: str = ""


@keys
class PlanSettings:
    """Comparisons that were chosen before a test document was read (docs/plan.md)."""

    primary: OptionalText = setting("")
    secondary: list[str] = setting([])

    @property
    def comparisons(self) -> list[Comparison]:
        """All planned comparisons, the primary one first."""
        return [Comparison(*one.split(" over ", 1)) for one in filter(None, [self.primary, *self.secondary])]


@keys
class Config:
    """The whole config."""

    run: OptionalText = setting("")
    seed: Whole = setting(0)
    scale: ScaleSettings = setting(ScaleSettings)
    reader: ReaderSettings = setting(ReaderSettings)
    corpus: CorpusSettings = setting(CorpusSettings)
    writer: EndpointSettings = setting(EndpointSettings)
    labeller: EndpointSettings = setting(EndpointSettings)
    judge: EndpointSettings = setting(EndpointSettings)
    trajectories: TrajectorySettings = setting(TrajectorySettings)
    detectors: dict[str, DetectorSettings] = setting({})
    detector: str = setting("utaca")
    methods: dict[str, dict[str, Plain]] = setting({})
    points: dict[str, PointSettings] = setting({})
    decode: dict[str, list[str]] = setting({})
    tasks: TasksSettings = setting(TasksSettings)
    generation: GenerationSettings = setting(GenerationSettings)
    plan: PlanSettings = setting(PlanSettings)
    answers: str = setting("results/answers.sqlite", transport=True)

    def settings_of(self, method: str) -> dict[str, Any]:
        """The settings that override the defaults of a method's class: the reader's, overridden by the run's."""
        return {**self.reader.methods.get(method, {}), **self.methods.get(method, {})}

    def decoded(self, section: str) -> list[OperatingPoint]:
        """The points of a section of ``decode``, one per seed if a point has several seeds."""
        points = []
        for name in self.decode.get(section, ()):
            point = self.points[name]
            seeds = (point.seeds or self.scale.detector_seeds) if point.detected else 1
            points += [OperatingPoint(**vars(point), name=name, seed=seed) for seed in range(seeds)]
        return points

    @property
    def recorded(self) -> list[str]:
        """The signals that trajectories record: :data:`RECORDED`, and those that detectors read."""
        named = {name for detector in self.detectors.values() for name in detector.signals}
        return sorted({*RECORDED, *named})

    @property
    def operating(self) -> dict[str, OperatingPoint]:
        """Every point that is decoded, by its label."""
        return {point.label: point for section in self.decode for point in self.decoded(section)}

    def sections(self, split: str) -> list[str]:
        """The sections of ``decode`` with questions about a split's documents."""
        return [section for section in self.decode if SECTIONS.get(section) == split]

    def shown(self, split: str, *sections: str) -> list[str]:
        """Distinct labels of a split's points in ``sections``, by default in the section with the split's name."""
        wanted = [section for section in self.sections(split) if section in (sections or (split,))]
        return list(dict.fromkeys(point.label for section in wanted for point in self.decoded(section)))

    def tried(self, split: str) -> list[str]:
        """Labels of a split's points on whose generated tokens the detectors are measured."""
        points = self.operating
        return [x for x in self.shown(split) if points[x].detected and points[x].in_blocks]

    @property
    def main_point(self) -> OperatingPoint | None:
        """The point whose single decisions are looked at; None if there is none.

        Of the test split's points with the config's detector, the one whose K_max is nearest to the 64 of most of the
        paper's analyses.
        """
        points = [self.operating[label] for label in self.tried(TEST)]
        paper = [point for point in points if (point.detector or self.detector) == self.detector and not point.seed]
        return min(paper, key=lambda point: abs(point.budget - 64), default=None)

    @property
    def timed(self) -> list[OperatingPoint]:
        """The test split's points whose answers are decoded once more by themselves, which measures them.

        None if every answer is decoded by itself anyway, or if ``scale.timed`` is 0.
        """
        wanted = self.generation.together and self.scale.timed
        return [point for point in self.decoded(TEST) if point.in_blocks] if wanted else []

    @property
    def asked(self) -> list[str]:
        """The sets of ``tasks`` whose questions at least one point answers."""
        return [name for name in self.tasks.sets if self.decode.get(name)]
