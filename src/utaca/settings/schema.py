"""The typed config: every key, its type, its default and its bounds.

Standard library only, so that the core can use these classes wherever it runs. Pydantic checks a config against them
(:mod:`utaca.settings.checks`); ``config/README.md`` and ``config/schema.json`` are generated from them and from
``data/config_keys.yaml``, which says what each key means (:mod:`utaca.settings.document`).
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

MISSING = "???"

SITES = ("attention", "mlp", "residual")
"""Where in the last layer an embedding is read: output of the attention sub-layer, of the MLP, residual stream."""

SIGNALS = tuple(sorted(path.stem for path in (Path(__file__).parents[1] / "detection" / "signals").glob("[!_]*.py")))
"""Signals of a token, one number each, that trajectories record: the files of :mod:`utaca.detection.signals`."""


BLOCK_METHODS = ("infllm", "utaca", "agreement", "no_detector")
"""Methods that decode from block memory unless a point says otherwise, their budgets in blocks."""
ADAPTIVE = ("utaca", "agreement", "no_detector")
"""Those of them that follow an update policy, and that another method may be the base of."""


OWN = -1
"""As ``question_budget``: a question is read under the budget of its answer."""

TOKENS = "tokens"
"""As ``representatives``: every token of a block represents it."""
UNWEIGHTED = ("mean", TOKENS)
"""Those ``representatives`` for which it does not matter what a block's tokens were given."""

CLIPPED, PACKED = "clipped", "packed"
"""As ``far_positions``: keys at one distance, or side by side before the window."""

TASKS = "tasks"
"""As a suite's ``split``: rows of benchmarks."""

NOT_RUN = "not run: "
"""What an answer's finish begins with where its method lacks something; the sentence follows."""

CLASSIFIER = "results/training/llmlingua_classifier"
"""The token classifier for LLMLingua-2 that the project trains, apart from every run (``training/Snakefile``)."""


def setting(default: Any, **checks: Any) -> Any:
    """A config key, whose meaning is in ``data/config_keys.yaml``.

    ``checks`` may name ``minimum``, ``maximum`` (inclusive, numbers) and ``choices`` (allowed values);
    ``transport=True`` marks keys that never change a result (addresses, limits) and so trigger no rerun;
    ``hidden=True`` marks keys whose value no message may show.
    """
    # What is resumed by an object's repr goes on under another transport.
    shown = not checks.get("transport", False)
    if isinstance(default, list | dict) or hasattr(default, "__dataclass_fields__"):
        return field(default_factory=partial(deepcopy, default), metadata=checks, repr=shown)
    return field(default=default, metadata=checks, repr=shown)


EVIDENCE = ("complete", "partial", "missing")
"""How much a document, or a benchmark's prompt, holds of what answers its question: all, half of it, nothing."""


@dataclass
class SplitSize:
    """How much of one split is made."""

    biographies: int = setting(MISSING, minimum=1)
    tokens: list[int] = setting(MISSING)
    shards: int = setting(1, minimum=1)
    budgets: list[int] = setting(MISSING)
    evidence: list[str] = setting(["complete"])

    @property
    def trajectories(self) -> int:
        """How many pairs of a document and a compact budget are decoded."""
        return self.biographies * len(self.evidence) * len(self.budgets)


@dataclass
class Scale:
    """Sizes of a run."""

    name: str = setting(MISSING)
    train: SplitSize = setting(SplitSize())
    validation: SplitSize = setting(SplitSize())
    test: SplitSize = setting(SplitSize())
    detector_steps: int = setting(MISSING, minimum=1)
    detector_seeds: int = setting(8, minimum=1)
    replays: int = setting(0, minimum=0)
    bootstrap: int = setting(2000, minimum=100)


@dataclass
class Memory:
    """InfLLM's block memory."""

    block_size: int = setting(16, minimum=1)
    n_init: int = setting(128, minimum=0)
    n_local: int = setting(4096, minimum=1)
    representatives: str = setting("attention_mass", choices=["attention_mass", "mean", TOKENS])
    far_positions: str = setting(CLIPPED, choices=[CLIPPED, PACKED])
    n_representatives: int = setting(4, minimum=1)
    prefill_chunk: int = setting(2048, minimum=1)
    prefill_budget: int = setting(16, minimum=0)
    question_budget: int = setting(0, minimum=OWN)
    question_chunk: int = setting(0, minimum=0)
    storage: str = setting("device", choices=["device", "host"], transport=True)


@dataclass
class Reader:
    """The language model that answers."""

    name: str = setting(MISSING)
    path: str = setting(MISSING)
    revision: str = setting("")
    adapter: str = setting("")
    dtype: str = setting("auto", choices=["auto", "float32", "bfloat16"])
    device: str = setting("auto", choices=["auto", "cpu", "cuda"])
    prompt: str = setting("compact", choices=["compact", "instruct"])
    max_new_tokens: int = setting(64, minimum=1)
    logit_bias: dict[str, float] = setting({})
    memory: Memory = setting(Memory())
    positions: int = setting(0, minimum=0)
    methods: dict[str, dict[str, Any]] = setting({})


@dataclass
class Corpus:
    """Where padding prose comes from."""

    name: str = setting(MISSING)
    source: str = setting(MISSING, choices=["embedded", "folder", "wikipedia"])
    path: str = setting("")
    user_agent: str = setting("utaca (research pipeline)", transport=True)
    requests_per_second: float = setting(1.0, minimum=0.01, transport=True)


@dataclass
class Endpoint:
    """An OpenAI-compatible endpoint in one of the roles writer, labeller, judge."""

    name: str = setting(MISSING)
    kind: str = setting("remote", choices=["reference", "remote"])
    base_url: str = setting("", transport=True)
    model: str = setting(MISSING)
    api_key_env: str = setting("", transport=True, hidden=True)
    temperature: float = setting(0.0, minimum=0.0, maximum=2.0)
    top_p: float = setting(1.0, minimum=0.0, maximum=1.0)
    seed: int = setting(0)
    max_tokens: int = setting(2048, minimum=1)
    reasoning_effort: str = setting("", choices=["", "low", "medium", "high"])
    concurrency: int = setting(64, minimum=1, transport=True)
    timeout_s: float = setting(120.0, minimum=0.1, transport=True)
    backoff_s: float = setting(0.5, minimum=0.001, transport=True)
    patience_s: float = setting(300.0, minimum=0.0, transport=True)
    run_timeout_s: float = setting(0.0, minimum=0.0, transport=True)
    prompt_price: float = setting(0.0, minimum=0.0, transport=True)
    completion_price: float = setting(0.0, minimum=0.0, transport=True)
    attempts: int = setting(3, minimum=1)
    max_failed: float = setting(0.05, minimum=0.0, maximum=1.0)

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """What tokens cost, USD."""
        return (prompt_tokens * self.prompt_price + completion_tokens * self.completion_price) / 1e6


POLICY = r"(set|sub)\.([1-9]\d*)(\.prop)?"
"""Update policies as they are written in config: set.N or sub.N, or either with .prop."""


@dataclass
class Trajectories:
    """What is recorded of the compact-budget answers that detectors learn from and are measured on."""

    sites: list[str] = setting(["attention"])
    expanded: int = setting(0, minimum=0)


@dataclass
class Target:
    """The mean budget that a decision threshold is chosen for."""

    budget: float = setting(16.0, minimum=1.0)
    k_max: int = setting(64, minimum=1)
    policy: str = setting("sub.16")


@dataclass
class Detector:
    """A variant of the uncertainty detector and its training (paper, appendix B)."""

    kind: str = setting("softmax", choices=["softmax", "evidential"])
    classes: int = setting(3, choices=[2, 3])
    label: str = setting("judged", choices=["judged", "needed"])
    signals: list[str] = setting(["margin"])
    embedding: bool = setting(True)
    site: str = setting("attention", choices=list(SITES))
    lstm: bool = setting(True)
    chain: int = setting(1, minimum=1)
    decision: str = setting("argmax", choices=["argmax", "youden", "budget"])
    target: Target = setting(Target())
    width: int = setting(64, minimum=1)
    signal_width: int = setting(32, minimum=1)
    blocks: int = setting(3, minimum=0)
    expansion: int = setting(2, minimum=1)
    embedding_dropout: float = setting(0.5, minimum=0.0, maximum=0.99)
    dropout: float = setting(0.1, minimum=0.0, maximum=0.99)
    class_weights: list[float] = setting([1.0, 0.05, 1.0])
    learning_rate: float = setting(1e-3, minimum=1e-8)
    batch_size: int = setting(16, minimum=1)
    evaluate_every: int = setting(100, minimum=1)
    start: str = setting("")
    taken: str = setting("")
    sets: list[str] = setting([])
    mixed: bool = setting(False)

    def differing(self, other: Detector) -> str:
        """The first key, by name, in which two variants differ such that the weights of one mean nothing to the other;
        "" where there is none."""
        keys = (
            "blocks",
            "classes",
            "embedding",
            "expansion",
            "kind",
            "lstm",
            "signal_width",
            "signals",
            "site",
            "width",
        )
        return next((key for key in keys if getattr(self, key) != getattr(other, key)), "")


@dataclass
class Point:
    """One operating point of a suite."""

    method: str = setting(MISSING)
    budget: int = setting(0, minimum=0)
    policy: str = setting("")
    detector: str = setting("")
    seed: int = setting(-1, minimum=-1)
    base: str = setting("")
    every: int = setting(0, minimum=0)
    witness: int = setting(0, minimum=0)

    @property
    def in_blocks(self) -> bool:
        """Whether it is decoded from block memory."""
        return self.method in BLOCK_METHODS and not self.base

    @property
    def adaptive(self) -> bool:
        """Whether it has a policy, and something that expands its budget."""
        return self.method in ADAPTIVE

    @property
    def trigger(self) -> str:
        """What expands its budget in a detector's place, as in "every 40"; "" where the method's name says it."""
        return next((f"{name} {n}" for name, n in (("every", self.every), ("witness", self.witness)) if n), "")

    @property
    def decoder(self) -> str:
        """The method, and the one it is given to, as in ``utaca-retrieval_attention``."""
        return "-".join(filter(None, [self.method, self.base]))

    @property
    def label(self) -> str:
        """The point's name in paths and tables, as in ``infllm-K8``, ``utaca-K64-sub16-seed3`` or ``snapkv-1024``."""
        budget = f"K{self.budget}" if self.in_blocks else str(self.budget or "")
        parts = [self.decoder, budget, self.policy.replace(".", ""), self.detector or self.trigger.replace(" ", "")]
        return "-".join([*filter(None, parts), *([f"seed{self.seed}"] if self.seed >= 0 else [])])


@dataclass
class TaskSet:
    """Rows of a task of a benchmark, as they are asked."""

    task: str = setting(MISSING)
    files: dict[str, str] = setting({})
    pool: list[str] = setting([])
    sha256: dict[str, str] = setting({}, transport=True)
    articles: list[str] = setting([])
    length: int = setting(0, minimum=0)
    examples: int = setting(0, minimum=0)
    mended: bool = setting(False)
    evidence: list[str] = setting(["complete"])
    block_size: int = setting(0, minimum=0)
    budgets: list[int] = setting([])


@dataclass
class Tasks:
    """Benchmarks of other domains (docs/benchmarks.md)."""

    path: str = setting("data/benchmarks")
    sets: dict[str, TaskSet] = setting({})


@dataclass
class Suite:
    """Operating points decoded side by side from one prefill a document."""

    split: str = setting(MISSING, choices=["validation", "test", TASKS])
    points: list[Point] = setting([])
    table: str = setting("generation", choices=["generation", "seeds", "sweep", "methods", "budgets"])
    sets: list[str] = setting([])


@dataclass
class Generation:
    """How the suites' answers are decoded."""

    paired: bool = setting(False)
    together: bool = setting(True)
    seeds: int = setting(1, minimum=0)


class Comparison(NamedTuple):
    """A planned comparison: of a point with InfLLM at equal tokens or, with ``over``, of both points' gains on it."""

    label: str
    over: str = ""


@dataclass
class Planned:
    """Comparisons that were chosen before a test document was read (docs/plan.md)."""

    primary: str = setting("")
    secondary: list[str] = setting([])

    @property
    def comparisons(self) -> list[Comparison]:
        """All of them, the primary one first."""
        return [Comparison(*one.split(" over ", 1)) for one in filter(None, [self.primary, *self.secondary])]


@dataclass
class Card:
    """The reader card: how well the reader reads what its training never contained."""

    questions: int = setting(500, minimum=1)
    lengths: list[int] = setting([32768, 131072, 250000])
    budgets: list[int] = setting([2, 8, 32, 96])
    biographies: str = setting("data/biographies/handwritten.jsonl")
    written_lengths: list[int] = setting([16384])
    written_asked: int = setting(1, minimum=1)
    written_questions: int = setting(0, minimum=0)
    xquad: str = setting("")
    prefill_length: int = setting(0, minimum=0)
    prefill_budgets: list[int] = setting([])

    @property
    def longest(self) -> int:
        """Tokens of the longest document."""
        return max([*self.lengths, *self.written_lengths, self.prefill_length])

    @property
    def cells(self) -> list[str]:
        """Names of what is read, one a job."""
        written = ["written", *(f"written-{n}" for n in self.written_lengths)] if self.biographies else []
        generated = ["summary", "natural", "absent", *(f"blocks-{n}" for n in self.lengths)]
        prefilled = [f"prefill-{self.prefill_length}"] if self.prefill_length else []
        return [*generated, *written, *(["xquad"] if self.xquad else []), *prefilled]


@dataclass
class Config:
    """The whole config."""

    run: str = setting("")
    seed: int = setting(0)
    scale: Scale = setting(Scale())
    reader: Reader = setting(Reader())
    corpus: Corpus = setting(Corpus())
    documents: str = setting("paper", choices=["paper", "hard"])
    writer: Endpoint = setting(Endpoint())
    labeller: Endpoint = setting(Endpoint())
    judge: Endpoint = setting(Endpoint())
    trajectories: Trajectories = setting(Trajectories())
    detectors: dict[str, Detector] = setting({})
    detector: str = setting("utaca")
    detector_seed: int = setting(0, minimum=0)
    methods: dict[str, dict[str, Any]] = setting({})
    suites: dict[str, Suite] = setting({})
    tasks: Tasks = setting(Tasks())
    replayed: str = setting("")
    generation: Generation = setting(Generation())
    plan: Planned = setting(Planned())
    card: Card = setting(Card())
    answers: str = setting("results/answers.sqlite", transport=True)

    def ran(self, suite: Suite) -> list[Point]:
        """The points of a suite that are run: one whose detector has no seed named, under each that is wanted."""
        number = self.generation.seeds
        if suite.table == "seeds" or number == 0:
            number = self.scale.detector_seeds
        elif number == 1:
            return suite.points
        found = []
        for point in suite.points:
            every = point.method == "utaca" and point.seed < 0
            found += [replace(point, seed=seed) for seed in range(number)] if every else [point]
        return found

    def shown(self, split: str, *purposes: str) -> list[str]:
        """Labels of the points of a split's suites for these purposes (:attr:`Suite.table`), each once."""
        suites = [suite for suite in self.suites.values() if suite.split == split and suite.table in purposes]
        points = [point for suite in suites for point in self.ran(suite)]
        return list(dict.fromkeys(point.label for point in points))

    def tried(self, split: str) -> list[str]:
        """Labels of the points on whose own tokens the detectors are measured."""
        points = [point for suite in self.suites.values() for point in self.ran(suite)]
        own = {point.label for point in points if point.method == "utaca" and point.in_blocks}
        return [label for label in self.shown(split, "generation", "seeds") if label in own]

    def asked_of(self, name: str) -> dict[str, list[Point]]:
        """The points that a set of ``tasks`` is asked under, by suite; one that several suites name is the first's."""
        found: dict[str, list[Point]] = {}
        known: set[str] = set()
        for suite, about in self.suites.items():
            if about.split == TASKS and name in about.sets:
                own = [point for point in self.ran(about) if point.label not in known]
                known |= {point.label for point in own}
                found[suite] = own
        return {suite: own for suite, own in found.items() if own}

    def replayable(self) -> list[Point]:
        """Points of the test split that a detector triggers, and whose expansions are to K_max."""
        tested = [suite for suite in self.suites.values() if suite.split == "test"]
        points = [point for suite in tested for point in self.ran(suite)]
        triggered = [point for point in points if point.method == "utaca" and point.in_blocks]
        return [point for point in triggered if not point.policy.endswith(".prop")]

    @property
    def replays_of(self) -> str:
        """Label of the operating point whose decisions are replayed; "" where there is none."""
        nearest = sorted(self.replayable(), key=lambda point: abs(point.budget - 64))
        return self.replayed or next((point.label for point in nearest), "")
