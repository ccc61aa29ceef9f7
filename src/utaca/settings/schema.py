"""The typed config: every key, its type, its default and its meaning.

The classes are pydantic's: what an instance is made of is checked. :mod:`utaca.settings.models` says in sentences what
is wrong with a config; ``config/README.md`` and ``config/schema.json`` are generated from the classes and their help
texts (``docs/config_page.py``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from utaca.settings.models import Distinct, Number, Plain, Whole, as_number, keys

Site = Literal["attention", "mlp", "residual"]
SITES = get_args(Site)
"""Where in the last layer an embedding is read: output of the attention sub-layer, of the MLP, residual stream."""

SIGNALS = tuple(sorted(path.stem for path in (Path(__file__).parents[1] / "detection" / "signals").glob("[!_]*.py")))
"""Signals of a token, one number each, that trajectories record: the files of :mod:`utaca.detection.signals`."""


FIXED, ADAPTIVE = "infllm", "utaca"
"""Methods that decode from block memory, budgets in blocks: a fixed one, and one that follows an update policy."""
CONTEXT_METHODS = tuple(
    sorted({path.stem for path in (Path(__file__).parents[1] / "methods").glob("[!_]*.py")} - {FIXED, ADAPTIVE})
)
"""The other context-management methods: the files of :mod:`utaca.methods`."""
AGREEMENT = "agreement"
"""The trigger that compares tokens under two budgets."""
EXPANDED = (ADAPTIVE, AGREEMENT, "no_detector")
"""What follows an update policy, as answers and tables call it (:attr:`PointSettings.kind`)."""
BLOCK_METHODS = (FIXED, *EXPANDED)
"""What decodes from block memory, as answers and tables call it (:attr:`PointSettings.kind`)."""


OWN = -1
"""As ``question_budget``: a question is read under the budget of its answer."""

TOKENS = "tokens"
"""As ``representatives``: every token of a block represents it."""

CLIPPED, PACKED = "clipped", "packed"
"""As ``far_positions``: keys at one distance, or side by side before the window."""

VALIDATION, TEST = "validation", "test"
SWEEP, METHODS = "sweep", "methods"
SECTIONS = {VALIDATION: VALIDATION, TEST: TEST, SWEEP: TEST, METHODS: TEST}
"""Sections of ``decode`` and the splits whose documents they ask; any other section is a set of ``tasks``."""
ALL = 0
"""As a point's ``seeds``: every seed."""

NOT_RUN = "not run: "
"""What an answer's finish begins with where its method lacks something; the sentence follows."""

CLASSIFIER = "results/training/llmlingua_classifier"
"""The token classifier for LLMLingua-2 that the project trains, apart from every run (``training/Snakefile``)."""


Seeds = Annotated[
    Whole,
    BeforeValidator(lambda value: ALL if value == "all" else value),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"const": "all"}]}),
]
OptionalText = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
"""A text that may be empty, as YAML's nothing is."""


def setting(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    transport: bool = False,
    hidden: bool = False,
) -> Any:
    """A documented config key; bounds are inclusive.

    The default is a value, ``...`` for a key that must be set, or a class of keys, which has defaults of its own. A key
    of ``transport`` never changes a result (addresses, limits) and so triggers no rerun; of one that is ``hidden`` no
    message may show the value.
    """
    about = {"description": help, "ge": minimum, "le": maximum, "json_schema_extra": {"hidden": hidden}}
    # What is resumed by an object's repr goes on under another transport.
    about |= {"exclude": transport, "repr": not transport}
    if isinstance(default, type):
        return Field(default_factory=dict, validate_default=True, **about)
    if isinstance(default, list | dict):
        return Field(default_factory=default.copy, **about)
    return Field(default, **about)


Evidence = Literal["complete", "partial", "missing"]
EVIDENCE = get_args(Evidence)
"""How much a document, or a benchmark's prompt, holds of what answers its question: all, half of it, nothing."""


@keys
class SplitSettings:
    """How much of one split is made."""

    biographies: Whole = setting(..., "number of biographies", minimum=1)
    tokens: list[Whole] = setting(..., "shortest and longest document, in the reader's tokens")
    shards: Whole = setting(1, "parts that the documents are decoded in", minimum=1)
    budgets: list[Whole] = setting(..., "compact budgets (blocks) under which trajectories are decoded")
    evidence: Annotated[list[Evidence], Distinct] = setting(
        ["complete"],
        "what is left of the sentences that state the facts asked for, a trajectory each: complete, partial (half of "
        "the facts, or of the only one), missing; operating points are decoded under complete evidence alone",
    )
    people: OptionalText = setting(
        "",
        "JSONL file of biographies written by hand, as data/biographies/handwritten.jsonl; the first so many are asked "
        "for six facts each (test); empty: people are drawn",
    )

    @property
    def trajectories(self) -> int:
        """How many pairs of a document and a compact budget are decoded."""
        return self.biographies * len(self.evidence) * len(self.budgets)


@keys
class ScaleSettings:
    """Sizes of a run."""

    name: str = setting(..., "name of the scale")
    train: SplitSettings = setting(SplitSettings, "the detector's training split")
    validation: SplitSettings = setting(SplitSettings, "validation split, six held-out attributes")
    test: SplitSettings = setting(SplitSettings, "long-context test split, six attributes a person")
    detector_steps: Whole = setting(..., "optimisation steps of a detector", minimum=1)
    detector_seeds: Whole = setting(8, "independent training runs of a detector", minimum=1)
    bootstrap: Whole = setting(2000, "bootstrap resamples of documents behind every interval", minimum=100)


@keys
class MemorySettings:
    """InfLLM's block memory."""

    block_size: Whole = setting(16, "tokens in a block", minimum=1)
    n_init: Whole = setting(128, "initial tokens that every step attends to", minimum=0)
    n_local: Whole = setting(4096, "tokens of the local window", minimum=1)
    representatives: Literal["attention_mass", "tokens"] = setting(
        "attention_mass",
        "what represents a block: attention_mass, the mean of the keys most attended by the following window (InfLLM); "
        "or tokens: every token, and the block is ranked by the share that its tokens get of every head's softmax over "
        "those of all far blocks (TokenSelect's votes; each step reads all keys, which must lie on the device: "
        "memory.storage=device)",
    )
    far_positions: Literal["clipped", "packed"] = setting(
        CLIPPED,
        "where a question and its answer meet far keys: clipped, all at the window's length (InfLLM), or packed, "
        "initial tokens and retrieved blocks side by side, in their order, directly before the window "
        "(TokenSelect, ReAttention); a document is read with them clipped",
    )
    n_representatives: Whole = setting(4, "tokens averaged into a block's representative key", minimum=1)
    prefill_chunk: Whole = setting(2048, "tokens of one prefill pass", minimum=1)
    prefill_budget: Whole = setting(
        16, "blocks retrieved by each prefill chunk, whatever the decoding budget", minimum=0
    )
    question_budget: Whole = setting(
        0,
        "blocks retrieved by each chunk of a question before its last token, which the first step of decoding passes; "
        "0: as prefill_budget; -1: the answer's own budget, K_max of an adaptive one, as InfLLM has it",
        minimum=OWN,
    )
    question_chunk: Whole = setting(
        0, "tokens of a question that retrieve together, by their mean query; 0: as prefill_chunk", minimum=0
    )
    storage: Literal["device", "host"] = setting(
        "device",
        "where keys and values of a document lie: on the reader's device, or in host memory, from which retrieved "
        "blocks alone are brought to a GPU; answers are the same",
        transport=True,
    )


@keys
class BarSettings:
    """What a score of a set of `tasks` is to reach or, with ``most``, not to exceed."""

    set: str = setting(..., "the set's name in tasks.sets")
    limit: Number = setting(..., "the least that the score may be, 0 to 100", minimum=-100.0, maximum=100.0)
    most: bool = setting(False, "the limit is the most that it may be")
    point: str = setting("full", "label of an operating point, as in infllm-K8")
    minus: OptionalText = setting("", "label of a point whose score is taken off; empty: none")

    def __str__(self) -> str:
        return f"{'<=' if self.most else '>='} {self.limit:g}"


@keys
class ReaderSettings:
    """The language model that answers."""

    name: str = setting(..., "name used in result paths")
    path: str = setting(..., "Hugging Face id or local folder")
    revision: OptionalText = setting("", "revision on the hub; empty: default branch")
    dtype: Literal["auto", "float32", "bfloat16"] = setting(
        "auto",
        "compute type: float32, bfloat16, or auto: bfloat16 where the device multiplies it natively (a GPU, or a CPU "
        "with avx512_bf16 or the like), else float32",
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "cpu, cuda, or auto: cuda where there is one")
    prompt: Literal["compact", "instruct"] = setting("compact", "wording of the question")
    max_new_tokens: Whole = setting(64, "longest answer about one attribute, in tokens", minimum=1)
    memory: MemorySettings = setting(MemorySettings, "block memory of this reader")
    positions: Whole = setting(
        0,
        "longest input, answer included, that other methods give it at true positions; 0: the model's "
        "max_position_embeddings",
        minimum=0,
    )
    methods: dict[str, dict[str, Plain]] = setting({}, "settings of methods that are others for this reader")
    bars: list[BarSettings] = setting([], "what its scores are held to, where a run asks these sets", transport=True)


@keys
class CorpusSettings:
    """Where padding prose comes from."""

    name: str = setting(..., "name used in result paths")
    source: Literal["embedded", "folder", "wikipedia"] = setting(..., "kind of source")
    path: OptionalText = setting(
        "", "folder of text files, or a JSONL or Parquet file with title and text (source=folder)"
    )


@keys
class EndpointSettings:
    """An OpenAI-compatible endpoint in one of the roles writer, labeller, judge."""

    name: str = setting(..., "name used in result paths")
    kind: Literal["reference", "remote"] = setting("remote", "embedded reference, in process, or a server")
    base_url: OptionalText = setting("", "address of the server, ending in /v1 (kind=remote)", transport=True)
    model: str = setting(..., "model name that the server lists")
    api_key_env: OptionalText = setting(
        "", "name of the environment variable that holds the key; empty: none needed", transport=True, hidden=True
    )
    temperature: Number = setting(0.0, "sampling temperature", minimum=0.0, maximum=2.0)
    top_p: Number = setting(1.0, "nucleus", minimum=0.0, maximum=1.0)
    seed: Whole = setting(0, "sampling seed sent to the server")
    max_tokens: Whole = setting(2048, "longest answer, reasoning included", minimum=1)
    reasoning_effort: Literal["", "low", "medium", "high"] = setting("", "low, medium or high; empty: not sent")
    concurrency: Whole = setting(
        64,
        "most requests in flight, fewer while the server answers HTTP 429 or too late; as many as a server of your "
        "own takes side by side (vLLM: --max-num-seqs)",
        minimum=1,
        transport=True,
    )
    timeout_s: Number = setting(
        120.0,
        "deadline of a request, seconds; twice as long each time that it was missed",
        minimum=0.1,
        transport=True,
    )
    backoff_s: Number = setting(
        0.5,
        "pause before a request is sent again after HTTP 429, 5xx or a broken connection, seconds; doubled each time, "
        "up to 32-fold; a pause that the server asks for takes its place",
        minimum=0.001,
        transport=True,
    )
    patience_s: Number = setting(
        300.0, "seconds of such pauses after which a request counts as failed", minimum=0.0, transport=True
    )
    prompt_price: Number = setting(0.0, "price of a million prompt tokens, USD", minimum=0.0, transport=True)
    completion_price: Number = setting(0.0, "price of a million completion tokens, USD", minimum=0.0, transport=True)
    attempts: Whole = setting(
        3, "times an answer is asked for before one that cannot be used counts as failed", minimum=1
    )
    max_failed: Number = setting(0.05, "share of failed requests above which a stage stops", minimum=0.0, maximum=1.0)

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """What tokens cost, USD."""
        return (prompt_tokens * self.prompt_price + completion_tokens * self.completion_price) / 1e6


POLICY = r"(set|sub)\.([1-9]\d*)"
"""Update policies as they are written in config."""


@keys
class TrajectorySettings:
    """What is recorded of the compact-budget answers that detectors learn from and are measured on."""

    sites: Annotated[list[Site], Distinct] = setting(
        ["attention"],
        "where in the last layer embeddings are read: attention (output of its sub-layer), mlp, residual (stream); "
        "those that the detectors use, or more",
    )
    expanded: Whole = setting(
        0,
        "budget (blocks) under which every token is tried too, which tells where an expansion changes it and doubles "
        "the decoding; 0: not tried",
        minimum=0,
    )


@keys
class DetectorSettings:
    """A variant of the uncertainty detector and its training (paper, appendix B)."""

    kind: Literal["softmax", "evidential"] = setting(
        "softmax",
        "softmax: class probabilities; evidential: a Dirichlet distribution over two classes",
    )
    classes: Annotated[Literal[2, 3], BeforeValidator(as_number)] = setting(
        3, "3: hallucinated, correct, unknown; 2: uncertain, correct"
    )
    label: Literal["judged", "needed"] = setting(
        "judged",
        "what it learns to tell: the labeller's classes, or, without any judge, which tokens change under the expanded "
        "budget (classes 2, trajectories.expanded above 0)",
    )
    signals: Annotated[list[str], Distinct] = setting(["margin"], f"signals that it looks at: {', '.join(SIGNALS)}")
    embedding: bool = setting(True, "use the semantic embedding")
    site: Site = setting("attention", "where in the last layer the embedding is read")
    lstm: bool = setting(True, "accumulate over steps with an LSTM")
    chain: Whole = setting(
        1,
        "training answers that follow one another as if one, so that the LSTM has seen answers as long as those it is "
        "to judge; 1: each alone (the paper's)",
        minimum=1,
    )
    decision: Literal["argmax", "youden"] = setting(
        "argmax",
        "when it distrusts a token: argmax, a failure is likelier than correct (the paper's); youden, the odds of a "
        "failure pass a threshold chosen on validation for the best balanced accuracy",
    )
    start: OptionalText = setting("", "variant whose weights of the same seed it starts from; empty: random weights")
    taken: OptionalText = setting(
        "",
        "folder whose detectors, seedN/model.safetensors, are taken as they are in place of training, as "
        "results/RUN/detectors/VARIANT; those of another reader must read no embedding; empty: trained",
    )
    sets: list[str] = setting(
        [], "sets of tasks (tasks.sets) whose trajectories it learns from; empty: the biographies' training split"
    )
    mixed: bool = setting(
        False, "learn from the biographies' training split too, half of each batch (detectors.*.sets not empty)"
    )

    def differing(self, other: DetectorSettings) -> str:
        """The first key, by name, in which two variants differ such that the weights of one mean nothing to the other;
        "" where there is none."""
        keys = ("classes", "embedding", "kind", "lstm", "signals", "site")
        return next((key for key in keys if getattr(self, key) != getattr(other, key)), "")


def trigger_parts(text: str) -> tuple[str, int] | None:
    """Name and N, 0 if it has none, of ``agreement``, ``agreement.N``, ``every.N`` or ``never``.

    None for anything else: that names a variant of the detector.
    """
    match = re.fullmatch(r"(agreement|every(?=\.)|never(?!\.))(?:\.([1-9]\d*))?", text)
    return (match[1], int(match[2] or 0)) if match else None


@keys
class PointSettings:
    """An operating point."""

    method: str = setting(..., "infllm: a fixed budget; utaca: an adaptive one; or another of docs/methods.md")
    budget: Whole = setting(
        0,
        "K of a fixed budget, K_max of an adaptive one, in blocks; of another method, its nominal tokens, 0: as many "
        "as its settings say",
        minimum=0,
    )
    policy: OptionalText = setting(
        "",
        "update policy of an adaptive budget: set.N, the next token gets N blocks, or sub.N, N blocks less",
    )
    trigger: OptionalText = setting(
        "",
        "what expands an adaptive budget: a variant of the detector (empty: the config's); agreement: that the "
        "expanded token is another, or agreement.N: that the token under N blocks is; every.N: every N tokens; never",
    )
    base: OptionalText = setting(
        "",
        "another method, whose steps an adaptive budget is given to, in its tokens; empty: infllm, in blocks",
    )
    seeds: Seeds = setting(
        1, "detector seeds under which it is decoded, the first so many, or all; a row of a table together", minimum=0
    )

    @property
    def adaptive(self) -> bool:
        """Whether it has a policy, and something that expands its budget."""
        return self.method == ADAPTIVE

    @property
    def kind(self) -> str:
        """What decides its budget, as answers and tables call it: its method, or "agreement" or "no_detector"."""
        if not self.adaptive or self.detected:
            return self.method
        return AGREEMENT if trigger_parts(self.trigger)[0] == AGREEMENT else "no_detector"

    @property
    def detected(self) -> bool:
        """Whether a detector expands its budget."""
        return self.adaptive and trigger_parts(self.trigger) is None

    @property
    def detector(self) -> str:
        """The variant that expands its budget where its trigger names one."""
        return self.trigger if self.detected else ""

    @property
    def number(self) -> int:
        """N of a trigger agreement.N or every.N; 0 if it has none."""
        return (trigger_parts(self.trigger) or ("", 0))[1]

    @property
    def in_blocks(self) -> bool:
        """Whether it is decoded from block memory."""
        return self.method in (FIXED, ADAPTIVE) and not self.base

    @property
    def together(self) -> bool:
        """Whether its answers may share passes with others (:attr:`GenerationSettings.together`)."""
        return self.in_blocks or self.method == "full"

    @property
    def beside(self) -> str:
        """What expands its budget in a detector's place, as in "every 40"; "" if :attr:`kind` says it."""
        name = "witness" if self.kind == AGREEMENT else "every"
        return f"{name} {self.number}" if self.number else ""

    @property
    def decoder(self) -> str:
        """Its kind, and the method it is given to, as in ``utaca-retrieval_attention``."""
        return "-".join(filter(None, [self.kind, self.base]))


@keys
class OperatingPoint(PointSettings):
    """An operating point as it is decoded: by its name in ``points``, and under one seed of its detector."""

    name: str = setting("", "its name in points")
    seed: Whole = setting(0, "seed of its detector", minimum=0)

    @property
    def label(self) -> str:
        """The point's name in paths and files: of several seeds' each has its own, as in ``ours-seed3``."""
        return f"{self.name}-seed{self.seed}" if self.detected and self.seeds != 1 else self.name


@keys
class TaskSetSettings:
    """Rows of a task of a benchmark, as they are asked."""

    task: str = setting(
        ...,
        "its task: longbook_sum_eng, longbook_qa_eng (InfiniteBench), narrativeqa, qmsum (LongBench), qa_1, qa_2 "
        "(RULER), meetings (QMSum's own files in LongBench's way), or biographies (written by hand; docs/reader.md)",
    )
    files: dict[str, str] = setting(
        {}, "files in place of the task's own, below tasks.path; docs/benchmarks.md names them"
    )
    pool: list[str] = setting([], "files with further paragraphs to distract (RULER), below tasks.path")
    articles: list[str] = setting([], "articles whose questions are asked, in this order (qa_1); empty: all")
    length: Whole = setting(
        0,
        "most tokens: of prompt and answer together (RULER), of the prompt without the chat template (others; 0: all); "
        "of biographies, the tokens of documents that they are padded to (0: each stands alone)",
        minimum=0,
    )
    examples: Whole = setting(0, "rows, the first so many; 0: all", minimum=0)
    mended: bool = setting(
        False,
        "RULER: questions drawn from all that there are, and documents of each sample shuffled in its own way, where "
        "the official generator takes the first questions and shuffles all samples alike",
    )
    evidence: Annotated[list[Evidence], Distinct] = setting(
        ["complete"],
        "RULER: what is left of the paragraphs that answer a question, one prompt each: complete, partial (half of "
        "them, or of the sentences of a single one), missing; biographies: attributes that they state are asked for "
        "(complete), or others (missing)",
    )
    asked: Whole = setting(1, "biographies: attributes that one question asks for, at most", minimum=1)
    block_size: Whole = setting(0, "tokens of a block of the reader's memory; 0: the reader's", minimum=0)
    budgets: list[Whole] = setting(
        [], "calibration: compact budgets (blocks) under which its trajectories are decoded; detectors.*.sets uses them"
    )


@keys
class TasksSettings:
    """Benchmarks of other domains (docs/benchmarks.md)."""

    path: str = setting("data/benchmarks", "folder that holds their files")
    sets: dict[str, TaskSetSettings] = setting({}, "what is asked, by name; decode and detectors name it")


@keys
class GenerationSettings:
    """How answers are decoded."""

    together: bool = setting(
        True,
        "decode points in block memory, and those of full attention, side by side in shared passes, those of "
        "several short documents too, which is faster; the seconds and the memory of an answer are then not its own "
        "and not told, and another choice of points changes low bits",
    )


class Comparison(NamedTuple):
    """A planned comparison: of a point with InfLLM at equal tokens or, with ``over``, of both points' gains on it."""

    label: str
    over: str = ""


@keys
class PlanSettings:
    """Comparisons that were chosen before a test document was read (docs/plan.md)."""

    primary: OptionalText = setting(
        "",
        "what decides, detector seeds together: the name of a point, which is compared with InfLLM at equal tokens, "
        "or 'NAME over NAME', which compares what two points gain on InfLLM; empty: nothing was planned",
    )
    secondary: list[str] = setting([], "further comparisons, in the same form; their p are adjusted together by Holm")

    @property
    def comparisons(self) -> list[Comparison]:
        """All of them, the primary one first."""
        return [Comparison(*one.split(" over ", 1)) for one in filter(None, [self.primary, *self.secondary])]


@keys
class Config:
    """The whole config."""

    run: OptionalText = setting(
        "",
        "name of the run, whose results are in `results/NAME`; empty: after its scale, what else is not the default, "
        "and a digest where single keys are set",
    )
    seed: Whole = setting(0, "seed of people, facts, padding and bootstrap")
    scale: ScaleSettings = setting(ScaleSettings, "sizes of a run")
    reader: ReaderSettings = setting(ReaderSettings, "the language model that answers")
    corpus: CorpusSettings = setting(CorpusSettings, "padding prose")
    writer: EndpointSettings = setting(EndpointSettings, "endpoint that writes test narratives")
    labeller: EndpointSettings = setting(EndpointSettings, "endpoint that labels factual tokens")
    judge: EndpointSettings = setting(EndpointSettings, "endpoint that scores answers")
    trajectories: TrajectorySettings = setting(TrajectorySettings, "what detectors learn from")
    detectors: dict[str, DetectorSettings] = setting(
        {}, "variants of the uncertainty detector, by name; scale=paper brings all of the paper's"
    )
    detector: str = setting("utaca", "variant that the adaptive operating points use")
    methods: dict[str, dict[str, Plain]] = setting(
        {},
        "settings of context-management methods, by name, that are others than their sources'; they go on top of "
        "`reader.methods`; docs/methods.md lists the methods, and their classes what may be set",
    )
    points: dict[str, PointSettings] = setting(
        {}, "operating points, by names of your choice; each reader brings its own"
    )
    decode: dict[str, list[str]] = setting(
        {},
        "the points that are decoded, by where they are shown: validation and test (a split's table), and on the test "
        "split sweep (curves of CAS over selected tokens) and methods (other methods under their sources' settings); "
        "or by a set of tasks.sets",
    )
    tasks: TasksSettings = setting(TasksSettings, "benchmarks of other domains")
    generation: GenerationSettings = setting(GenerationSettings, "how answers are decoded")
    plan: PlanSettings = setting(PlanSettings, "comparisons chosen in advance; all others are called exploratory")
    answers: str = setting(
        "results/answers.sqlite",
        "what keeps every endpoint's answers, shared by runs: an SQLite file, on a disk of one machine, or for many "
        "nodes a PostgreSQL database, postgresql://USER@HOST/DATABASE; its password comes from PGPASSWORD or ~/.pgpass "
        "alone",
        transport=True,
    )

    def settings_of(self, method: str) -> dict[str, Any]:
        """A method's settings that are others than its class's: the reader's, and the run's on top."""
        return {**self.reader.methods.get(method, {}), **self.methods.get(method, {})}

    def decoded(self, section: str) -> list[OperatingPoint]:
        """The points of a section of ``decode``, one a seed where it is decoded under several."""
        points = []
        for name in self.decode.get(section, ()):
            point = self.points[name]
            seeds = (point.seeds or self.scale.detector_seeds) if point.detected else 1
            points += [OperatingPoint(**vars(point), name=name, seed=seed) for seed in range(seeds)]
        return points

    @property
    def operating(self) -> dict[str, OperatingPoint]:
        """Every point that is decoded, by its label."""
        return {point.label: point for section in self.decode for point in self.decoded(section)}

    def sections(self, split: str) -> list[str]:
        """The sections of ``decode`` that ask a split's documents."""
        return [section for section in self.decode if SECTIONS.get(section) == split]

    def shown(self, split: str, *sections: str) -> list[str]:
        """Labels of the points of a split that these sections show, each once; of its own where none is named."""
        wanted = [section for section in self.sections(split) if section in (sections or (split,))]
        return list(dict.fromkeys(point.label for section in wanted for point in self.decoded(section)))

    def tried(self, split: str) -> list[str]:
        """Labels of the points on whose own tokens the detectors are measured."""
        points = self.operating
        return [x for x in self.shown(split) if points[x].detected and points[x].in_blocks]

    @property
    def asked(self) -> list[str]:
        """The sets of ``tasks`` that are asked."""
        return [name for name in self.tasks.sets if self.decode.get(name)]
