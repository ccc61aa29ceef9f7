"""The typed config: every key, with its type, default and bounds, and its meaning in the docstring below it.

The classes are pydantic dataclasses, which validate their values. :mod:`utaca.settings.validation` says in sentences
what is wrong with a config. ``config/README.md`` and ``config/schema.json`` are generated from the classes
(``docs/config_page.py``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema

from utaca.layout import Layout
from utaca.settings.budgets import Budget, in_order
from utaca.settings.triggers import TriggerText
from utaca.settings.validation import Distinct, Number, Plain, Whole, as_number, keys, must

Site = Literal["attention", "mlp", "residual"]
SITES = get_args(Site)
"""Where in the last layer an embedding is read: output of the attention sub-layer, of the MLP, residual stream."""

SIGNALS = tuple(sorted(path.stem for path in (Path(__file__).parents[1] / "detection" / "signals").glob("[!_]*.py")))
"""Signals of a token, one number each: the files of :mod:`utaca.detection.signals`."""
RECORDED = ("margin", "retrieval")
"""Signals that trajectories record in any case, so that a run may later have a detector that reads them."""

FIXED, TOP_P, ADAPTIVE = "infllm", "top_p", "utaca"
"""Methods that decode from block memory, with budgets in blocks: a fixed budget, one that follows the retrieval scores,
and one with an update policy."""
IN_BLOCKS = (FIXED, TOP_P, ADAPTIVE)
CONTEXT_METHODS = tuple(
    sorted({path.stem for path in (Path(__file__).parents[1] / "methods").glob("[!_]*.py")} - {*IN_BLOCKS})
)
"""The other context-management methods: the files of :mod:`utaca.methods`."""
AGREEMENT = "agreement"
"""Family of points whose budget expands where the token under K_max is another."""
NO_DETECTOR = "no_detector"
"""Family of points whose budget expands by a schedule, or never."""
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
BLOCK_METHODS = (FIXED, TOP_P, *EXPANDED)
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
DRAFTS = "drafts"
SECTIONS = {VALIDATION: VALIDATION, TEST: TEST, SWEEP: TEST, ABLATION: TEST, DRAFTS: TEST, METHODS: TEST}
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
Lengths = Annotated[
    list[Whole],
    must("be two ascending lengths, as in [400, 900]", lambda ends: len(ends) == 2 and 0 < ends[0] <= ends[1]),
]
"""The smallest and the largest length of a document."""
Budgets = Annotated[
    list[Whole],
    must("be ascending, distinct, and at least 1 each", lambda k: k and k[0] >= 1 and sorted(set(k)) == k),
]
TOP_P_POLICY = r"top_p\.0\.[0-9]*[1-9][0-9]*"
"""The policy of method ``top_p``, as in top_p.0.9."""
POLICY = r"(set|sub)\.([1-9][0-9]{0,8})"
"""Regular expression for an update policy in the config; Python refuses to read a number of thousands of digits."""
Policy = Annotated[
    str, must("be set.N or sub.N with N at least 1", lambda text: re.fullmatch(POLICY, text) is not None)
]


def setting(
    default: Any,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    transport: bool = False,
    hidden: bool = False,
    listed: Sequence[str] = (),
) -> Any:
    """Declare a config key; the docstring below it says what it means. Bounds are inclusive.

    The default is a value, ``...`` for a key that must be set, or a class of keys with their defaults. A ``transport``
    key (an address, a limit) never changes a result and so triggers no rerun. No message shows the value of a
    ``hidden`` key. The config's page shows the names ``listed`` after the meaning.
    """
    about = {"ge": minimum, "le": maximum, "json_schema_extra": {"hidden": hidden, "listed": list(listed)}}
    # Stages that resume if the repr of their settings is unchanged must also resume if a transport key changes.
    about |= {"exclude": transport, "repr": not transport}
    if isinstance(default, type):
        # An empty mapping, which validation makes an object of the class.
        about |= {"default_factory": dict, "validate_default": True}
    elif isinstance(default, list | dict):
        about |= {"default_factory": default.copy}
    else:
        about |= {"default": default, "validate_default": True}
    return Field(**about)


Evidence = Literal["complete", "partial", "missing"]
EVIDENCE = get_args(Evidence)
"""How much of the evidence for its question a document, or a benchmark's prompt, holds: all, half, nothing."""


@keys
class PathSettings:
    """A trajectory whose budget sinks from K_max, and rises to it again at regular steps, as in adaptive decoding."""

    budget: Whole = setting(..., minimum=2)
    """K_max of the trajectory, in blocks.

    The budget sinks from K_max and rises to it again, as in adaptive decoding. A detector's LSTM thus learns, or is
    measured, on passes under K_max too. The paper says nothing of such trajectories.
    """

    policy: Policy = setting(...)
    """Update policy, `set.N` or `sub.N`, as of an operating point."""

    every: Whole = setting(0, minimum=0)
    """After how many steps one is expanded, whatever its token is, as the trigger `every.N` does. 0 means never.

    A step that has K_max already stays as it is.
    """

    def __str__(self) -> str:
        return f"K_max={self.budget}, {self.policy.capitalize()}" + (f", every {self.every}" if self.every else "")


@keys
class SplitSettings:
    """How much of one split is made."""

    biographies: Whole = setting(..., minimum=1)
    """Number of biographies."""

    tokens: Lengths = setting(...)
    """Lengths of the shortest and of the longest document, in the reader's tokens.

    Documents should be so long that most facts lie outside of the reader's initial tokens and window. Only the budget
    reaches these facts.
    """

    mean_tokens: Whole = setting(0, minimum=0)
    """Mean of the documents' lengths, which are then drawn from a distribution with one peak. 0 means that all lengths
    are equally likely.
    """

    shards: Whole = setting(1, minimum=1)
    """Number of parts in which the documents are decoded."""

    budgets: Budgets = setting(...)
    """Compact budgets, in blocks, under which trajectories are decoded."""

    paths: list[PathSettings] = setting([])
    """Further trajectories, whose budgets sink and rise as in adaptive decoding."""

    evidence: Annotated[list[Evidence], Distinct] = setting(["complete"])
    """What is left of the sentences that state the facts asked for: `complete`, `partial` (half of the facts, or half
    of a single fact) or `missing`.

    Each of them is a trajectory of its own. Operating points are decoded only under complete evidence.
    """

    people_per_document: Whole = setting(1, minimum=1)
    """People whose facts stand in one text, in the training and validation splits.

    Each of them has a question of its own. The text is read once for all of them, which makes many trajectories cheap.
    """

    people: OptionalText = setting("")
    """JSONL file of biographies that people wrote, such as `data/biographies/handwritten.jsonl`. Only the test split
    may have one.

    Its first `biographies` entries are asked for six facts each. Empty means that people are drawn.
    """

    @property
    def trajectories(self) -> int:
        """Number of answers that are decoded: one per document, condition of its evidence, and budget or path."""
        return self.biographies * len(self.evidence) * (len(self.budgets) + len(self.paths))


@keys
class ScaleSettings:
    """Sizes of a run."""

    name: str = setting(...)
    """Name of the scale."""

    train: SplitSettings = setting(SplitSettings)
    """The detector's training split."""

    validation: SplitSettings = setting(SplitSettings)
    """Validation split, with six held-out attributes."""

    test: SplitSettings = setting(SplitSettings)
    """Long-context test split, with six attributes per person."""

    detector_steps: Whole = setting(..., minimum=1)
    """Optimisation steps of a detector."""

    detector_seeds: Whole = setting(8, minimum=1)
    """Number of independent training runs of a detector."""

    replays: Whole = setting(0, minimum=0)
    """How many wrong decisions of the detector are turned: at most so many false positives, and at most so many false
    negatives, of the test split.

    For each of them, one answer is decoded again. The table `failures` shows them. 0 means none.
    """

    timed: Whole = setting(0, minimum=0)
    """How many documents of the test split, from the first, have their answers decoded once more, each by itself.

    This measures seconds and memory where answers share passes (`generation.together=true`). 0 means none.
    """

    bootstrap: Whole = setting(2000, minimum=100)
    """Number of bootstrap resamples of the documents for every interval."""


@keys
class MemorySettings:
    """InfLLM's block memory."""

    block_size: Whole = setting(16, minimum=1)
    """Tokens in a block."""

    n_init: Whole = setting(128, minimum=0)
    """Initial tokens, to which every step attends."""

    n_local: Whole = setting(4096, minimum=1)
    """Tokens of the local window."""

    representatives: Literal["attention_mass", "tokens"] = setting("attention_mass")
    """What represents a block.

    `attention_mass`: the mean of the keys that the following window attends to most (InfLLM). `tokens`: every token of
    the block. With these, a block is ranked by the share that its tokens get of each head's softmax over the tokens of
    all far blocks (TokenSelect's votes). Each step reads all keys, so they must lie on the device
    (`memory.storage=device`).
    """

    far_positions: Literal["clipped", "packed"] = setting(CLIPPED)
    """Positions at which a question and its answer see far keys.

    `clipped`: all at the window's length (InfLLM). `packed`: initial tokens and retrieved blocks side by side, in their
    order, directly before the window (TokenSelect, ReAttention).

    A document is always read with clipped positions.
    """

    n_representatives: Whole = setting(4, minimum=1)
    """Tokens that are averaged into a block's representative key."""

    prefill_chunk: Whole = setting(2048, minimum=1)
    """Tokens of one prefill pass."""

    prefill_budget: Whole = setting(16, minimum=OWN)
    """Blocks that each prefill chunk retrieves.

    -1 means the answer's own budget, which is K_max of an adaptive budget, as in InfLLM. A document is then read once
    for each distinct budget.
    """

    question_budget: Whole = setting(0, minimum=OWN)
    """Blocks that each chunk of a question retrieves. The question's last token is not in a chunk: the first step of
    decoding passes it.

    0 means the same as `prefill_budget`. -1 means the answer's own budget, which is K_max of an adaptive budget, as in
    InfLLM.
    """

    question_chunk: Whole = setting(0, minimum=0)
    """Tokens of a question that retrieve together, by their mean query. 0 means the same as `prefill_chunk`."""

    storage: Literal["device", "host"] = setting("device", transport=True)
    """Where the keys and values of a document lie.

    `device`: on the reader's device. `host`: in host memory, from which only retrieved blocks are brought to the GPU.

    The answers are the same.
    """

    @property
    def layout(self) -> Layout:
        """How a text is parted into initial tokens, blocks and local window."""
        return Layout(self.n_init, self.n_local, self.block_size)


@keys
class BarSettings:
    """What a score of a set of `tasks` is to reach or, with ``most``, not to exceed."""

    set: str = setting(...)
    """Name of the set in `tasks.sets`."""

    limit: Number = setting(..., minimum=-100.0, maximum=100.0)
    """The lowest score that passes, from 0 to 100."""

    most: bool = setting(False)
    """Whether the limit is the highest score that passes."""

    point: str = setting("full")
    """Label of an operating point, such as `infllm-K8`."""

    minus: OptionalText = setting("")
    """Label of a point whose score is subtracted. Empty means none."""

    def __str__(self) -> str:
        return f"{'<=' if self.most else '>='} {self.limit:g}"


@keys
class ReaderSettings:
    """The language model that answers."""

    name: str = setting(...)
    """Name used in the paths of results."""

    path: str = setting(...)
    """Hugging Face id or local folder."""

    revision: OptionalText = setting("")
    """Revision on the hub. Empty means the default branch."""

    dtype: Literal["auto", "float32", "bfloat16"] = setting("auto")
    """Compute type. `auto` means bfloat16 where the device multiplies it natively, and else float32.

    A GPU from Ampere on does so, and a CPU with avx512_bf16 or a similar extension.
    """

    device: Literal["auto", "cpu", "cuda"] = setting("auto")
    """Device of the model. `auto` means cuda where there is one, and else cpu."""

    weights: Literal["auto", "packed", "plain"] = setting("auto")
    """How the weights of a GGUF file lie in memory.

    `packed`: at about the file's own size, for a CPU in bfloat16. `plain`: dequantised. `auto`: packed where that is
    possible, and else plain.
    """

    prompt: str = setting("compact")
    """Wording of the question, by its name in `data/readers/questions.yaml`."""

    max_new_tokens: Whole = setting(64, minimum=1)
    """Longest answer about one attribute, in tokens."""

    budget: Annotated[Budget, must("be at least 1", lambda budget: budget != 0)] = setting(32, transport=True)
    """K_max, in blocks or as a share of the document's, as `5%`, of `utaca ask`, `utaca serve` and calls from Python
    that name no budget.
    """

    margin: Number = setting(1.0, minimum=0.0, transport=True)
    """Threshold of the trigger `margin`, in logits, for `utaca ask`, `utaca serve` and calls from Python that name
    none.
    """

    memory: MemorySettings = setting(MemorySettings)
    """Block memory of this reader."""

    positions: Whole = setting(0, minimum=0)
    """Longest input, including the answer, that other methods give the reader at true positions. 0 means the model's
    max_position_embeddings.
    """

    graphs: bool = setting(False)
    """Whether an answer's step is recorded on a GPU as a CUDA graph, which is replayed for each token. The host then
    need not start each kernel.

    This works only for answers that share no passes (`generation.together=false`). `docs/performance.md` says what it
    gains.
    """

    methods: dict[str, dict[str, Plain]] = setting({})
    """Settings of methods that differ for this reader."""

    bars: list[BarSettings] = setting([], transport=True)
    """Limits that the reader's scores are compared with, in runs that ask the sets which the limits name."""


@keys
class CorpusSettings:
    """Where padding prose comes from."""

    name: str = setting(...)
    """Name used in the paths of results."""

    source: Literal["embedded", "folder", "wikipedia"] = setting(...)
    """Kind of source."""

    path: OptionalText = setting("")
    """Folder of text files, or a JSONL or Parquet file with title and text (`source=folder`)."""


@keys
class EndpointSettings:
    """An OpenAI-compatible endpoint in one of the roles writer, labeller, judge."""

    name: str = setting(...)
    """Name used in the paths of results."""

    kind: Literal["reference", "remote"] = setting("remote")
    """`reference` is the embedded reference, which runs in process. `remote` is a server."""

    base_url: OptionalText = setting("", transport=True)
    """Address of the server, which ends in `/v1` (`kind=remote`)."""

    model: str = setting(...)
    """Name of the model, as the server lists it."""

    api_key_env: OptionalText = setting("", transport=True, hidden=True)
    """Name of the environment variable that holds the key. Empty means that no key is needed."""

    temperature: Number = setting(0.0, minimum=0.0, maximum=2.0)
    """Sampling temperature."""

    top_p: Number = setting(1.0, minimum=0.0, maximum=1.0)
    """Probability mass of the nucleus that is sampled from."""

    seed: Whole = setting(0)
    """Sampling seed that is sent to the server."""

    max_tokens: Whole = setting(2048, minimum=1)
    """Longest answer in tokens, including the reasoning."""

    reasoning_effort: Literal["", "low", "medium", "high"] = setting("")
    """Effort that is sent to the server. Empty means that none is sent."""

    concurrency: Whole = setting(64, minimum=1, transport=True)
    """Largest number of requests in flight. There are fewer while the server answers HTTP 429 or too late.

    For a server of your own, set it to the requests that the server runs side by side (vLLM: `--max-num-seqs`).
    """

    timeout_s: Number = setting(120.0, minimum=0.1, transport=True)
    """Deadline of a request, in seconds. It doubles each time that a request misses it."""

    backoff_s: Number = setting(0.5, minimum=0.001, transport=True)
    """Pause, in seconds, before a request is sent again after HTTP 429, HTTP 5xx or a broken connection.

    It doubles each time, up to 32 times the first pause. If the server asks for a pause, that one is used.
    """

    patience_s: Number = setting(300.0, minimum=0.0, transport=True)
    """Seconds of such pauses (`backoff_s`), in all, after which a request counts as failed."""

    prompt_price: Number = setting(0.0, minimum=0.0, transport=True)
    """Price of a million prompt tokens, in USD."""

    completion_price: Number = setting(0.0, minimum=0.0, transport=True)
    """Price of a million completion tokens, in USD."""

    attempts: Whole = setting(3, minimum=1)
    """How often an answer is asked for. If the last one cannot be used either, the request counts as failed."""

    max_failed: Number = setting(0.05, minimum=0.0, maximum=1.0)
    """Share of failed requests above which a stage stops."""

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The cost of this many prompt and completion tokens, in USD."""
        return (prompt_tokens * self.prompt_price + completion_tokens * self.completion_price) / 1e6


@keys
class TrajectorySettings:
    """What is recorded of the compact-budget answers that detectors learn from and are measured on."""

    sites: Annotated[list[Site], Distinct] = setting(["attention"])
    """Where in the last layer embeddings are read: `attention` (output of the attention sub-layer), `mlp` (output of
    the MLP) or `residual` (the residual stream).

    The sites that the detectors use must be among them.
    """

    expanded: Whole = setting(0, minimum=0)
    """Budget, in blocks, under which every token is also tried. This shows where an expansion changes the token, and
    doubles the decoding.

    Tokens of the test split under larger budgets are not tried. 0 means that no token is.
    """


@keys
class DetectorSettings:
    """A variant of the uncertainty detector and its training (paper, appendix B)."""

    kind: Literal["softmax", "evidential"] = setting("softmax")
    """`softmax` gives class probabilities. `evidential` gives a Dirichlet distribution over two classes."""

    classes: Annotated[Literal[2, 3], BeforeValidator(as_number)] = setting(3)
    """3 means hallucinated, correct and unknown. 2 means uncertain and correct."""

    label: Literal["judged", "needed"] = setting("judged")
    """What the detector learns to predict.

    `judged`: the labeller's classes. `needed`: which tokens change under the expanded budget. This needs no judge, but
    `classes=2`, and `trajectories.expanded` above 0.
    """

    signals: Annotated[list[str], Distinct] = setting(["margin"], listed=SIGNALS)
    """Signals that the detector reads."""

    embedding: bool = setting(True)
    """Whether the detector reads the semantic embedding."""

    site: Site = setting("attention")
    """Where in the last layer the embedding is read."""

    lstm: bool = setting(True)
    """Whether an LSTM accumulates over the steps."""

    weights: Literal["paper", "shares"] = setting("paper")
    """How much each class counts in the loss.

    `paper`: 1 hallucinated, 0.05 correct and 1 unknown, which suits trajectories that are mostly correct. `shares`: in
    inverse proportion to the classes' shares of the training tokens.
    """

    chain: Whole = setting(1, minimum=1)
    """How many training answers follow one another as if they were one. The LSTM then learns on answers as long as
    those that it will see.

    1 means that each answer stands by itself, as in the paper.
    """

    decision: Literal["argmax", "youden"] = setting("argmax")
    """When the detector distrusts a token.

    `argmax`: a failure is likelier than `correct` (the paper's rule). `youden`: the odds of a failure pass a threshold.
    The threshold is the one with the best balanced accuracy on the validation split.
    """

    start: OptionalText = setting("")
    """Variant from whose weights, of the same seed, the training starts. Empty means random weights.

    The training then only calibrates: it has at most 300 steps at a rate of 1e-4, and weights classes by their shares.
    The starting weights are kept where no others are better.
    """

    taken: OptionalText = setting("")
    """Folder of detectors that are used as they are, without training, such as `results/RUN/detectors/VARIANT`. Empty
    means that the detectors are trained.

    The folder holds `seedN/model.safetensors`. Detectors of another reader must not read the embedding.
    """

    sets: list[str] = setting([])
    """Sets of tasks (`tasks.sets`) whose trajectories the detector learns from. Empty means the training split of
    biographies.
    """

    mixed: bool = setting(False)
    """Whether the detector also learns from the training split of biographies, which is then half of each batch
    (`detectors.*.sets` must not be empty).
    """

    def differing(self, other: DetectorSettings) -> str:
        """The first key, alphabetically, that makes the weights of two variants incompatible; "" if none does."""
        for key in ("classes", "embedding", "kind", "lstm", "signals", "site"):
            if getattr(self, key) != getattr(other, key):
                return key
        return ""


@keys
class PointSettings:
    """An operating point."""

    method: str = setting(...)
    """`infllm` has a fixed budget, `utaca` an adaptive one, and `top_p` one that follows the retrieval scores.
    `docs/methods.md` has the other methods.
    """

    budget: Budget = setting(0)
    """K of a fixed budget, or K_max of an adaptive one, in blocks. `5%` means 5 % of each document's blocks, rounded
    down, but at least one block.

    For another method, it is the nominal number of tokens. 0 then means as many as the method's settings give.
    """

    policy: OptionalText = setting("")
    """Update policy of an adaptive budget. With `set.N`, the next token gets N blocks. With `sub.N`, it gets N blocks
    less. Of method `top_p`: `top_p.X`, with which a token gets the fewest best blocks whose probability reaches X.
    """

    trigger: TriggerText = setting("")
    """What expands an adaptive budget.

    The name of a variant of the detector: this detector distrusts the token. Empty: the config's detector does.
    `margin.X`: the logit margin is below X. `agreement`: the token under K_max differs. `agreement.N`: the token under
    N blocks differs. `every.N`: every N-th token. `never`: no token.
    """

    base: OptionalText = setting("")
    """Another method, whose steps get the adaptive budget, in that method's tokens. Empty means InfLLM, in blocks."""

    seeds: Seeds = setting(1, minimum=0)
    """Number of detector seeds under which the point is decoded, from the first seed on. `all` means every seed. Tables
    show them together, in one row.
    """

    drafts: Whole = setting(0, minimum=0)
    """Most tokens that are guessed at once, and verified in one pass. 0 means none. The answers stay the same, up to
    rounding, and take fewer passes. For points that decode from block memory.
    """

    draft_budget: Whole = setting(0, minimum=0)
    """How the tokens are guessed. 0: they are looked up in document, question and answer. N: the model decodes them
    under N blocks, a pass for each, so that the answer is that of `budget`. For points of a fixed budget that have
    `drafts`.
    """

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
        return self.method in IN_BLOCKS and not self.base

    @property
    def together(self) -> bool:
        """Whether the point's answers may share passes with other answers (:attr:`GenerationSettings.together`).

        With drafts they may not: these show how many passes one answer takes.
        """
        return (self.in_blocks and not self.drafts) or self.method == "full"


@keys
class OperatingPoint(PointSettings):
    """An operating point as it is decoded: by its name in ``points``, and under one seed of its detector."""

    name: str = setting("")
    """Name of the point in `points`."""

    seed: Whole = setting(0, minimum=0)
    """Seed of its detector."""

    @property
    def label(self) -> str:
        """The point's name in paths and files, with its seed if it has several seeds, as in ``ours-seed3``."""
        return f"{self.name}-seed{self.seed}" if self.detected and self.seeds != 1 else self.name


@keys
class TaskSetSettings:
    """Rows of a task of a benchmark, as they are asked."""

    task: str = setting(...)
    """Task of the set: `longbook_sum_eng` or `longbook_qa_eng` (InfiniteBench), `narrativeqa` or `qmsum` (LongBench),
    `qa_1` or `qa_2` (RULER), `meetings` (QMSum's own files, asked as in LongBench), or `biographies` (written by hand;
    `docs/reader.md`).
    """

    files: dict[str, str] = setting({})
    """Files that replace the task's own, as paths below `tasks.path`. `docs/benchmarks.md` names them."""

    pool: list[str] = setting([])
    """RULER: files with further paragraphs that distract, as paths below `tasks.path`."""

    articles: list[str] = setting([])
    """`qa_1`: articles whose questions are asked, in this order. Empty means all."""

    length: Whole = setting(0, minimum=0)
    """Largest number of tokens.

    RULER: of prompt and answer together. `biographies`: of the documents into which the biographies are padded. 0 means
    that each biography stands by itself. Other tasks: of the prompt without the chat template. 0 means that nothing is
    cut.
    """

    examples: Whole = setting(0, minimum=0)
    """Number of rows that are asked, from the first. 0 means all."""

    mended: bool = setting(False)
    """RULER: whether questions are drawn from all that there are, and the documents of each sample shuffled in an order
    of its own.

    The official generator takes the first questions and shuffles all samples alike.
    """

    evidence: Annotated[list[Evidence], Distinct] = setting(["complete"])
    """What is left of the evidence for a question. Each condition is a prompt of its own.

    RULER: the paragraphs that answer the question are `complete`, `partial` (half of the paragraphs, or half of the
    sentences of a single one) or `missing`. `biographies`: the question asks for attributes that the biography states
    (`complete`) or lacks (`missing`).
    """

    asked: Whole = setting(1, minimum=1)
    """`biographies`: largest number of attributes that one question asks for."""

    block_size: Whole = setting(0, minimum=0)
    """Tokens in a block of the reader's memory. 0 means the reader's own setting."""

    budgets: list[Whole] = setting([])
    """Compact budgets, in blocks, under which the set's trajectories are decoded for calibration. `detectors.*.sets`
    uses them.
    """


@keys
class TasksSettings:
    """Benchmarks of other domains (docs/benchmarks.md)."""

    path: str = setting("data/benchmarks")
    """Folder that holds the files of the benchmarks."""

    sets: dict[str, TaskSetSettings] = setting({})
    """Sets of questions, by name. `decode` and `detectors` name them."""


@keys
class GenerationSettings:
    """How answers are decoded."""

    together: bool = setting(True)
    """Whether several answers are decoded in shared passes, which is faster. This holds for points in block memory and
    for full attention. Several short documents share passes too.

    An answer then has no seconds and no memory of its own, so none are shown. The last bits of results depend on which
    points are decoded.
    """


class Comparison(NamedTuple):
    """A planned comparison of a point with InfLLM at equal tokens or, with ``over``, of two points' gains on InfLLM."""

    label: str
    over: str = ""


@keys
class PlanSettings:
    """Comparisons that were chosen before a test document was read (docs/plan.md)."""

    primary: OptionalText = setting("")
    """The comparison that decides, over all detector seeds together. Empty means that nothing was planned.

    `NAME`: the point is compared with InfLLM at equal tokens. `NAME over NAME`: the gains of two points on InfLLM are
    compared.
    """

    secondary: list[str] = setting([])
    """Further comparisons, in the same form. Their p-values are adjusted together by Holm's method."""

    @property
    def comparisons(self) -> list[Comparison]:
        """All planned comparisons, the primary one first if there is one."""
        texts = [text for text in (self.primary, *self.secondary) if text]
        return [Comparison(*text.split(" over ", 1)) for text in texts]


@keys
class Config:
    """The whole config."""

    run: OptionalText = setting("")
    """Name of the run, whose results are in `results/NAME`.

    Empty means a name that is made from the scale, the other choices that are not the default, and a digest where
    single keys are set.
    """

    seed: Whole = setting(0)
    """Seed of people, facts, padding and bootstrap."""

    scale: ScaleSettings = setting(ScaleSettings)
    """Sizes of a run."""

    reader: ReaderSettings = setting(ReaderSettings)
    """The language model that answers."""

    corpus: CorpusSettings = setting(CorpusSettings)
    """Prose that pads the test split's documents."""

    writer: EndpointSettings = setting(EndpointSettings)
    """Endpoint that writes test narratives."""

    labeller: EndpointSettings = setting(EndpointSettings)
    """Endpoint that labels factual tokens."""

    judge: EndpointSettings = setting(EndpointSettings)
    """Endpoint that scores answers."""

    trajectories: TrajectorySettings = setting(TrajectorySettings)
    """What detectors learn from."""

    detectors: dict[str, DetectorSettings] = setting({})
    """Variants of the uncertainty detector, by name. `scale=paper` has all variants of the paper."""

    detector: str = setting("utaca")
    """Variant that the adaptive operating points use."""

    methods: dict[str, dict[str, Plain]] = setting({})
    """Settings of context-management methods, by name, that differ from the settings of their sources. They override
    `reader.methods`.

    `docs/methods.md` lists the methods. Their classes say what may be set.
    """

    points: dict[str, PointSettings] = setting({})
    """Operating points, by names of your choice. Each reader brings its own."""

    decode: dict[str, list[str]] = setting({})
    """Points that are decoded, by where they are shown.

    `validation` and `test`: the table of that split. `sweep`: the test split's curves of CAS over selected tokens.
    `ablation`: on the test split, detectors other than the config's. Only the tables `ablation` and `two_way` show
    them. `methods`: on the test split, other methods with the settings of their sources. The name of a set in
    `tasks.sets`: the questions of that set.
    """

    tasks: TasksSettings = setting(TasksSettings)
    """Benchmarks of other domains."""

    generation: GenerationSettings = setting(GenerationSettings)
    """How answers are decoded."""

    plan: PlanSettings = setting(PlanSettings)
    """Comparisons that were chosen in advance. All others are called exploratory."""

    answers: str = setting("results/answers.sqlite", transport=True)
    """Where the answers of every endpoint are kept. Runs share it.

    It is an SQLite file, on a disk of one machine. For many nodes, it is a PostgreSQL database,
    `postgresql://USER@HOST/DATABASE`. Its password comes only from PGPASSWORD or ~/.pgpass.
    """

    def settings_of(self, method: str) -> dict[str, Any]:
        """The settings that override the defaults of a method's class: the reader's, overridden by the run's."""
        return {**self.reader.methods.get(method, {}), **self.methods.get(method, {})}

    def decoded(self, section: str) -> list[OperatingPoint]:
        """The points of a section of ``decode``; a point that has several seeds of its detector is one for each."""
        points = []
        for name in self.decode.get(section, ()):
            point = self.points[name]
            n_seeds = 1
            if point.detected:
                n_seeds = self.scale.detector_seeds if point.seeds == ALL else point.seeds
            points += [OperatingPoint(**vars(point), name=name, seed=seed) for seed in range(n_seeds)]
        return points

    @property
    def recorded(self) -> list[str]:
        """The signals that trajectories record: :data:`RECORDED`, and those that detectors read."""
        read_by_detectors = {name for detector in self.detectors.values() for name in detector.signals}
        return sorted({*RECORDED, *read_by_detectors})

    @property
    def operating(self) -> dict[str, OperatingPoint]:
        """Every point that is decoded, by its label."""
        return {point.label: point for section in self.decode for point in self.decoded(section)}

    def sections(self, split: str) -> list[str]:
        """The sections of ``decode`` with questions about a split's documents."""
        return [section for section in self.decode if SECTIONS.get(section) == split]

    def shown(self, split: str, *sections: str) -> list[str]:
        """Distinct labels of a split's points in these ``sections`` of ``decode``, in the config's order.

        Without ``sections``, they are those in the section with the split's name. A section whose questions are about
        another split's documents is passed over.
        """
        wanted = [section for section in self.sections(split) if section in (sections or (split,))]
        return list(dict.fromkeys(point.label for section in wanted for point in self.decoded(section)))

    def tried(self, split: str) -> list[str]:
        """Labels of a split's points in block memory whose trigger is a detector, in the section of the split's name.

        The detectors are tried, or measured, on the tokens that these points generate.
        """
        points = self.operating
        return [label for label in self.shown(split) if points[label].detected and points[label].in_blocks]

    @property
    def main_point(self) -> OperatingPoint | None:
        """The point whose single decisions are looked at; None if there is none.

        Of the test split's points with the config's detector under seed 0, it is the one whose K_max is nearest to 64,
        which most of the paper's analyses have. Points whose K_max is a share come last.
        """
        points = [self.operating[label] for label in self.tried(TEST)]
        # A trigger that names no detector means the config's.
        usual = [point for point in points if point.detector in ("", self.detector) and point.seed == 0]

        def distance(point: OperatingPoint) -> tuple[bool, Fraction]:
            is_share, number = in_order(point.budget)
            return is_share, abs(number - 64)

        return min(usual, key=distance, default=None)

    @property
    def timed(self) -> list[OperatingPoint]:
        """The test split's points whose answers are decoded once more, one at a time, to measure times and memory.

        Empty if every answer is decoded one at a time anyway, or if ``scale.timed`` is 0.
        """
        if not (self.generation.together and self.scale.timed):
            return []
        points = [*self.decoded(TEST), *self.decoded(DRAFTS)]
        return [point for point in points if point.in_blocks]

    @property
    def asked(self) -> list[str]:
        """The sets of ``tasks`` whose questions at least one point answers."""
        return [name for name in self.tasks.sets if self.decode.get(name)]
