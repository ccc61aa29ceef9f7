"""SnapKV and Ada-KV keep the tokens that kvpress keeps, for the same weights and input.

kvpress scores for each key-value head, pools by the mean, counts the window into the budget, and holds Ada-KV's
safeguard as a lower bound; these are settings here. It runs in an environment of its own (`make oracle`).
"""

import json
import subprocess
from pathlib import Path

import pytest
from small import make_reader, some_tokens

from utaca.methods import build

PYTHON = Path(".venv-oracle") / "bin" / "python"
KINDS = ["llama", "llama3-rope", "qwen2-wide", "qwen3"]
FLOORS = [None, 0.0, 0.2, 0.6]
SIZES = {"budget": 80, "window": 16, "kernel": 7}


@pytest.fixture(scope="module")
def answers(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, float | None], list]:
    """What kvpress keeps of 300 tokens in each case."""
    if not (root / PYTHON).is_file():
        pytest.skip("kvpress is not there; `make oracle` installs it beside")
    folder, requests = tmp_path_factory.mktemp("readers"), {}
    for kind in KINDS:
        make_reader(kind).model.save_pretrained(folder / kind)
        for floor in FLOORS:
            about = {"model": str(folder / kind), "tokens": some_tokens(300).tolist(), "floor": floor}
            requests[kind, floor] = about | SIZES
    command, given = [root / PYTHON, root / "tests" / "oracle.py"], json.dumps(list(requests.values()))
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(requests, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_kept_tokens_are_kvpresss(kind: str, floor: float | None, answers: dict) -> None:
    reader, tokens = make_reader(kind), some_tokens(300)
    settings = {"pooling": "avg", "heads": "kv", **SIZES}
    adaptive = {"floor": floor, "safeguard": "least"}
    method = build("snapkv", settings) if floor is None else build("adakv", settings | adaptive)
    state = method.state(method.read(reader, tokens[:280], 20), 0, 20)
    state.advance(tokens[280:])
    found = [[[t for t in row if t >= 0] for row in chosen.tolist()] for chosen in state.chosen]
    assert found == answers[kind, floor]
