"""Whether a device answers as the CPU does: the same answers on both, case by case.

``bench/gpu.py`` runs the cases on a GPU. The tests run the same cases on a simulated GPU (``tests/pretended.py``), so a
failure on a real card points to its arithmetic, not to a tensor in the wrong place.
"""

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

import utaca
from utaca.decoding.loop import Batch, generate_together
from utaca.decoding.options import Decoding, Sampling
from utaca.decoding.policies import Policy
from utaca.decoding.triggers import Agreement, Detected, Every, Margin, Replayed, Trigger
from utaca.detection.detector import Detector, distrust
from utaca.memory.block_memory import BlockMemory
from utaca.memory.prefill import passes, prefill, resumed
from utaca.memory.saved import restored, save
from utaca.methods import METHODS, build
from utaca.readers.attention import ATTENTION
from utaca.readers.load import Reader
from utaca.settings import schema
from utaca.trace import Generation, Token

DTYPES = ("float32", "bfloat16")
QUESTION = "Summarize the birth place and hobby of Emma Thompson."
SENTENCES = (
    "Emma Thompson was born in Paris on 3 May 1970. ",
    "The garden was quiet and the river ran low. ",
    "Her hobby is golf, and her brother sells boats. ",
)
LENGTH, TOKENS = 900, 18
"""Tokens of the document, and of an answer: more than a block, so that one leaves the window during the answer."""
SHORT = 500
"""Tokens of the documents that the other methods read."""
ROUNDING = {"float32": 1e-3, "bfloat16": 0.25}
"""Largest difference of a logit that rounding explains; bfloat16 has steps of 1/8 from 16 on."""
FULL = {"float32": 2e-3, "bfloat16": 0.25}
"""Largest difference of a logit from full attention's that rounding explains."""

METHOD_SETTINGS: dict[str, dict[str, Any]] = {
    "window": {"budget": 200},
    "snapkv": {"budget": 200},
    "adakv": {"budget": 200},
    "retrieval_attention": {"initial": 32, "recent": 128, "budget": 64},
    "omnikv": {"budget": 64, "depth": 2, "filters": (0,), "wait": 0},
    "infllm_v2": {"budget": 256, "window": 256, "dense_below": 0},
    "h2o": {"budget": 200, "chunk": 64},
    "tokenselect": {"budget": 64, "n_init": 32, "n_local": 128, "chunk": 64},
    "freqkv": {"budget": 200, "chunk": 64},
    "fastkv": {"budget": 200, "tsp_length": 300},
    # Without its package and classifier it can only keep everything.
    "llmlingua2": {"rate": 1.0},
}
ADJUSTABLE = [name for name, kind in METHODS.items() if name in METHOD_SETTINGS and kind.adjustable]
"""Methods under which UT-ACA may expand a step, block memory left out."""

TOKENS_REPRESENT = "all tokens represent their block"
"""The one memory that needs a document's keys on the device."""
MEMORIES: dict[str, dict[str, Any]] = {
    TOKENS_REPRESENT: {"representatives": "tokens"},
    "far keys packed": {"far_positions": "packed"},
    "prompt retrieves": {"prefill_budget": 4, "question_budget": -1},
    "small chunks": {"prefill_chunk": 48, "question_chunk": 8},
}
"""Block memories that differ from the reader's, by what differs."""

DETECTORS: dict[str, dict[str, Any]] = {
    "margin and embedding": {},
    "retrieval": {"signals": ["margin", "retrieval"]},
    "evidential": {"kind": "evidential", "classes": 2},
    "two classes, no LSTM": {"classes": 2, "lstm": False},
    "no embedding": {"embedding": False},
    "residual": {"site": "residual"},
}
"""Settings of random detectors, by name."""


@dataclass
class Setup:
    """A reader on a device, with detectors on the same device, and where documents lie (``storage``)."""

    reader: Reader
    detectors: Mapping[str, Detector]

    @cached_property
    def document(self) -> Tensor:
        """Ids [LENGTH] of a document: a text for the shipped reader, which was trained on such, else random ids.

        Under random weights the sentences' repeats would give blocks equal scores, which rounding would rank.
        """
        if self.reader.settings.name != "tiny":
            generator = torch.Generator().manual_seed(0)
            ids = torch.randint(self.reader.model.config.vocab_size, (LENGTH,), generator=generator)
            return ids.to(self.reader.device)
        text = "".join(SENTENCES[number % len(SENTENCES)] for number in range(LENGTH))
        return self.reader.encode_document(text)[:LENGTH]

    @cached_property
    def memory(self) -> BlockMemory:
        return prefill(self.reader, self.document)

    @property
    def detected(self) -> Detected:
        return Detected(self.detectors["margin and embedding"])

    def answer(self, **options: Any) -> Generation:
        return utaca.generate(self.memory, QUESTION, **({"max_new_tokens": TOKENS} | options))

    def under(self, **memory: Any) -> "Setup":
        """The setup under other settings of block memory."""
        settings = self.reader.settings
        reader = copy.copy(self.reader)
        reader.settings = replace(settings, memory=replace(settings.memory, **memory))
        return Setup(reader, self.detectors)


class Half(Policy):
    """A policy of one's own, which expands in two steps."""

    def update(self, k: int, k_max: int, token: Token) -> int:
        return max(1, k // 2)

    def expand(self, k: int, k_max: int, token: Token) -> int:
        return max(k + 1, k_max - 1)


Case = Callable[[Setup], list[Generation]]
Place = Callable[[nn.Module], nn.Module]
Within = Callable[[], AbstractContextManager[Any]]


def adaptive(policy: Policy, trigger: Callable[[Setup], Trigger]) -> Case:
    return lambda setup: [setup.answer(budget=8, policy=policy, trigger=trigger(setup))]


def block_cases() -> dict[str, Case]:
    """Answers from block memory as the reader has it, by name."""
    triggers: dict[str, Callable[[Setup], Trigger]] = {
        "detected": lambda setup: setup.detected,
        "margin": lambda setup: Margin(1.0),
        "agreement": lambda setup: Agreement(),
        "agreement.2": lambda setup: Agreement(2),
        "every.3": lambda setup: Every(3),
        "replayed": lambda setup: Replayed(setup.detected, {1: True, 2: False, 7: True}),
    }
    policies = {"set.2": utaca.Set(2), "sub.3": utaca.Sub(3), "half": Half()}
    cases: dict[str, Case] = {
        "InfLLM": lambda setup: [setup.answer(budget=8)],
        "a budget for each step": lambda setup: [setup.answer(budget=[8, 2, 5])],
        "drawn": lambda setup: [setup.answer(budget=4, sampling=Sampling(0.8, 0.9, seed=3))],
        "drafts": lambda setup: [setup.answer(budget=4, drafts=5)],
        "drafts under fewer blocks": lambda setup: [setup.answer(budget=6, drafts=4, draft_budget=2)],
        "all signals, a second budget": lambda setup: [setup.answer(budget=2, measured=True, expanded=8)],
    }
    for trigger_name, trigger in triggers.items():
        cases[f"sub.3, {trigger_name}"] = adaptive(policies["sub.3"], trigger)
    for policy_name, policy in policies.items():
        cases[f"{policy_name}, detected"] = adaptive(policy, triggers["detected"])
    for name in DETECTORS:
        cases[f"detector: {name}"] = adaptive(utaca.Set(2), lambda setup, name=name: Detected(setup.detectors[name]))
    for trigger_name in ("detected", "agreement.2"):
        cases[f"drafts, {trigger_name}"] = lambda setup, name=trigger_name: [
            setup.answer(budget=8, policy=policies["sub.3"], trigger=triggers[name](setup), drafts=5)
        ]
    cases |= {
        "seven points in shared passes": seven_points,
        "documents in shared passes": several_documents,
        "answers that come and go": come_and_go,
        "resumed prefill": resumed_prefill,
        "a document from disk": from_disk,
        "true positions": true_positions,
    }
    return cases


def seven_points(setup: Setup) -> list[Generation]:
    """Fixed and adaptive points of one document."""
    shared = {"reading": setup.memory, "question": QUESTION, "max_new_tokens": TOKENS}
    judged = {"policy": utaca.Sub(2), "trigger": setup.detected}
    points = [Decoding(**shared, budget=budget) for budget in (1, 4, 8)]
    points += [Decoding(**shared, budget=budget, **judged) for budget in (2, 4, 6, 8)]
    return generate_together(points)


def several_documents(setup: Setup) -> list[Generation]:
    """Answers about documents of several lengths, one of them without far blocks."""
    decodings = []
    for length in (100, 400, 700):
        memory = prefill(setup.reader, setup.document[:length])
        decodings.append(Decoding(memory, QUESTION, budget=4, max_new_tokens=TOKENS))
    return generate_together(decodings)


def come_and_go(setup: Setup) -> list[Generation]:
    """A batch as the server has it: one answer joins late, one is dropped."""
    batch = Batch()
    first = batch.add(Decoding(setup.memory, QUESTION, budget=4, max_new_tokens=TOKENS))
    dropped = batch.add(Decoding(setup.memory, QUESTION, budget=2, max_new_tokens=TOKENS))
    for _ in range(5):
        batch.step()
    judged = {"policy": utaca.Set(2), "trigger": setup.detected}
    late = batch.add(Decoding(setup.memory, QUESTION, budget=8, max_new_tokens=TOKENS, **judged))
    batch.drop(dropped)
    while batch:
        batch.step()
    return [first.result(), late.result(), dropped.generation]


def resumed_prefill(setup: Setup) -> list[Generation]:
    """A document whose beginning is taken from another one that was read before."""
    chunk = setup.reader.settings.memory.prefill_chunk
    old = prefill(setup.reader, setup.document[: 3 * chunk])
    # What the window had received is kept when a pass ends; here the passes end with the whole document.
    tokens = setup.document[: 4 * chunk + 5]
    memory = resumed(old, tokens, 3 * chunk, old.attention_mass)
    for _ in passes(memory, 3 * chunk):
        pass
    return [utaca.generate(memory, QUESTION, budget=4, max_new_tokens=TOKENS)]


def from_disk(setup: Setup) -> list[Generation]:
    """A document whose block memory was written to a file and read again."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "document.safetensors"
        save(setup.memory, 0.0, path)
        memory, _ = restored(path, setup.reader, setup.document)
    return [utaca.generate(memory, QUESTION, budget=4, max_new_tokens=TOKENS)]


def short_document(setup: Setup) -> list[Generation]:
    """A document within the window and the initial tokens: its first block becomes far during the answer."""
    m = setup.reader.settings.memory
    memory = prefill(setup.reader, setup.document[: m.n_init + m.n_local - 10])
    return [utaca.generate(memory, QUESTION, budget=4, max_new_tokens=2 * TOKENS)]


def true_positions(setup: Setup) -> list[Generation]:
    memory = prefill(setup.reader, setup.document[:SHORT], clipped=False)
    return [utaca.generate(memory, QUESTION, budget=4, max_new_tokens=TOKENS)]


def method_case(name: str) -> Case:
    def run(setup: Setup) -> list[Generation]:
        method = build(name, METHOD_SETTINGS.get(name, {}))
        reading = method.read(setup.reader, setup.document[:SHORT], 100)
        options = method.options() | {"max_new_tokens": TOKENS}
        return [utaca.generate(method.bind(reading), QUESTION, **options)]

    return run


def adaptive_method_case(name: str) -> Case:
    def run(setup: Setup) -> list[Generation]:
        settings = METHOD_SETTINGS[name]
        base = build(name, settings)
        method = build("utaca", {"budget": settings["budget"], "policy": "sub.64", "base": base})
        reading = method.base.read(setup.reader, setup.document[:SHORT], 100)
        options = method.options(setup.detectors["margin and embedding"]) | {"max_new_tokens": TOKENS}
        return [utaca.generate(method.base.bind(reading), QUESTION, **options)]

    return run


def method_cases() -> dict[str, Case]:
    """One answer by every other method, and UT-ACA on those whose budget may change, by name."""
    names = [name for name in METHODS if name not in (schema.FIXED, schema.ADAPTIVE)]
    cases = {f"method: {name}": method_case(name) for name in names}
    return cases | {f"UT-ACA on {name}": adaptive_method_case(name) for name in ADJUSTABLE}


def memory_cases() -> dict[str, Case]:
    """Answers under other settings of block memory, by name."""

    def case(settings: Mapping[str, Any]) -> Case:
        def run(setup: Setup) -> list[Generation]:
            other = setup.under(**settings)
            judged = {"policy": utaca.Sub(2), "trigger": other.detected}
            return [other.answer(budget=6), other.answer(budget=6, **judged)]

        return run

    return {f"memory: {name}": case(settings) for name, settings in MEMORIES.items()}


def graph_cases() -> dict[str, Case]:
    """Answers whose steps a GPU replays from a graph, by name; on the CPU steps run as ever."""

    def replayed(case: Case) -> Case:
        def run(setup: Setup) -> list[Generation]:
            reader = copy.copy(setup.reader)
            reader.settings = replace(setup.reader.settings, graphs=True)
            other = Setup(reader, setup.detectors)
            return case(other)

        return run

    cases = block_cases()
    chosen = ("InfLLM", "a budget for each step", "drawn", "sub.3, detected", "half, detected", "detector: retrieval")
    # Blocks become far during the answer; and true positions, for which nothing is recorded.
    cases |= {"short": short_document}
    chosen += ("short", "true positions")
    return {f"{GRAPH}{name}": replayed(cases[name]) for name in chosen}


def random_reader(kind: str) -> Reader:
    """A reader of a few layers with random weights of float32, on the CPU, with the shipped reader's tokenizer."""
    classes = {"llama": LlamaConfig, "yarn": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
    config_class: type[PretrainedConfig] = classes[kind]
    sizes = {
        "vocab_size": 4096,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 4096,
        "initializer_range": 0.1,
    }
    if kind == "yarn":
        rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1024}
        sizes["rope_parameters"] = rope
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_class(**sizes), attn_implementation=ATTENTION)
    # Biases are made as 0, so that a lost one would not be seen.
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight, std=0.3)
    memory = schema.MemorySettings(n_init=32, n_local=128, prefill_chunk=128, prefill_budget=2)
    settings = schema.ReaderSettings(name=kind, path="", device="cpu", dtype="float32", memory=memory)
    return Reader(model.eval().requires_grad_(False), utaca.load_reader("tiny", device="cpu").tokenizer, settings)


def random_detectors(reader: Reader) -> dict[str, Detector]:
    """Untrained detectors on the CPU; each distrusts about half of the tokens of one answer."""
    detectors = {}
    for name, settings in DETECTORS.items():
        torch.manual_seed(len(detectors))
        made = Detector(schema.DetectorSettings(**settings), reader.width).eval()
        made.thresholds[made.settings.decision] = float("inf")
        memory = prefill(reader, Setup(reader, {}).document)
        judged = {"policy": utaca.Set(2), "trigger": Detected(made), "budget": 8, "max_new_tokens": TOKENS}
        trace = utaca.generate(memory, QUESTION, **judged).trace
        scores = distrust(torch.tensor([token.gdm for token in trace]), made.settings.decision).sort().values
        # Between two scores: on one of them, rounding would decide.
        middle = len(scores) // 2
        made.thresholds[made.settings.decision] = float(scores[middle - 1 : middle + 1].mean())
        detectors[name] = made
    return detectors


def moved(setup: Setup, place: Place, storage: str, within: Within = nullcontext) -> Setup:
    """A copy of a setup on another device, whose context is ``within``."""
    settings = setup.reader.settings
    memory = replace(settings.memory, storage=storage)
    # A copied model would keep the hooks that the first reader put on it.
    model = AutoModelForCausalLM.from_config(setup.reader.model.config, attn_implementation=ATTENTION)
    model = model.to(setup.reader.dtype).eval().requires_grad_(False)
    model.load_state_dict(setup.reader.model.state_dict())
    model = place(model)
    detectors = {name: place(copy.deepcopy(detector)) for name, detector in setup.detectors.items()}
    with within():
        reader = Reader(model, setup.reader.tokenizer, replace(settings, memory=memory))
    # Answers are of one length.
    reader.stop_tokens = frozenset()
    return Setup(reader, detectors)


def compared(expected: Sequence[Generation], found: Sequence[Generation], dtype: str) -> dict[str, Any]:
    """How far answers agree, as the fields ``tokens``, ``equal``, ``exact``, ``passes`` and ``note`` of a row."""
    tokens = sum(len(answer.trace) for answer in expected)
    equal = 0
    notes = []
    exact = len(expected) == len(found)
    for number, (here, there) in enumerate(zip(expected, found, strict=True)):
        for step, (mine, other) in enumerate(zip(here.trace, there.trace, strict=True)):
            if _outcome(mine) == _outcome(other):
                equal += 1
                continue
            rounded = _first_difference(mine, other) <= ROUNDING[dtype]
            exact = exact and rounded
            why = "its logits agree up to rounding" if rounded else "its logits differ"
            notes.append(f"answer {number + 1} differs from step {step + 1} on, where {why}")
            break
    passes_taken = sum(len(token.passes) for answer in found for token in answer.trace)
    return {"tokens": tokens, "equal": equal, "exact": exact, "passes": passes_taken, "note": "; ".join(notes)}


def _first_difference(mine: Token, other: Token) -> float:
    """Largest difference of the ten best logits in the first passes of two tokens that follow the same tokens."""
    first, second = (torch.tensor((token.tentative or token).top_logits) for token in (mine, other))
    return float((first - second).abs().max())


def _outcome(token: Token) -> tuple[int, int, bool]:
    return token.token, token.k, token.rolled_back


@torch.inference_mode()
def against_full_attention(setup: Setup, dtype: str, reference: Tensor) -> dict[str, Any]:
    """Logits of the last token with every block selected, against full attention's of the same weights."""
    length = len(setup.document) - 1
    memory = prefill(setup.reader, setup.document[:length], clipped=False)
    branch, _, _ = memory.begin(setup.document[length:], 1, memory.layout.blocks(length), {})
    step = branch.plan(setup.document[length:], memory.layout.blocks(length))
    branch.run([step])
    difference = float((step.logits.cpu() - reference).abs().max())
    exact = difference <= FULL[dtype]
    note = f"largest difference of a logit {difference:.2g}"
    return {"tokens": 1, "equal": int(exact), "exact": exact, "passes": 1, "note": note}


@torch.inference_mode()
def full_attention(setup: Setup) -> Tensor:
    """Logits [V] of the document's last token under transformers' own attention."""
    model = setup.reader.model
    model.set_attn_implementation("sdpa")
    try:
        hidden = model.base_model(setup.document[None], use_cache=False).last_hidden_state[0, -1]
        return setup.reader.logits(hidden).cpu()
    finally:
        model.set_attn_implementation(ATTENTION)


EVERY_CASE = ("tiny", "llama")
FEW_CASES = ("qwen2", "qwen3", "yarn")
"""Readers on which a full run takes every case, and those on which it takes few: the shipped one and random ones."""
GRAPH = "graph: "
DEVICE_CASES = ("method:", "UT-ACA on", f"memory: {TOKENS_REPRESENT}")
"""How the names of cases begin for which documents cannot lie in host memory, or for which that means nothing."""
FEW = ("InfLLM", "sub.3, detected", "seven points in shared passes")


def rows(
    device: str,
    *,
    small: bool = False,
    every_case: Sequence[str] = EVERY_CASE,
    few_cases: Sequence[str] = FEW_CASES,
    place: Place | None = None,
    within: Within = nullcontext,
) -> Iterator[dict[str, Any]]:
    """Run every case on the CPU and on ``device``, and yield a row for each.

    A row has ``reader``, ``dtype``, ``storage``, ``case``, the number of ``tokens``, how many are ``equal`` (token,
    budget, rollback) before an answer's first difference, the number of ``passes`` that the answers took, and a
    ``note``. A case is ``exact`` if all tokens are equal up to decisions that hang on rounding: where tokens differ
    first, their logits must agree up to :data:`ROUNDING`. A case that raises is not exact; the note is its error.

    ``every_case`` and ``few_cases`` name readers; ``small`` takes few cases of the shipped one. ``place`` puts a module
    on the device (default: ``module.to(device)``), ``within`` is the context that the device's cases run in.
    """
    place = place or (lambda module: module.to(device))
    if small:
        every_case = ()
        few_cases = ("tiny",)
    for name in (*every_case, *few_cases):
        reader = utaca.load_reader("tiny", device="cpu", dtype="float32") if name == "tiny" else random_reader(name)
        reader.stop_tokens = frozenset()
        detectors = random_detectors(reader)
        # Graphs come last: a recording that fails may harm the process.
        cases = block_cases() | memory_cases() | method_cases() | graph_cases()
        if name in few_cases:
            cases = {key: cases[key] for key in FEW}
        for dtype in DTYPES:
            on_cpu = Setup(reader, detectors)
            if dtype != "float32":
                on_cpu = moved(on_cpu, lambda module, dtype=dtype: _converted(module, dtype), "device")
            yield from _rows_of(on_cpu, cases, dtype, place, within)


def _converted(module: nn.Module, dtype: str) -> nn.Module:
    """A reader in another type; detectors stay in float32."""
    return module if isinstance(module, Detector) else module.to(getattr(torch, dtype))


def _rows_of(
    on_cpu: Setup, cases: Mapping[str, Case], dtype: str, place: Place, within: Within
) -> Iterator[dict[str, Any]]:
    expected = {key: case(on_cpu) for key, case in cases.items()}
    reference = full_attention(on_cpu)
    name = on_cpu.reader.settings.name
    with_graphs = {key: case for key, case in cases.items() if key.startswith(GRAPH)}
    without = {key: case for key, case in cases.items() if key not in with_graphs}
    # Where documents lie matters to block memory only.
    anywhere = {key: case for key, case in without.items() if not key.startswith(DEVICE_CASES)}
    for storage, chosen in (("device", without), ("host", anywhere), ("device", with_graphs)):
        if not chosen:
            continue
        about = {"reader": name, "dtype": dtype, "storage": storage}
        on_device = moved(on_cpu, place, storage, within)
        for key, case in chosen.items():
            yield about | {"case": key} | _row(partial(_against_cpu, case, on_device, expected[key], dtype), within)
        if chosen is not with_graphs:
            row = _row(partial(against_full_attention, on_device, dtype, reference), within)
            yield about | {"case": "full attention"} | row


def _against_cpu(case: Case, setup: Setup, expected: Sequence[Generation], dtype: str) -> dict[str, Any]:
    return compared(expected, case(setup), dtype)


def _row(case: Callable[[], dict[str, Any]], within: Within) -> dict[str, Any]:
    """The fields of a case's row, also if the case raises."""
    try:
        with within():
            return case()
    except Exception as error:
        note = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return {"tokens": 0, "equal": 0, "exact": False, "passes": 0, "note": note}
