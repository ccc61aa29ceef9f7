"""The trace viewer: what it holds of documents and traces, and how it behaves in a browser."""

from __future__ import annotations

import base64
import gzip
import json
import random
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser
from configs import reference_config
from conftest import ROOT
from transformers import AutoTokenizer

from utaca.errors import UserError
from utaca.readers.prompts import frame
from utaca.records import write
from utaca.reporting.traces import Text, encoder, page
from utaca.settings import schema

N_INIT, SIZE, LAYERS = 3, 4, 2
POINTS = [("infllm", 3, ""), ("utaca", 5, "sub.2")]
HOSTILE = [
    "<script>window.ran = 1</script>",
    "</script><script>window.ran = 2</script>",
    '"><img src=x onerror="window.ran = 3">',
    "<!--<script>",
]


@pytest.fixture
def config() -> schema.Config:
    memory = schema.Memory(block_size=SIZE, n_init=N_INIT, n_local=8)
    return reference_config(reader=schema.Reader(name="tiny", path="data/readers/tiny", memory=memory))


def words(text: str) -> Text:
    """A token a character pair, behind a template of one token."""
    offsets = [(-2, 0), *((at, min(at + 2, len(text))) for at in range(0, len(text), 2))]
    return Text(offsets, lambda token: f"<{token}>")


def document(name: str, text: str, spans: list[tuple[int, int]] = (), person: str = "Ada Lopez") -> dict:
    return {
        "id": name, "split": "test", "person": person, "facts": [{"attribute": "hobby", "value": "Chess"}],
        "text": text, "n_tokens": 0, "corpus": "embedded",
        "spans": [{"kind": "biography", "source": name, "start": a, "end": b} for a, b in spans],
    }  # fmt: skip


def step(name: str, point: str, number: int, text: str, k: int, blocks: list[list[int]], **columns: Any) -> dict:
    row = {
        "document": name, "point": point, "step": number, "token": 10 + number, "text": text, "k": k, "margin": 2.0,
        "logprob": -0.5, "rolled_back": False, "intervened": False, "p_hallucinated": None, "p_correct": None,
        "p_unknown": None, "attended": 20, "top_tokens": [10 + number, 7], "top_logits": [3.0, 1.0],
        "selected": blocks, "scores": [[0.0] * len(ids) for ids in blocks],
    } | columns  # fmt: skip
    row = {"tentative_k": row["k"], "tentative_token": row["token"], **row}
    for column in ("margin", "logprob", "top_tokens", "top_logits"):
        row.setdefault(f"tentative_{column}", row[column])
    return row


def files(folder: Path, documents: list[dict], traces: list[dict], question: str = "Which hobby?") -> dict[str, Any]:
    """Arguments of :func:`page`: answers of both points, a file of traces, scores of 0.75."""
    keys = [(d, *point) for point in POINTS for d in documents]
    answers = [
        {
            "document": d["id"], "suite": "test", "point": f"p{budget}", "method": method, "budget": budget,
            "policy": policy, "question": question, "text": "", "n_context": len(words(d["text"]).offsets),
            "n_generated": 4, "finish": "eos", "selected": 12.0, "attended": 1.0, "selected_with_tentative": 1.0,
            "attended_with_tentative": 1.0, "rollbacks": 1, "prefill_seconds": 0.0, "decode_seconds": 0.0,
            "peak_bytes": 1,
        } for d, method, budget, policy in keys
    ]  # fmt: skip
    scores = [
        {
            "document": d["id"], "suite": "test", "point": f"p{budget}", "attribute": "hobby", "prediction": "",
            "reference": "", "cas": 0.75, "string_match": 0.0, "reason": "", "failure": None,
        } for d, _, budget, _ in keys
    ]  # fmt: skip
    made = {}
    for kind, rows in {"answers": answers, "traces": traces, "scores": scores}.items():
        write(folder / f"{kind}.parquet", kind, rows)
        made[kind] = [folder / f"{kind}.parquet"]
    return {"documents": documents, **made, "encode": words}


def story(name: str, pieces: tuple[str, ...] = (" The", " hobby", " is", " Chess")) -> list[dict]:
    """An answer of four tokens under both points; the third of the second point is rolled back."""
    rolled = {
        "rolled_back": True, "tentative_token": 99, "tentative_k": 1, "tentative_margin": 0.25,
        "tentative_logprob": -1.5, "tentative_top_tokens": [99, 12], "tentative_top_logits": [2.0, 1.0],
    }  # fmt: skip
    rows = []
    for number, text in enumerate(pieces):
        rows.append(step(name, "p3", number, text, 3, [[0, 2, 5], [1, 2, 6]], margin=0.1 * number))
        seen = {"p_hallucinated": 0.6, "p_correct": 0.3, "p_unknown": 0.1} | (rolled if number == 2 else {})
        rows.append(step(name, "p5", number, text, 5 - number, [[0, 2, 4 + number], [1, 2]], **seen))
    return rows


def content(html: str) -> dict[str, Any]:
    return json.loads(html.split('id="data">')[1].split("</script>")[0])


def unpacked(html: str) -> list[dict[str, Any]]:
    return [json.loads(gzip.decompress(base64.b64decode(d["packed"]))) for d in content(html)["documents"]]


def write_page(path: Path, html: str) -> Path:
    path.write_text(html, encoding="ascii")
    return path


# What it holds


def test_blocks_are_the_text_of_their_tokens(tmp_path, config):
    rng = random.Random("blocks")
    text = "".join(rng.choice("abcdefgh ") for _ in range(101))
    spans = [(3, 9), (20, 21), (33, 61)]
    args = files(tmp_path, [document("d0", text, spans)], story("d0"))
    (shown,) = unpacked(page(**args, config=config))
    offsets = words(text).offsets
    selected = list(accumulate(shown["selected"]))
    assert selected == [0, 1, 2, 4, 5, 6, 7]
    for block, segments in zip(selected, shown["texts"], strict=True):
        own = [text[max(0, a) : b] for a, b in offsets[N_INIT + SIZE * block : N_INIT + SIZE * (block + 1)]]
        assert "".join(segments) == "".join(own)
        for plain, marked in zip(segments[::2], [*segments[1::2], ""], strict=True):
            assert plain + marked in text
    n_blocks = (len(offsets) - N_INIT) // SIZE
    covered = {
        block
        for block in range(n_blocks)
        for a, b in offsets[N_INIT + SIZE * block : N_INIT + SIZE * (block + 1)]
        if any(a < end and b > start for start, end in spans)
    }
    assert (shown["blocks"], set(shown["told"])) == (n_blocks, covered)
    marked = {block for block, segments in zip(selected, shown["texts"], strict=True) if any(segments[1::2])}
    assert marked == covered & set(selected)


def test_blocks_agree_with_the_shipped_tokenizer():
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "data" / "readers" / "tiny")
    before, _ = frame(tokenizer)
    text = "Emma was born on April 18, 1861.  She\n\nlikes “Rock climbing” and 1,234 cafés.\n" * 3
    encoded = encoder(tokenizer)(text)
    ids = tokenizer(before + text, add_special_tokens=False)["input_ids"]
    assert len(encoded.offsets) == len(ids)
    cuts = [max(0, start) for start, _ in encoded.offsets[8::8]]
    whole = [tokenizer.decode(ids[at : at + 8]) for at in range(8, len(ids), 8)]
    mine = [text[a:b] for a, b in zip(cuts, [*cuts[1:], len(text)], strict=True)]
    assert mine == whole
    assert "".join(encoded.piece(token) for token in ids[-5:]) == tokenizer.decode(ids[-5:])


def test_a_step_holds_both_passes(tmp_path, config):
    args = files(tmp_path, [document("d0", "x" * 90)], story("d0"))
    (shown,) = unpacked(page(**args, config=config))
    fixed, adaptive = shown["points"]
    assert (fixed["label"], fixed["cas"], adaptive["policy"]) == ("p3", 0.75, "sub.2")
    assert all("p" not in each and "rejected" not in each for each in fixed["steps"])
    rolled = adaptive["steps"][2]
    assert [("rejected" in each) for each in adaptive["steps"]] == [False, False, True, False]
    assert shown["pieces"][rolled["rejected"]["token"]] == "<99>"
    assert (rolled["rejected"]["k"], rolled["pass"]["k"], rolled["rejected"]["margin"]) == (1, 3, 0.25)
    assert rolled["p"] == [0.6, 0.3, 0.1]
    assert [list(accumulate(layer)) for layer in rolled["blocks"]] == [[0, 2, 6], [1, 2]]
    assert [shown["pieces"][piece] for piece, _ in rolled["pass"]["top"]] == ["<12>", "<7>"]


def test_the_page_is_bounded_and_the_same_in_every_run(tmp_path, config):
    documents = [document(f"d{n}", "y" * 90) for n in range(9)]
    args = files(tmp_path, documents, [row for d in documents for row in story(d["id"])])
    html = page(**args, config=config)
    assert html.isascii()
    assert len(content(html)["documents"]) == config.report.traced_documents == 6
    assert "6 of 9 documents" in content(html)["about"]
    again = files(tmp_path, documents[::-1], [row for d in documents[::-1] for row in story(d["id"])])
    assert page(**again, config=config) == html
    small = content(page(**args, config=config, max_bytes=2 * len(content(html)["documents"][0]["packed"])))
    assert 1 <= len(small["documents"]) <= 2
    assert f"{len(small['documents'])} of 9 documents" in small["about"]


def test_other_tokens_than_those_decoded_are_refused(tmp_path, config):
    args = files(tmp_path, [document("d0", "x" * 90)], story("d0"))
    with pytest.raises(UserError, match="has 91 tokens, but was decoded as 46"):
        page(**args | {"encode": lambda text: Text([(0, 1)] * 91, str)}, config=config)
    with pytest.raises(UserError, match="'d0' has answers but is not in the documents file"):
        page(**args | {"documents": []}, config=config)


# In a browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium; on Debian: apt-get install chromium")
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


def open_page(chromium: Browser, path: Path) -> None:
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.open(path)
    chromium.wait(lambda: chromium.run("!!document.querySelector('.token.here')"))


def here(chromium: Browser) -> tuple[str, str]:
    """Point and token chosen, as the panel names them."""
    token, where = chromium.text(".big"), chromium.text("#panel .sub")
    return token.strip("“” "), where


def place(chromium: Browser, name: str) -> dict[str, float]:
    """Where an element lies in the window."""
    return chromium.run(f"document.getElementById('{name}').getBoundingClientRect().toJSON()")


def test_tokens_points_and_blocks_by_keyboard_and_mouse(chromium, tmp_path, config):
    text = "".join(f"word{n:02d} " for n in range(30))
    documents = [document("d0", text, [(20, 40)]), document("d1", text)]
    traces = [row for d in documents for row in story(d["id"])]
    open_page(chromium, write_page(tmp_path / "t.html", page(**files(tmp_path, documents, traces), config=config)))

    # it opens on the first rollback, with both passes beside each other
    assert here(chromium) == ("is", "token 3 of 4, UT-ACA K_max=5, sub.2 (p5)")
    panel = chromium.text("#panel")
    assert "rolled back" in panel
    assert "60.0\u00a0%" in panel
    assert "<99>" in panel
    assert chromium.run("document.querySelectorAll('.token.rolled').length") == 1
    assert chromium.run("[...document.querySelectorAll('#lane-1 .k')].map((k) => k.textContent)") == list("5432")

    chromium.press("ArrowLeft")
    assert here(chromium)[0] == "hobby"
    assert chromium.run("document.activeElement.id") == "t-1-1"
    chromium.press("ArrowUp")
    assert here(chromium) == ("hobby", "token 2 of 4, InfLLM K=3 (p3)")
    assert "no detector here" in chromium.text("#panel")
    chromium.press("End", "ArrowDown", "ArrowDown", "ArrowRight")
    assert here(chromium) == ("Chess", "token 4 of 4, UT-ACA K_max=5, sub.2 (p5)")
    chromium.press("R")
    assert here(chromium)[0] == "is"
    chromium.press("Home", "r")
    assert here(chromium)[0] == "is"

    # blocks: the next one, one by layer, one by a click on the strip
    def block() -> str:
        return chromium.text("#block h3")

    def shown() -> str:
        return chromium.run("document.querySelector('#block-text').textContent")

    offsets = words(text).offsets

    def expected(number: int) -> str:
        return "".join(text[max(0, a) : b] for a, b in offsets[N_INIT + SIZE * number : N_INIT + SIZE * (number + 1)])

    number = int(block().split()[1])
    assert shown() == expected(number)
    assert chromium.run("document.querySelector('mark').textContent") in text[20:40]
    chromium.press("]")
    assert int(block().split()[1]) > number
    before = chromium.run("document.querySelectorAll('#strip .chosen').length")
    chromium.press("l")
    assert chromium.run("document.querySelectorAll('#strip .chosen').length") > before
    chromium.press("l")
    box = chromium.run(
        "(({left, top, width}) => [left, top, width])(document.getElementById('strip').getBoundingClientRect())"
    )
    x = box[0] + box[2] * (N_INIT + SIZE * 6.5) / len(offsets)
    for kind in ("mousePressed", "mouseReleased"):
        chromium.call("Input.dispatchMouseEvent", type=kind, x=x, y=box[1] + 20, button="left", clickCount=1)
    assert (block(), shown()) == ("Block 6", expected(6))

    # a token under the pointer is shown while it is there
    spot = chromium.run(
        "(({left, top}) => [left + 3, top + 5])(document.getElementById('t-0-0').getBoundingClientRect())"
    )
    chromium.call("Input.dispatchMouseEvent", type="mouseMoved", x=spot[0], y=spot[1])
    chromium.wait(lambda: here(chromium)[1] == "token 1 of 4, InfLLM K=3 (p3)")
    chromium.call("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    chromium.wait(lambda: here(chromium)[0] == "is")

    # points are put aside, documents changed, a place found again by its address
    chromium.run("document.querySelectorAll('#points button')[0].click()")
    assert chromium.run("document.querySelectorAll('.lane').length") == 1
    chromium.press("j")
    chromium.wait(lambda: chromium.run("document.getElementById('document').value") == "1")
    assert chromium.run("location.hash") == "#d1/p5/2"
    assert chromium.complaints == []
    assert all(address.startswith(("file:", "about:")) for address in chromium.requests)


def test_nothing_that_a_model_wrote_is_run(chromium, tmp_path, config):
    pieces = tuple(f" {text}" for text in HOSTILE)
    text = "".join(HOSTILE) * 3
    made = document("<b>d0</b>", text, [(10, 60)], person=HOSTILE[2])
    args = files(tmp_path, [made], story("<b>d0</b>", pieces), question=HOSTILE[1])
    args["encode"] = lambda text: Text(words(text).offsets, lambda token: HOSTILE[token % 4])
    open_page(chromium, write_page(tmp_path / "t.html", page(**args, config=config)))
    assert chromium.text("h2") == HOSTILE[2]
    assert HOSTILE[1] in chromium.text(".question")
    chromium.press("Home")
    for piece in HOSTILE:
        assert piece in chromium.text(".big")
        chromium.press("ArrowRight")
    assert chromium.run("document.querySelector('#block-text').textContent") in text
    assert chromium.run(
        "window.ran === undefined && !document.querySelector('main img, aside img, aside b, main script')"
    )
    assert chromium.complaints == []
    # markup put there by force would not run either
    chromium.run("""document.body.insertAdjacentHTML("beforeend", '<img src=x onerror="window.ran = 5">')""")
    assert chromium.run("new Promise((done) => setTimeout(() => done(window.ran), 200))") is None
