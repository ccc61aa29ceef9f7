"""The trace viewer: what it holds of documents and traces, and how it behaves in a browser."""

import base64
import gzip
import json
import random
from itertools import accumulate
from pathlib import Path
from typing import Any

import factories
import pytest
from browser import HOSTILE, Browser, content
from configs import point, reference_config

from utaca.errors import UserError
from utaca.records import write
from utaca.reporting.traces import TokenizedText, fragment, page
from utaca.settings import schema

N_INIT, SIZE, LAYERS = 3, 4, 2
POINTS = [point("infllm", 3, name="p3"), point("utaca", 5, "sub.2", name="p5")]


@pytest.fixture
def config() -> schema.Config:
    memory = schema.MemorySettings(block_size=SIZE, n_init=N_INIT, n_local=8)
    return reference_config(reader=schema.ReaderSettings(name="tiny", path="data/readers/tiny", memory=memory))


def words(text: str) -> TokenizedText:
    """A token a character pair, behind a template of one token."""
    offsets = [(-2, 0), *((at, min(at + 2, len(text))) for at in range(0, len(text), 2))]
    return TokenizedText(offsets, lambda token: f"<{token}>")


def text_of(block: int, text: str) -> str:
    """What a document says in a block, up to its end."""
    tokens = words(text).offsets[N_INIT + SIZE * block : N_INIT + SIZE * (block + 1)]
    return "".join(text[max(0, start) : end] for start, end in tokens)


def covered(text: str, *spans: tuple[int, int]) -> set[int]:
    """Complete blocks of a document with tokens of the characters of ``spans``."""
    offsets = words(text).offsets
    return {
        block
        for block in range((len(offsets) - N_INIT) // SIZE)
        for a, b in offsets[N_INIT + SIZE * block : N_INIT + SIZE * (block + 1)]
        if any(a < end and b > start for start, end in spans)
    }


def document(name: str, text: str, spans: list[tuple[int, int]] = (), person: str = "Ada Lopez") -> dict:
    told = [{"kind": "biography", "source": name, "start": start, "end": end} for start, end in spans]
    return factories.long_document(name, text, {"hobby": "Chess"}, person=person, spans=told)


def files(folder: Path, documents, traces, question="Which hobby?", cas=None, reason="judged") -> dict[str, Any]:
    """Arguments of :func:`page`: answers of both points, a file of traces, scores of 0.75 or as in ``cas``."""
    answers, scores = [], []
    for of in POINTS:
        for d in documents:
            length, about = len(words(d["text"]).offsets), {"point": of.name, "question": question}
            answers.append(
                factories.answer(d["id"], of, n_context=length, n_generated=4, selected=12.0, rollbacks=1, **about)
            )
            given = (cas or {}).get((d["id"], of.name), 0.75)
            said = {"prediction": "Golf", "reference": "Chess", "string_match": 0.0, "reason": reason, "failure": None}
            scores.append(factories.score(d["id"], of.name, "hobby", given, **said))
    made = dict(zip(("answers", "scores"), factories.saved(folder, answers, scores), strict=True))
    write(folder / "traces.parquet", "traces", traces)
    return {"documents": documents, **made, "traces": [folder / "traces.parquet"], "encode": words}


def verdicts(folder: Path, name: str, found: dict[int, tuple[bool, int | None]]) -> dict[str, Any]:
    """The argument ``labels`` of :func:`page`: tokens of the second point, uncertain or not, and their labels."""
    rows = [
        {
            "document": name, "split": "test", "point": "p5", "budget": 5, "policy": "sub.2", "detector": "utaca",
            "seed": 0, "step": step, "token": 1, "text": "", "k": 1, "uncertain": uncertain, "replaced": False,
            "label": label, "source": "endpoint", "reason": f"because {step}", "p_hallucinated": 0.1, "p_correct": 0.8,
            "p_unknown": 0.1,
        } for step, (uncertain, label) in found.items()
    ]  # fmt: skip
    write(folder / "labels.parquet", "trace_labels", rows)
    return {"labels": [folder / "labels.parquet"]}


def story(name: str, pieces: tuple[str, ...] = (" The", " hobby", " is", " Chess")) -> list[dict]:
    """An answer of four tokens under both points; the third of the second point is rolled back."""
    rolled = {
        "rolled_back": True, "tentative_token": 99, "tentative_k": 1, "tentative_margin": 0.25,
        "tentative_logprob": -1.5, "tentative_top_tokens": [99, 12], "tentative_top_logits": [2.0, 1.0],
    }  # fmt: skip
    rows = []
    for number, text in enumerate(pieces):
        fixed = {"selected": [[0, 2, 5], [1, 2, 6]], "margin": 0.1 * number}
        rows.append(factories.step(name, "p3", number, text, 3, **fixed))
        seen = {"selected": [[0, 2, 4 + number % 4], [1, 2]], "p_hallucinated": 0.6, "p_correct": 0.3, "p_unknown": 0.1}
        seen |= rolled if number == 2 else {}
        rows.append(factories.step(name, "p5", number, text, max(1, 5 - number), **seen))
    return rows


def unpacked(html: str) -> list[dict[str, Any]]:
    packed = [document["packed"] for document in content(html)["documents"] if document["packed"]]
    return [json.loads(gzip.decompress(base64.b64decode(block))) for block in packed]


def write_page(path: Path, html: str) -> Path:
    path.write_text(html, encoding="ascii")
    return path


# What it holds


# The last blocks that the shorter text's answers select are of the answer itself, and hold nothing of the document.
@pytest.mark.parametrize("length", [101, 40])
def test_blocks_are_the_text_of_their_tokens(tmp_path, config, length: int):
    rng = random.Random("blocks")
    text = "".join(rng.choice("abcdefgh ") for _ in range(length))
    spans = [(3, 19), (20, 21), (33, 36)]
    args = files(tmp_path, [document("d0", text, spans)], story("d0"))
    (shown,) = unpacked(page(**args, config=config))
    selected = list(accumulate(shown["selected"]))
    assert selected == [0, 1, 2, 4, 5, 6, 7]
    assert ["".join(segments) for segments in shown["texts"]] == [text_of(block, text) for block in selected]
    assert (shown["blocks"], set(shown["told"])) == ((len(words(text).offsets) - N_INIT) // SIZE, covered(text, *spans))
    marked = {block for block, segments in zip(selected, shown["texts"], strict=True) if any(segments[1::2])}
    assert marked == covered(text, *spans) & set(selected)


def test_where_points_differ_whatever_the_order_of_files(tmp_path, config):
    documents = [document("d/0", "x" * 90), document("d1", "x" * 90), document("d2", "x" * 90)]
    pieces = (" The", " hobby of Ada Lopez is", " Ch", "ess")
    cas = {("d/0", "p3"): 0.5, ("d1", "p3"): 0.25, ("d2", "p3"): 0.25, ("d1", "p5"): 1.0, ("d/0", "p5"): None}
    cas["d2", "p5"] = 0.0

    def made(documents: list[dict], **options: int) -> str:
        traces = [row for d in documents for row in story(d["id"], pieces)]
        return page(**files(tmp_path, documents, traces, cas=cas), config=config, **options)

    html = made(documents)
    assert html.isascii()
    assert made(documents[::-1]) == html
    shown, where = content(html), content(html)["where"]
    assert [(d["id"], d["difference"]) for d in shown["documents"]] == [("d1", 0.75), ("d2", -0.25), ("d/0", None)]
    assert "all 3 documents" in shown["about"]
    assert where["mean"] == pytest.approx([1 / 3, 0.5], abs=1e-4)
    (hobby,) = where["attributes"]
    # the lowest score, of several the one with the larger gain; the step is the first one of the value
    assert hobby == {"name": "hobby", "cells": [[0.3333, "#d1/p3/2"], [0.5, "#d2/p5/2"]]}
    assert [(row["id"], row["cells"]) for row in where["documents"]] == [
        ("d1", [[0.25, "#d1/p3/2"], [1.0, "#d1/p5/2"]]),
        ("d2", [[0.25, "#d2/p3/2"], [0.0, "#d2/p5/2"]]),
        ("d/0", [[0.5, "#d%2F0/p3/2"], [None, "#d%2F0/p5/2"]]),
    ]
    # the most different ones, where not all fit; the others are in the table still
    small = content(made(documents, max_bytes=int(2.5 * len(shown["documents"][0]["packed"]))))
    assert [bool(row["cells"][0][1]) for row in small["where"]["documents"]] == [True, True, False]
    assert "2 of 3 documents" in small["about"]
    assert "largest differences" in small["about"]
    assert (fragment("d/0"), fragment("d", "p"), fragment("d", "p", 0)) == ("#d%2F0", "#d/p", "#d/p/0")


def test_values_are_judged_and_decisions_labelled(tmp_path, config):
    told = "Ada Lopez was quiet. She played CHESS, they say. Then it rained."
    text = "z" * 20 + told + "z" * 20
    made = document("d0", text, [(20, 20 + len(told))])
    pieces = (" The", " hobby of Ada Lopez is", " Go", "lf")
    found = {0: (False, 1), 1: (True, 1), 2: (True, 0), 3: (False, 2)}
    args = files(tmp_path, [made], story("d0", pieces)) | verdicts(tmp_path, "d0", found)
    html = page(**args, config=config)
    (shown,) = unpacked(html)
    fixed, adaptive = shown["points"]
    (value,) = adaptive["values"]
    assert value == {"fact": 0, "first": 2, "last": 3, "said": "Golf", "cas": 0.75, "reason": "judged"}
    ((attribute, reference, source, blocks),) = shown["facts"]
    assert (attribute, reference, source) == ("hobby", "Chess", "She played CHESS, they say.")
    start = text.index("She")
    assert set(blocks) == covered(text, (start, start + len(source)))
    assert [step.get("verdict") for step in adaptive["steps"]] == [None, "alarm", "caught", "miss"]
    assert adaptive["steps"][3]["label"] == {"is": 2, "by": "endpoint", "reason": "because 3"}
    assert not any("label" in step for step in fixed["steps"])
    assert content(html)["labelled"]
    # a labeller that failed says nothing
    args |= verdicts(tmp_path, "d0", {2: (True, None)})
    (shown,) = unpacked(page(**args, config=config))
    assert not any("label" in step for step in shown["points"][1]["steps"])


def test_other_tokens_than_those_decoded_are_refused(tmp_path, config):
    args = files(tmp_path, [document("d0", "x" * 90)], story("d0"))
    with pytest.raises(UserError, match="has 91 tokens, but its answers were made when it had 46"):
        page(**args | {"encode": lambda text: TokenizedText([(0, 1)] * 91, str)}, config=config)
    with pytest.raises(UserError, match="'d0' has answers, but the documents file does not have it"):
        page(**args | {"documents": []}, config=config)
    with pytest.raises(UserError, match=r"answers\.parquet has no answers; make it again"):
        page(**files(tmp_path, [], []), config=config)


# In a browser


def open_page(chromium: Browser, path: Path, address: str = "", width: int = 1400) -> None:
    """Open a page in a light window, the pointer in its corner."""
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.view(width, 900)
    chromium.mouse(1, 1, "mouseMoved")
    chromium.open(path, address)
    chromium.wait(lambda: chromium.run("!document.querySelector('[aria-busy]')"))


def follow(chromium: Browser, address: str) -> None:
    """Change the address of the page that is open."""
    chromium.run(
        "window.followed = false; addEventListener('hashchange', () => { followed = true });"
        f"location.hash = {json.dumps(address)}"
    )
    chromium.wait(lambda: chromium.run("window.followed && !document.querySelector('[aria-busy]')"))


def seen(chromium: Browser, selector: str = ".token.here") -> bool:
    """Whether an element lies in the window, and nothing lies over it."""
    return chromium.run(f"""(() => {{
      const node = document.querySelector({json.dumps(selector)}), box = node.getBoundingClientRect();
      const over = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
      return box.top >= 0 && box.bottom <= innerHeight && node.contains(over);
    }})()""")


def here(chromium: Browser) -> tuple[str, str]:
    """Point and token chosen, as the panel names them."""
    token, where = chromium.text(".big"), chromium.text("#chosen .sub")
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
    assert here(chromium) == ("is", "token 3 of 4, UT-ACA K_max=5, Sub.2")
    assert "false alarm" not in chromium.text("body").lower(), "without labels nothing is claimed"
    panel = chromium.text("#panel")
    assert "rolled back" in panel
    assert "60.0\u00a0%" in panel
    assert "<99>" in panel
    assert chromium.run("document.querySelectorAll('.token.rolled').length") == 1
    assert chromium.run("location.hash") == ""

    struck = "getComputedStyle(document.querySelector('#t-1-2 .gone')).textDecorationLine"
    assert "line-through" in chromium.run(struck), "the rejected token stands before the accepted one"

    chromium.press("ArrowLeft")
    assert here(chromium)[0] == "hobby"
    assert chromium.run("document.activeElement.id") == "t-1-1"
    # the answer with a detector stands first
    chromium.press("ArrowDown")
    assert here(chromium) == ("hobby", "token 2 of 4, InfLLM K=3")
    assert "no detector; the second-best token" in chromium.text("#panel")
    chromium.press("End", "ArrowUp", "ArrowUp", "ArrowRight")
    assert here(chromium) == ("Chess", "token 4 of 4, UT-ACA K_max=5, Sub.2")
    chromium.press("R")
    assert here(chromium)[0] == "is"
    chromium.press("Home", "r")
    assert here(chromium)[0] == "is"

    # blocks: the next one, one by layer, one by a click on the strip
    def block() -> int:
        number = int(chromium.text("#block h3").removeprefix("Block "))
        assert chromium.run("document.querySelector('#block-text').textContent") == text_of(number, text)
        return number

    number = block()
    assert chromium.run("document.querySelector('mark').textContent") in text[20:40]
    chromium.press("]")
    assert block() > number
    before = chromium.run("document.querySelectorAll('#strip .chosen').length")
    chromium.press("l")
    assert chromium.run("document.querySelectorAll('#strip .chosen').length") > before
    chromium.press("l")
    strip = place(chromium, "strip")
    x = strip["left"] + strip["width"] * (N_INIT + SIZE * 6.5) / len(words(text).offsets)
    chromium.mouse(x, strip["top"] + 20)
    assert block() == 6

    # a token under the pointer is shown while it is there; the chosen block stays
    first = place(chromium, "t-0-0")
    chromium.mouse(first["left"] + 3, first["bottom"] - 8, "mouseMoved")
    chromium.wait(lambda: here(chromium)[1] == "token 1 of 4, InfLLM K=3")
    chromium.mouse(2, 2, "mouseMoved")
    chromium.wait(lambda: here(chromium)[0] == "is")
    assert block() == 6

    # points are put aside, documents changed, a place found again by its address
    chromium.run("document.querySelector('#which').open = true")
    chromium.run("document.querySelectorAll('#points input')[0].click()")
    assert chromium.run("document.querySelectorAll('.lane').length") == 1
    assert chromium.text("#count") == "Answers: 1 of 2"
    chromium.press("j")
    chromium.wait(lambda: chromium.run("document.getElementById('document').value") == "1")
    assert chromium.run("location.hash") == "#d1/p5/0"
    assert chromium.complaints == []
    assert all(address.startswith(("file:", "about:")) for address in chromium.requests)


def long_page(tmp_path: Path, config: schema.Config, **options: Any) -> Path:
    """A page of three documents whose answers are longer than the window; verdicts of each kind in the first one."""
    text = "".join(f"word{n:02d} " for n in range(40))
    documents = [
        document(name, text, [(20, 60)], person) for name, person in (("d0", "Ada"), ("d1", "Bo"), ("d 2", "Cy"))
    ]
    pieces = (" The", " hobby", " is", " Chess", *(f" filler{n}" for n in range(900)))
    traces = [row for d in documents for row in story(d["id"], pieces)]
    found = {1: (False, 0), 2: (True, 1), 3: (False, 1), 800: (False, 2)}
    cas = {("d0", "p5"): 1.0, ("d 2", "p5"): 0.0}
    args = files(tmp_path, documents, traces, cas=cas, **options) | verdicts(tmp_path, "d0", found)
    return write_page(tmp_path / "long.html", page(**args, config=config))


@pytest.mark.parametrize("width", [1366, 600, 390])
def test_the_main_answer_is_on_the_first_screen(chromium, tmp_path, config, width):
    open_page(chromium, long_page(tmp_path, config), width=width)
    assert chromium.run("scrollY") == 0
    assert chromium.run("document.querySelector('.lane').id") == "lane-1"
    assert chromium.text("#lane-1 h2").startswith("UT-ACA")
    assert seen(chromium), "the first rollback"
    assert not chromium.run("document.querySelector('#where').open")
    assert chromium.run("document.querySelector('#reading').open") == (width > 1000)
    chromium.run("document.querySelector('#where > summary').click()")
    assert "Mean CAS" in chromium.text("#where .lead")
    assert chromium.complaints == []


def test_the_answer_that_comes_first_has_a_detector(tmp_path, config):
    args = files(tmp_path, [document("d0", "x" * 90)], story("d0"))
    assert content(page(**args, config=config))["lead"] == "p5"


@pytest.mark.parametrize("width", [1400, 600])
def test_an_address_leads_to_its_token(chromium, tmp_path, config, width):
    path = long_page(tmp_path, config)
    open_page(chromium, path, width=width)
    assert chromium.run("scrollY") == 0
    open_page(chromium, path, "#d%202/p5/700", width)
    assert here(chromium) == ("filler696", "token 701 of 904, UT-ACA K_max=5, Sub.2")
    assert chromium.run("scrollY") > 900
    assert seen(chromium)
    follow(chromium, fragment("d0", "p3", 30))
    assert chromium.text("#about-document h2") == "Ada"
    assert here(chromium) == ("filler26", "token 31 of 904, InfLLM K=3")
    assert seen(chromium)
    follow(chromium, "#d1")
    assert chromium.text("#about-document h2") == "Bo"
    assert here(chromium)[0] == "is"
    assert chromium.text("#notice") == ""
    # a choice is written into the address, in the form that is read
    chromium.press("End")
    assert chromium.run("location.hash") == fragment("d1", "p5", 903)
    assert seen(chromium)
    if width == 600:  # a sheet shows the token, until it is folded
        assert seen(chromium, ".big")
        chromium.run("document.getElementById('fold').click()")
        assert place(chromium, "panel")["height"] < 80
        assert chromium.run("document.documentElement.scrollWidth") <= 600
    assert chromium.complaints == []


def test_an_address_that_leads_nowhere_is_said(chromium, tmp_path, config):
    path = long_page(tmp_path, config)
    for address, said, person in (
        ("#%E0%A4%A", "The address #%E0%A4%A is not valid", ""),
        ("#d9/p5/1", "There is no document “d9” on this page", ""),
        ("#d0/p9/1", "d0 has no answer of point “p9”", "Ada"),
        ("#d0/p5/9999", "There is no token 9999: the answer has 904 tokens, counted from 0", "Ada"),
        ("#d0/p5/x", "“x” is not the number of a token", "Ada"),
    ):
        open_page(chromium, path, address)
        chromium.wait(lambda said=said: said in chromium.text("#notice"))
        assert chromium.run("document.querySelectorAll('.lane').length") == 2 * bool(person)
        assert not person or chromium.text("#about-document h2") == person
    # keys do no harm, and the page goes on from there
    chromium.press("ArrowRight", "p", "j")
    follow(chromium, "#d1/p3/2")
    assert here(chromium) == ("is", "token 3 of 904, InfLLM K=3")
    assert chromium.text("#notice") == ""
    assert chromium.complaints == []


def test_misses_and_false_alarms_are_marked_and_found(chromium, tmp_path, config):
    open_page(chromium, long_page(tmp_path, config), "#d0/p5/0")
    marked = "[...document.querySelectorAll('#lane-1 .token.%s')].map((token) => Number(token.dataset.step))"
    assert chromium.run(marked % "miss") == [1, 800]
    assert chromium.run(marked % "alarm") == [2]
    assert "2 misses · 1 false alarm" in chromium.text("#lane-1 .sums")
    assert "\u25cb false alarm" in chromium.text("#legend")
    chromium.press("m")
    assert here(chromium)[0] == "hobby"
    assert "Missed: the detector accepted it; label: hallucinated. Reason: because 1" in chromium.text("#chosen")
    chromium.press("m")
    assert here(chromium)[0] == "filler796"
    assert seen(chromium)
    chromium.press("F")
    assert here(chromium)[0] == "is"
    assert "False alarm" in chromium.text("#chosen")
    chromium.press("M", "r")
    assert here(chromium)[0] == "is"


def test_nothing_that_a_model_wrote_is_run(chromium, tmp_path, config):
    pieces = tuple(f" {text}" for text in HOSTILE)
    text = "".join(HOSTILE) * 3
    made = document("<b>d0</b>", text, [(10, 60)], person=HOSTILE[2])
    args = files(tmp_path, [made], story("<b>d0</b>", pieces), question=HOSTILE[1], reason=HOSTILE[0])
    args["encode"] = lambda text: TokenizedText(words(text).offsets, lambda token: HOSTILE[token % 4])
    open_page(chromium, write_page(tmp_path / "t.html", page(**args, config=config)))
    assert chromium.text("#about-document h2") == HOSTILE[2]
    assert HOSTILE[1] in chromium.text(".question")
    chromium.press("Home")
    for piece in HOSTILE:
        assert piece in chromium.text(".big")
        chromium.press("ArrowRight")
    assert chromium.run("document.querySelector('#block-text').textContent") in text
    assert chromium.complaints == []
    chromium.harmless("#page img, #page b, #page script")
