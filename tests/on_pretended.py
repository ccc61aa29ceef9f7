"""Runs on the pretended GPU what a test then looks at: ``python tests/on_pretended.py``, which prints JSON lines.

First lines with a ``case``: the cases of ``bench/exactness.py``, each with the waits of the host and the passes of the
model. Then lines with a ``step``: what a decoding step of the shape of Llama-3.1-8B starts on the device.
At last whether a document is ``freed`` whose answer replayed a graph.
"""

import gc
import json
import sys
import weakref
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / folder) for folder in ("src", "bench", "tests")]

import pretended  # noqa: E402

pretended.install()

import exactness  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig  # noqa: E402

import utaca  # noqa: E402
from utaca.decoding.triggers import Detected, Replayed  # noqa: E402
from utaca.detection.detector import Detector  # noqa: E402
from utaca.readers.attention import ATTENTION  # noqa: E402
from utaca.readers.load import Reader  # noqa: E402
from utaca.settings import schema  # noqa: E402

EVERY_CASE, FEW_CASES = ("llama",), ("tiny", "qwen2", "qwen3", "yarn")
LAYERS = 32
LENGTH, NEW = 1008, 22
"""Tokens of the document, and of an answer, during which a block leaves the window."""


def show(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)


def cases() -> None:
    """Print a row for each case."""
    arguments = {"place": pretended.move, "within": pretended.device}
    for row in exactness.rows(pretended.NAME, every_case=EVERY_CASE, few_cases=FEW_CASES, **arguments):
        events = pretended.EVENTS
        show(row | {"waits": dict(events.waits), "model_passes": events.kernels["embedding"]})
        events.clear()


def freed() -> None:
    """Print whether a document and its graph are freed once nothing refers to an answer any more."""
    reader = narrow_reader("device", True)
    gc.collect()
    gc.disable()
    with pretended.device():
        memory = utaca.prefill(reader, torch.randint(4096, (LENGTH,)))
        utaca.generate(memory, "what is it", budget=4, max_new_tokens=3)
    watched = weakref.ref(memory)
    replays = pretended.EVENTS.kernels["graph"]
    del memory
    show({"freed": watched() is None, "replays": replays})
    gc.enable()


def narrow_reader(storage: str, graphs: bool) -> Reader:
    """A reader with the layers and heads of Llama-3.1-8B: width changes no count of operations."""
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=LAYERS,
        num_attention_heads=32,
        num_key_value_heads=8,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION, dtype=torch.bfloat16)
    memory = schema.MemorySettings(n_init=32, n_local=256, prefill_chunk=256, storage=storage)
    about = {"name": "narrow", "path": "", "device": "cpu", "dtype": "bfloat16", "graphs": graphs}
    settings = schema.ReaderSettings(**about, memory=memory)
    tokenizer = utaca.load_reader("tiny", device="cpu").tokenizer
    model = pretended.move(model.eval().requires_grad_(False))
    with pretended.device():
        reader = Reader(model, tokenizer, settings)
    reader.stop_tokens = frozenset()
    return reader


def steps(storage: str, *, graphs: bool = False) -> None:
    """Print what each decoding step starts: kernels, operations of the host with views, and waits."""
    detector = pretended.move(Detector(schema.DetectorSettings(), 256).eval())
    never = Replayed(Detected(detector), dict.fromkeys(range(NEW), False))
    points = {"InfLLM": {"budget": 16}, "UT-ACA": {"budget": 32, "policy": utaca.Set(16), "trigger": never}}
    reader = narrow_reader(storage, graphs)
    with pretended.device():
        memory = utaca.prefill(reader, torch.randint(4096, (LENGTH,)))
        for name, options in points.items():
            batch = utaca.Batch()
            batch.add(utaca.Decoding(memory, "what is it", max_new_tokens=NEW, **options))
            while batch:
                pretended.EVENTS.clear()
                committed = batch.step()
                if committed:
                    events = pretended.EVENTS
                    about = {"step": name, "storage": storage, "graphs": graphs, "kernels": events.kernels.total()}
                    show(about | {"operations": events.operations, "waits": dict(events.waits)})


if __name__ == "__main__":
    cases()
    steps("device")
    steps("host")
    steps("device", graphs=True)
    freed()
