"""The engine on a pretended GPU (``tests/pretended.py``): the CPU's answers, and few waits and operations.

What these tests find is what a GPU would meet: tensors in the wrong place, waits of the host, and too many operations.
"""

import json
import os
import subprocess
import sys
from statistics import median
from typing import Any

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow
Row = dict[str, Any]

ONCE_A_TEXT = {
    "copy to the device at load.py:_tensor",
    "copy to the device at exactness.py:document",
    "item at load.py:document",
}
ONCE_A_PROMPT = {
    "item at passes.py:equals",  # whether two answers have the same prompt
    "copy to the host at drafts.py:__init__",  # document and question, to look the next tokens up
    "synchronize at prefill.py:resumed",
    "copy to the device at document.py:fill",
    "copy to the host at saved.py:save",
    "item at adakv.py:keep",
    "item at snapkv.py:compress",
    "copy to the device at freqkv.py:__init__",
    "item at llmlingua2.py:_without_opening",
    "tolist at llmlingua2.py:_without_opening",
    "copy to the host at exactness.py:against_full_attention",
}
READ = "tolist at token_reader.py:_on_host"
FETCHED = "copy to the host at store.py:blocks"
GUESSED = "item at drafts.py:guess"
COUNTED = "item at passes.py:run_together"  # the blocks that top-p left
LAYERS = {"llama": 2, "qwen2": 2, "qwen3": 2, "yarn": 2, "tiny": 6}
AT_532DABC = {"InfLLM": (2585, 5277), "UT-ACA": (2622, 5337)}
"""Kernels, and operations of the host, of one such step before these tests were there (commit 532dabc)."""


@pytest.fixture(scope="module")
def printed() -> list[Row]:
    """The rows of ``on_pretended.py``, which needs a process in which utaca is not imported yet."""
    command = [sys.executable, str(ROOT / "tests/on_pretended.py")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def rows(printed: list[Row]) -> list[Row]:
    return [row for row in printed if "case" in row]


@pytest.fixture(scope="module")
def steps(printed: list[Row]) -> list[Row]:
    return [row for row in printed if "step" in row]


def test_answers_are_the_cpu_s(rows: list[Row]) -> None:
    differing = [f"{row['reader']} {row['dtype']} {row['storage']} {row['case']}: {row['note']}" for row in rows]
    differing = [line for line, row in zip(differing, rows, strict=True) if not row["exact"]]
    assert not differing
    assert all(row["equal"] == row["tokens"] for row in rows if row["dtype"] == "float32")
    ordinary = [row for row in rows if row["dtype"] == "bfloat16" and not row["case"].startswith("graph: ")]
    equal, compared = (sum(row[name] for row in ordinary) for name in ("equal", "tokens"))
    assert equal > 0.95 * compared, "decisions that hang on rounding are few"


def test_every_case_ran_in_both_types_and_places(rows: list[Row]) -> None:
    of_llama = {(row["dtype"], row["storage"]): set() for row in rows}
    for row in rows:
        if row["reader"] == "llama":
            of_llama[row["dtype"], row["storage"]].add(row["case"])
    assert set(of_llama) == {(dtype, where) for dtype in ("float32", "bfloat16") for where in ("device", "host")}
    assert of_llama["float32", "device"] == of_llama["bfloat16", "device"]
    assert len(of_llama["float32", "device"]) > 40
    missing = of_llama["float32", "device"] - of_llama["float32", "host"]
    assert all(name.startswith(("method: ", "UT-ACA on ", "memory: all tokens", "graph: ")) for name in missing)
    assert {row["reader"] for row in rows} == {"llama", "tiny", "qwen2", "qwen3", "yarn"}


def test_the_host_waits_once_for_each_pass_that_is_read(rows: list[Row]) -> None:
    for row in rows:
        waits = dict(row["waits"])
        if row["case"] != "full attention":
            assert waits.pop(READ) == row["passes"], row
        allowed = ONCE_A_TEXT | ONCE_A_PROMPT | ({FETCHED} if row["storage"] == "host" else set())
        allowed |= {GUESSED} if row["case"] == "drafts under fewer blocks" else set()
        allowed |= {COUNTED} if row["case"] == "method: top_p" else set()
        assert set(waits) <= allowed, row


def test_host_storage_waits_once_more_for_each_layer_of_a_pass(rows: list[Row]) -> None:
    on_host = [row for row in rows if row["storage"] == "host"]
    assert on_host
    for row in on_host:
        fetched, layers = row["waits"].get(FETCHED, 0), LAYERS[row["reader"]]
        assert fetched % layers == 0, row
        if "shared passes" not in row["case"] and row["case"] != "answers that come and go":
            # Rows of several documents or histories fetch their blocks by themselves.
            assert 0 < fetched <= layers * row["model_passes"], row


@pytest.mark.parametrize(
    ("storage", "graphs", "waits"), [("device", False, 1), ("device", True, 1), ("host", False, 33)]
)
def test_a_step_waits_for_its_token(steps: list[Row], storage: str, graphs: bool, waits: int) -> None:
    of_this = [row for row in steps if (row["storage"], row["graphs"]) == (storage, graphs)]
    assert len(of_this) == 2 * 22
    assert {sum(row["waits"].values()) for row in of_this} == {waits}


@pytest.mark.parametrize("storage", ["device", "host"])
def test_a_step_starts_half_the_kernels_that_it_did(steps: list[Row], storage: str) -> None:
    ordinary = [row for row in steps if row["storage"] == storage and not row["graphs"]]
    for name, found in _by_point(ordinary).items():
        kernels, operations = AT_532DABC[name]
        # The fewest: once a block has left the window after the document, steps also look at that one.
        assert min(row["kernels"] for row in found) <= 0.5 * kernels, name
        assert min(row["operations"] for row in found) <= 0.51 * operations, name


def test_a_replayed_step_starts_few_kernels(steps: list[Row]) -> None:
    for name, found in _by_point([row for row in steps if row["graphs"]]).items():
        # The first step records the graph.
        later = found[1:]
        assert median(row["kernels"] for row in later) < 70, name
        assert median(row["operations"] for row in later) < 140, name


def test_a_graph_keeps_no_document(printed: list[Row]) -> None:
    (row,) = (row for row in printed if "freed" in row)
    assert row["freed"]
    assert row["replays"] > 0


def _by_point(steps: list[Row]) -> dict[str, list[Row]]:
    return {name: [row for row in steps if row["step"] == name] for name in ("InfLLM", "UT-ACA")}


# The device itself


RULES = {
    "(x + 1).held.tolist()": "[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]",
    "(x + torch.tensor(1.0)).device": "npu:0",
    "x + torch.ones(6)": "RuntimeError",
    "x[0].item(), events.waits.total()": "(0.0, 1)",
    "x.tolist() and x.cpu().device, events.waits.total()": "(device(type='cpu'), 2)",
    "x.copy_(torch.ones(6)).device, events.waits.total()": "(device(type='npu', index=0), 1)",
    "x.copy_(pinned).device, events.waits.total()": "(device(type='npu', index=0), 1)",
    "x.copy_(pinned, non_blocking=True).device, events.waits.total()": "(device(type='npu', index=0), 0)",
    "(x.view(2, 3).T[0] + 1).shape, events.kernels": "(torch.Size([2]), Counter({'add': 1}))",
    "torch.nn.functional.rms_norm(x, (6,)) is None or events.kernels": "Counter({'_fused_rms_norm': 1})",
}
"""What an expression gives on the device, where ``x`` is a tensor of it: a value, or the name of an error."""
EVALUATE = """
import json, sys, pretended
pretended.install()
import torch
events, found = pretended.EVENTS, []
with pretended.device():
    for expression in json.loads(sys.argv[1]):
        x, pinned = torch.arange(6.0, device="npu"), torch.ones(6).pin_memory()
        events.clear()
        try:
            found.append(str(eval(expression)))
        except Exception as error:
            found.append(type(error).__name__)
print(json.dumps(found))
"""


def test_the_pretended_device_keeps_a_device_s_rules() -> None:
    command = [sys.executable, "-c", EVALUATE, json.dumps(list(RULES))]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert dict(zip(RULES, json.loads(done.stdout), strict=True)) == RULES
