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
"""What of the last layer is the embedding: output of the attention sub-layer, of the MLP, or the residual stream."""

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
"""Family of points whose budget expands if K_max gives a different token."""
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
"""Values of ``far_positions``: far keys all at one distance, or one after another before the window."""

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
    must("be two ascending lengths, such as [400, 900]", lambda ends: len(ends) == 2 and 0 < ends[0] <= ends[1]),
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

    The budget falls from K_max and rises to it again, as in adaptive decoding. So a detector's LSTM also learns from
    passes under K_max, or is measured on them. The paper has no such trajectories.
    """

    policy: Policy = setting(...)
    """Update policy of the trajectory, `set.N` or `sub.N`."""

    every: Whole = setting(0, minimum=0)
    """Number of steps from one expansion to the next, as in the trigger `every.N`. 0 means that no step is expanded.

    A step that already has K_max does not change.
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

    Documents should be so long that most facts are outside of the reader's initial tokens and window. Only retrieved
    blocks can bring these facts to the reader.
    """

    mean_tokens: Whole = setting(0, minimum=0)
    """Mean length of the documents. If it is set, lengths are drawn from a distribution with one peak. 0 means that all
    lengths are equally likely.
    """

    shards: Whole = setting(1, minimum=1)
    """Number of parts in which the documents are decoded."""

    budgets: Budgets = setting(...)
    """Compact budgets, in blocks, under which trajectories are decoded."""

    paths: list[PathSettings] = setting([])
    """Further trajectories, with budgets that fall and rise as in adaptive decoding."""

    evidence: Annotated[list[Evidence], Distinct] = setting(["complete"])
    """How much of the evidence stays in the document: `complete`, `partial` (half of the facts, or half of a single
    fact) or `missing`. The evidence is the sentences that state the facts asked for.

    Each condition gives a separate trajectory. Operating points are decoded only with complete evidence.
    """

    people_per_document: Whole = setting(1, minimum=1)
    """Number of people in one text of the training and validation splits.

    There is one question about each of them. The text is read once for all questions, which makes trajectories cheap.
    """

    people: OptionalText = setting("")
    """JSONL file of biographies that were written by hand, such as `data/biographies/handwritten.jsonl`. Only the test
    split can have one.

    The first `biographies` entries of the file are used, with six facts each. Empty means generated people.
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
    """Number of wrong decisions of the detector that are reversed on the test split, for each kind: false positives and
    false negatives.

    For each reversed decision, one answer is decoded again. The table `failures` shows them. 0 means none.
    """

    timed: Whole = setting(0, minimum=0)
    """Number of test documents, from the first, with answers that are decoded again, one at a time.

    This measures seconds and memory if answers share passes (`generation.together=true`). 0 means none.
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
    the block. Each head then computes a softmax over the tokens of all far blocks, and blocks are ranked by the sum
    over their tokens and over the heads (TokenSelect's votes). Each step reads all keys, so they must be on the device
    (`memory.storage=device`).
    """

    far_positions: Literal["clipped", "packed"] = setting(CLIPPED)
    """Positions at which a question and its answer see far keys.

    `clipped`: all far keys have the distance of the window's length (InfLLM). `packed`: initial tokens and retrieved
    blocks have consecutive positions, in their order, directly before the window (TokenSelect, ReAttention).

    A document is always read with clipped positions.
    """

    n_representatives: Whole = setting(4, minimum=1)
    """Tokens that are averaged into a block's representative key."""

    prefill_chunk: Whole = setting(2048, minimum=1)
    """Tokens of one prefill pass."""

    prefill_budget: Whole = setting(16, minimum=OWN)
    """Blocks that each prefill chunk retrieves.

    -1 means the budget of the answer, as in InfLLM; for an adaptive budget, this is K_max. A document is then read once
    for each distinct budget.
    """

    question_budget: Whole = setting(0, minimum=OWN)
    """Blocks that each chunk of a question retrieves. The last token of the question is the input of the first decoding
    step, so it is not part of a chunk.

    0 means the same as `prefill_budget`. -1 means the budget of the answer, as in InfLLM; for an adaptive budget, this
    is K_max.
    """

    question_chunk: Whole = setting(0, minimum=0)
    """Tokens of a question that retrieve together, with their mean query. 0 means the same as `prefill_chunk`."""

    storage: Literal["device", "host"] = setting("device", transport=True)
    """Where the keys and values of a document are kept.

    `device`: on the reader's device. `host`: in host memory. Only retrieved blocks are then copied to the GPU.

    The answers are the same.
    """

    @property
    def layout(self) -> Layout:
        """How a text is split into initial tokens, blocks and local window."""
        return Layout(self.n_init, self.n_local, self.block_size)


@keys
class BarSettings:
    """A limit that a score of a set of `tasks` must reach or, with ``most``, must not exceed."""

    set: str = setting(...)
    """Name of the set in `tasks.sets`."""

    limit: Number = setting(..., minimum=-100.0, maximum=100.0)
    """Lowest score that passes, from 0 to 100. With `minus`, lowest difference, from -100 to 100. `most` makes it the
    highest.
    """

    most: bool = setting(False)
    """Whether `limit` is the highest score that passes."""

    point: str = setting("full")
    """Label of an operating point, such as `infllm-K8`."""

    minus: OptionalText = setting("")
    """Label of a point. Its score is subtracted. Empty means none."""

    def __str__(self) -> str:
        return f"{'<=' if self.most else '>='} {self.limit:g}"


@keys
class ReaderSettings:
    """The language model that answers."""

    name: str = setting(...)
    """Name used in the paths of results."""

    path: str = setting(...)
    """Hugging Face id, folder or GGUF file."""

    revision: OptionalText = setting("")
    """Revision on the hub. Empty means the default branch."""

    dtype: Literal["auto", "float32", "bfloat16"] = setting("auto")
    """Compute type. `auto` means bfloat16 if the device supports it natively, otherwise float32.

    GPUs since Ampere support it, and CPUs with avx512_bf16 or a similar extension.
    """

    device: Literal["auto", "cpu", "cuda"] = setting("auto")
    """Device of the model. `auto` means cuda if there is a GPU, otherwise cpu."""

    weights: Literal["auto", "packed", "plain"] = setting("auto")
    """How the weights of a GGUF file are kept in memory.

    `packed`: at about the size of the file; only on a CPU, in bfloat16. `plain`: dequantised. `auto`: packed if that is
    possible, otherwise plain.
    """

    prompt: str = setting("compact")
    """Wording of the question, by its name in `data/readers/questions.yaml`."""

    max_new_tokens: Whole = setting(64, minimum=1)
    """Longest answer about one attribute, in tokens."""

    budget: Annotated[Budget, must("be at least 1", lambda budget: budget != 0)] = setting(32, transport=True)
    """Default K_max of `utaca ask`, `utaca serve` and calls from Python, in blocks or as a share of the document's
    blocks, such as `5%`.
    """

    margin: Number = setting(1.0, minimum=0.0, transport=True)
    """Default threshold of the trigger `margin`, in logits, for `utaca ask`, `utaca serve` and calls from Python."""

    memory: MemorySettings = setting(MemorySettings)
    """Block memory of this reader."""

    positions: Whole = setting(0, minimum=0)
    """Longest input, including the answer, for methods without block memory. 0 means the model's
    max_position_embeddings.
    """

    graphs: bool = setting(False)
    """Whether a decoding step is recorded on a GPU as a CUDA graph and replayed for each token. The host then does not
    start each kernel.

    This works only if answers share no passes (`generation.together=false`). `docs/performance.md` has measurements.
    """

    methods: dict[str, dict[str, Plain]] = setting({})
    """Settings of methods for this reader, by method."""

    bars: list[BarSettings] = setting([], transport=True)
    """Limits for the reader's scores, in runs that ask the sets of questions that the limits name."""


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
    """`reference`: the project's rules, which run in the same process. `remote`: a server."""

    base_url: OptionalText = setting("", transport=True)
    """Address of the server, which ends in `/v1` (`kind=remote`)."""

    model: str = setting(...)
    """Name of the model, as the server lists it."""

    api_key_env: OptionalText = setting("", transport=True, hidden=True)
    """Name of the environment variable that holds the key. Empty means that no key is needed."""

    temperature: Number = setting(0.0, minimum=0.0, maximum=2.0)
    """Sampling temperature."""

    top_p: Number = setting(1.0, minimum=0.0, maximum=1.0)
    """Probability mass for nucleus sampling."""

    seed: Whole = setting(0)
    """Sampling seed that is sent to the server."""

    max_tokens: Whole = setting(2048, minimum=1)
    """Longest answer in tokens, including the reasoning."""

    reasoning_effort: Literal["", "low", "medium", "high"] = setting("")
    """Effort that is sent to the server. Empty means that none is sent."""

    concurrency: Whole = setting(64, minimum=1, transport=True)
    """Largest number of requests in flight. There are fewer while the server answers HTTP 429 or too late.

    For your own server, set it to the number of requests that the server runs at the same time (vLLM:
    `--max-num-seqs`).
    """

    timeout_s: Number = setting(120.0, minimum=0.1, transport=True)
    """Time limit of a request, in seconds. It doubles each time that a request exceeds it."""

    backoff_s: Number = setting(0.5, minimum=0.001, transport=True)
    """Pause, in seconds, before a request is sent again after HTTP 429, HTTP 5xx or a broken connection.

    It doubles each time, up to 32 times the first pause. If the server asks for a certain pause, this one is used.
    """

    patience_s: Number = setting(300.0, minimum=0.0, transport=True)
    """Total of these pauses (`backoff_s`), in seconds, after which a request counts as failed."""

    prompt_price: Number = setting(0.0, minimum=0.0, transport=True)
    """Price of a million prompt tokens, in USD."""

    completion_price: Number = setting(0.0, minimum=0.0, transport=True)
    """Price of a million completion tokens, in USD."""

    attempts: Whole = setting(3, minimum=1)
    """Largest number of answers to one request. If the last one is also unusable, the request counts as failed. Also
    the largest number of its tries that end without an answer, such as time-outs.
    """

    max_failed: Number = setting(0.05, minimum=0.0, maximum=1.0)
    """Share of failed requests above which a stage stops."""

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The cost of this many prompt and completion tokens, in USD."""
        return (prompt_tokens * self.prompt_price + completion_tokens * self.completion_price) / 1e6


@keys
class TrajectorySettings:
    """What is recorded of the compact-budget answers on which detectors are trained and measured."""

    sites: Annotated[list[Site], Distinct] = setting(["attention"])
    """Where in the last layer embeddings are read: `attention` (output of the attention sub-layer), `mlp` (output of
    the MLP) or `residual` (the residual stream).

    The sites that the detectors use must be among them.
    """

    expanded: Whole = setting(0, minimum=0)
    """A second budget, in blocks, under which every token is also decoded, to see where it changes. This doubles the
    work.

    0 means no second budget. On the test split, trajectories with larger budgets are not decoded again.
    """


@keys
class DetectorSettings:
    """A variant of the uncertainty detector and its training (paper, appendix B)."""

    kind: Literal["softmax", "evidential", "linear"] = setting("softmax")
    """`softmax` gives class probabilities. `evidential` gives a Dirichlet distribution over two classes. `linear` is a
    linear probe, class probabilities by logistic regression on the embedding; it has `signals=[]` and `lstm=false`.
    """

    classes: Annotated[Literal[2, 3], BeforeValidator(as_number)] = setting(3)
    """3 means hallucinated, correct and unknown. 2 means uncertain (hallucinated or unknown) and correct."""

    label: Literal["judged", "needed"] = setting("judged")
    """What the detector learns to predict.

    `judged`: the labeller's classes. `needed`: which tokens change under the budget `trajectories.expanded`. `needed`
    works without a labeller, but requires `classes=2` and `trajectories.expanded` above 0.
    """

    signals: Annotated[list[str], Distinct] = setting(["margin"], listed=SIGNALS)
    """Signals that the detector reads."""

    embedding: bool = setting(True)
    """Whether the detector reads the token's embedding."""

    site: Site = setting("attention")
    """What of the last layer is the embedding."""

    lstm: bool = setting(True)
    """Whether the detector has an LSTM over the steps of the answer."""

    weights: Literal["paper", "shares"] = setting("paper")
    """How much each class counts in the loss.

    `paper`: 1 for hallucinated, 0.05 for correct and 1 for unknown, which suits trajectories that are mostly correct.
    `shares`: inversely proportional to the share of the class in the training tokens.
    """

    chain: Whole = setting(1, minimum=1)
    """Number of training answers that are joined into one, so that the LSTM is trained on answers as long as test
    answers.

    1 means that answers are not joined, as in the paper.
    """

    decision: Literal["argmax", "youden"] = setting("argmax")
    """When the detector distrusts a token.

    `argmax`: hallucinated or unknown is likelier than correct (the paper's rule). `youden`: the odds of an uncertain
    token exceed a threshold. This is the threshold with the best balanced accuracy on the validation split.
    """

    start: OptionalText = setting("")
    """Variant that gives the starting weights, each seed to the same seed.

    The training then only calibrates: it has at most 300 steps at a rate of 1e-4, and weights each class by the inverse
    of its share. If training does not improve on the starting weights, they are kept. Empty means random weights and a
    full training.
    """

    taken: OptionalText = setting("")
    """Folder of detectors that are used as they are, without training, such as `results/RUN/detectors/VARIANT`. Empty
    means that the detectors are trained.

    The folder has `seedN/model.safetensors`. If the detectors were trained for a different reader, `embedding` must be
    false.
    """

    sets: list[str] = setting([])
    """Sets of tasks (`tasks.sets`) with trajectories that the detector learns from. Empty means the training split of
    biographies.
    """

    mixed: bool = setting(False)
    """Whether the detector also learns from the training split of biographies. Half of each batch is then from there.
    `detectors.*.sets` must not be empty.
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

    For other methods, it is the number of tokens. 0 then means as many as the method's settings give.
    """

    policy: OptionalText = setting("")
    """Update policy of an adaptive budget. With `set.N`, the next token gets N blocks. With `sub.N`, it gets N blocks
    less. For the method `top_p`, write `top_p.X`: a token gets as few blocks as possible with a total probability of X.
    """

    trigger: TriggerText = setting("")
    """When a token of an adaptive budget is expanded.

    The name of a variant of the detector: if this detector distrusts the token. Empty: the same with the config's
    detector. `margin.X`: if the logit margin is below X. `agreement`: if the token under K_max differs. `agreement.N`:
    if the token under N blocks differs. `every.N`: every N-th token. `never`: no token.
    """

    base: OptionalText = setting("")
    """Method that gets the adaptive budget, in tokens. Empty means InfLLM, with the budget in blocks."""

    seeds: Seeds = setting(1, minimum=0)
    """Number of detector seeds to decode the point with, from the first seed. `all` means every seed. Tables show them
    together, in one row.
    """

    drafts: Whole = setting(0, minimum=0)
    """Largest number of tokens that are guessed at once and verified in one pass. 0 means none. Answers take fewer
    passes and stay the same, up to rounding. Only points with block memory can have drafts.
    """

    draft_budget: Whole = setting(0, minimum=0)
    """How the tokens are guessed. 0: they are looked up in document, question and answer. N: the model decodes them
    under N blocks, with one pass for each. The answer stays that of `budget`. Only points with a fixed budget and with
    `drafts` can have it.
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
        """What tables call the point: its method or, for an adaptive point, what expands its budget."""
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
    `docs/reader.md`). RULER's thirteen with its own rows (`docs/ruler.md`): `niah_single_1`, `niah_single_2`,
    `niah_single_3`, `niah_multikey_1`, `niah_multikey_2`, `niah_multikey_3`, `niah_multivalue`, `niah_multiquery`,
    `vt`, `cwe`, `fwe`, `ruler_qa_1` and `ruler_qa_2`.
    """

    files: dict[str, str] = setting({})
    """Files that replace the task's own, as paths below `tasks.path`. `docs/benchmarks.md` names them."""

    pool: list[str] = setting([])
    """`qa_1` and `qa_2`: files with further paragraphs as distractors, as paths below `tasks.path`."""

    articles: list[str] = setting([])
    """`qa_1`: articles that the questions are about, in this order. Empty means all."""

    length: Whole = setting(0, minimum=0)
    """Largest number of tokens.

    RULER: for prompt and answer together. `biographies`: for the padded document; 0 means that biographies are not
    padded. Other tasks: for the prompt without the chat template; 0 means that nothing is cut.
    """

    examples: Whole = setting(0, minimum=0)
    """Number of rows that are asked, from the first. 0 means all; of RULER's own rows, 500."""

    shuffled: bool = setting(False)
    """`qa_1` and `qa_2`: whether questions are drawn at random from the whole file, and each sample has its own order
    of documents.

    Otherwise a set asks the first questions, and the documents of all samples are shuffled in the same way, as by the
    official generator. With `articles`, only their questions count.
    """

    evidence: Annotated[list[Evidence], Distinct] = setting(["complete"])
    """How much of the evidence for a question is in the prompt. Each condition gives a separate prompt.

    `qa_1` and `qa_2`: the paragraphs that answer the question are `complete`, `partial` (half of the paragraphs, or
    half of the sentences of a single one) or `missing`. `biographies`: the question asks for attributes that the
    biography states (`complete`) or does not state (`missing`).
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
    """Whether several answers are decoded in shared passes, which is faster. This applies to points in block memory and
    to full attention. Several short documents share passes too.

    Then no seconds and no memory can be measured for a single answer, so none are shown. The last bits of results
    depend on which points are decoded.
    """


class Comparison(NamedTuple):
    """A planned comparison of a point with InfLLM at equal tokens or, with ``over``, of the gains of two points."""

    label: str
    over: str = ""


@keys
class PlanSettings:
    """Comparisons that were chosen before a test document was read (docs/plan.md)."""

    primary: OptionalText = setting("")
    """The comparison on which the verdict rests, over all detector seeds together. Empty means that nothing was
    planned.

    `NAME`: the point is compared with InfLLM at equal tokens. `NAME over NAME`: the gains of two points over InfLLM are
    compared. Points must be adaptive; the second one may also have the method `top_p`.
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
    """Name of the run. Its results are in `results/NAME`.

    Empty means a name that is made from the scale, the other options that differ from the default, and six hexadecimal
    digits if single keys are set.
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
    """Variant of the detector that adaptive operating points use by default."""

    methods: dict[str, dict[str, Plain]] = setting({})
    """Settings of context-management methods, by method. They override `reader.methods`. The defaults come from each
    method's published code or paper.

    `docs/methods.md` lists the methods. Their classes have the settings.
    """

    points: dict[str, PointSettings] = setting({})
    """Operating points, by names that you choose. Each reader has a default option."""

    decode: dict[str, list[str]] = setting({})
    """Operating points to decode, listed by section. The section says which tables show them.

    `validation` and `test`: the table of that split. `sweep`: the test split's curves of CAS over selected tokens.
    `ablation`: on the test split, detectors other than the config's; only the tables `ablation` and `two_way` show
    them. `drafts`: on the test split, points with drafts; only the table `tradeoff` shows them. `methods`: on the test
    split, methods without block memory. The name of a set in `tasks.sets`: the questions of that set.
    """

    tasks: TasksSettings = setting(TasksSettings)
    """Benchmarks of other domains."""

    generation: GenerationSettings = setting(GenerationSettings)
    """How answers are decoded."""

    plan: PlanSettings = setting(PlanSettings)
    """Comparisons that were chosen in advance. All others are called exploratory."""

    answers: str = setting("results/answers.sqlite", transport=True)
    """Where the answers of all endpoints are stored. All runs share them.

    A path names an SQLite file on a disk of one machine. `postgresql://USER@HOST/DATABASE` names a PostgreSQL database,
    for several machines. The password is read from PGPASSWORD or ~/.pgpass.
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
        """The point whose single decisions are studied; None if there is none.

        Among the test split's points with the config's detector under seed 0, it is the one whose K_max is nearest to
        64, the K_max of most of the paper's analyses. Points whose K_max is a share come last.
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
