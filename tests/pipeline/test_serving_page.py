"""The page of ``utaca serve`` in a browser, and the files that the server reads for it."""

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from serving import DOCUMENT, QUESTION, SEA, begin, chat, serving
from test_command import HTML, locked, pdf

from utaca.app import documents
from utaca.app.questions import example, is_understood, understands
from utaca.app.serving import server as servers
from utaca.app.serving.server import Server
from utaca.readers.files import listed_settings
from utaca.readers.load import Reader


@pytest.fixture
def page(server: Server, chromium: Browser) -> Iterator[Browser]:
    """The page in a wide light window; a test that uses it leaves no complaint, and asks nobody but the server."""
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.view()
    chromium.call("Page.navigate", url="about:blank")
    chromium.call("Page.navigate", url=server.address)
    chromium.wait(lambda: chromium.run("document.readyState === 'complete' && !!document.getElementById('ask')"))
    yield chromium
    assert chromium.complaints == []
    asked = {request.split("/")[2] for request in chromium.requests if request.startswith("http")}
    assert asked == {server.address.removeprefix("http://")}


def fill(page: Browser, **values: Any) -> None:
    """Give controls values, as a user does."""
    for name, value in values.items():
        page.run(f"document.getElementById('{name}').value = {json.dumps(value)}")
        page.run(f"document.getElementById('{name}').dispatchEvent(new Event('input', {{bubbles: true}}))")
        page.run(f"document.getElementById('{name}').dispatchEvent(new Event('change', {{bubbles: true}}))")


def ask(page: Browser) -> None:
    page.run("document.getElementById('ask').click()")
    page.wait(lambda: page.text("#state") == "Done.")


def test_the_page_asks_and_shows_what_tokens_cost_and_retrieve(page: Browser) -> None:
    smiling = "\U0001f600" * 3 + DOCUMENT
    fill(page, text=smiling, question=QUESTION, trigger="every")
    fill(page, number="3")
    ask(page)
    assert all("Harvard University" in page.text(answer) for answer in ("#a0", "#a1"))
    assert page.run("document.querySelectorAll('#a0 .back').length") > 0
    assert page.text("#shown") == smiling
    places = page.run("Object.entries(answers[1].places).map(([block, place]) => [`block ${block}`, ...place])")
    marks = dict(page.run("[...document.querySelectorAll('#shown mark')].map((m) => [m.title, m.textContent])"))
    assert all(marks[block] == smiling[start:end] for block, _, start, end in places)

    tokens = page.run("answers[0].tokens")
    titles = page.run("[...document.querySelectorAll('#a0 span')].map((token) => token.title)")
    for title, token in zip(titles, tokens, strict=True):
        again = token["rolled_back"]
        assert title.startswith(f"{round(token['selected_tokens'])} token")
        assert again is None or f"the first time with {round(again['selected_tokens'])} token" in title
    assert len(tokens) == page.run("document.querySelectorAll('#b0 i').length")
    assert f"{len(tokens)} tokens, " in page.text("#s0")
    assert not re.search(r"\d\.\d", page.text("#s0") + page.text("#s1")), "numbers are rounded"

    page.run("document.querySelector('#a1 span').focus()")
    page.press("ArrowRight")
    assert page.run("document.activeElement === document.querySelectorAll('#a1 span')[1]")
    assert page.run("document.activeElement.getAttribute('aria-pressed')") == "true"
    assert page.run("document.querySelectorAll('#shown mark.now').length") > 0


# Whether the tokens of an answer that are parts of one word lie in one line.
WORDS_ARE_WHOLE = """[...document.querySelectorAll('#a0 span:not([hidden])')].every((token, place, all) => {
  const next = all[place + 1];
  if (!next || /\\s$/.test(token.textContent) || /^\\s/.test(next.textContent)) return true;
  return Math.abs([...token.getClientRects()].at(-1).top - next.getClientRects()[0].top) < 4;
})"""
# Whether the passage that is shown lies in the window of its panel.
IN_VIEW = """(() => {
  const seen = document.querySelector('#shown mark.here').getBoundingClientRect();
  const box = document.getElementById('shown').getBoundingClientRect();
  return seen.top >= box.top && seen.bottom <= box.bottom;
})()"""


def test_the_example_is_answered_and_its_passage_is_in_view(page: Browser) -> None:
    assert page.text("h1") == "Ask about a long document"
    assert page.text("#about").startswith('It understands only questions such as "Summarize the birth date')
    page.run("document.getElementById('example').click()")
    assert page.run("document.activeElement.id") == "ask"
    ask(page)
    for answer in ("#a0", "#a1"):
        assert "May 3, 1959" in page.text(answer)
        assert "Harvard University" in page.text(answer)
    evidence = page.text("#shown mark.here")
    assert "Clara Whitfield" in evidence
    assert page.run(IN_VIEW)
    assert page.text("#where").endswith(" (retrieved most often)")
    page.run("document.getElementById('after').click()")
    assert page.text("#where").startswith("Passage 2 of ")
    assert page.text("#shown mark.here") != evidence
    page.run("document.getElementById('before').click()")
    assert page.text("#shown mark.here") == evidence
    top = "document.getElementById('{}').getBoundingClientRect().top"
    assert page.run(top.format("a0")) == page.run(top.format("a1")), "answers lie next to each other"
    light = page.run("getComputedStyle(document.body).backgroundColor")
    page.view(360, 640, dark=True)
    assert page.run("getComputedStyle(document.body).backgroundColor") != light
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    assert page.run(top.format("a0")) < page.run(top.format("a1"))
    assert page.run(WORDS_ARE_WHOLE)


def test_controls_are_labelled_and_explained(page: Browser) -> None:
    controls = "[...document.querySelectorAll('input, select, textarea, progress')]"
    assert page.run(f"{controls}.filter((each) => !each.labels.length && !each.ariaLabel).map((each) => each.id)") == []
    described = (
        f"{controls}.flatMap((each) => (each.getAttribute('aria-describedby') ?? '').split(' ')).filter(Boolean)"
    )
    assert page.run(f"{described}.filter((id) => !document.getElementById(id))") == []
    names = page.run("[...document.getElementById('trigger').options].map((option) => option.value)")
    assert names == ["needed_chained", "utaca", "margin", "agreement", "every", "never"]
    assert page.run("document.getElementById('trigger').value") == "margin", "a server under a fixed budget"
    for name, number, words in (
        ("needed_chained", None, "a small network that was trained for this model"),
        ("margin", "Smallest difference that is trusted, in logits", "nearly as likely"),
        ("agreement", "Blocks of the second pass, fewer than the budget", "a second pass"),
        ("every", "N", "Doubts every Nth token"),
    ):
        fill(page, trigger=name)
        assert words in page.text("#htrigger")
        assert page.run("document.getElementById('numbered').hidden") is (number is None)
        assert number is None or page.text("#lnumber") == number
    assert page.run("document.getElementById('number').value") == "4"
    fill(page, budget="4")
    assert "A block has 16 tokens, so this is 64 tokens." in page.text("#hbudget")
    assert "generated again from as many blocks as the budget allows" in page.text("#hwhy")


def test_budgets_may_be_shares(page: Browser, tiny: Reader) -> None:
    layout = tiny.settings.memory.layout
    blocks = (len(tiny.document(DOCUMENT)) - layout.n_init) // layout.block_size
    fill(page, text=DOCUMENT, question=QUESTION, trigger="never", longest="3", budget="20%", fixed="40%")
    assert "so this is 20% of the document, at least one block." in page.text("#hbudget")
    ask(page)
    costs = page.run("[0, 1].map((each) => answers[each].tokens.map((token) => token.selected_tokens))")
    wanted = [layout.block_size * (percent * blocks // 100) for percent in (20, 40)]
    assert costs == [[number] * 3 for number in wanted]
    heights = page.run(
        "['b0', 'b1'].map((id) => document.getElementById(id).children[0].style.getPropertyValue('--share'))"
    )
    assert heights == [f"{round(100 * wanted[0] / wanted[1])}%", "100%"], "a full bar is the larger budget"
    for wrong in ("0%x", "5 %", "1.5", "0", ""):
        fill(page, budget=wrong)
        assert not page.run("document.getElementById('budget').checkValidity()")


def test_keys_ask_and_a_limit_is_shown(page: Browser) -> None:
    fill(page, text=DOCUMENT, question=QUESTION, longest="3", trigger="never")
    page.run("document.getElementById('question').focus()")
    key = "new KeyboardEvent('keydown', {key: 'Enter', ctrlKey: true, bubbles: true, cancelable: true})"
    page.run(f"document.activeElement.dispatchEvent({key})")
    page.wait(lambda: page.text("#state") == "Done.")
    assert page.text("#s0").startswith("3 tokens, 0 of them generated twice.")
    assert page.text("#s0").endswith("The answer was cut off at its length limit.")
    fill(page, trigger="agreement")
    fill(page, number="9")
    page.run("document.getElementById('ask').click()")
    page.wait(lambda: "must have fewer than the budget, 8" in page.text("#state"))
    assert page.run("document.getElementById('state').classList.contains('wrong')")
    # A refused request fails, and the browser complains about it too.
    page.complaints.clear()


def test_a_bar_shows_how_long_reading_takes(page: Browser, server: Server) -> None:
    connection = begin(server.address, chat(f"{SEA * 1200} No other test reads this.", stream=True, max_tokens=1))
    shown = [line for line in connection.getresponse().read().decode().splitlines() if line.startswith(": read")]
    connection.close()
    done, totals = zip(*(map(int, re.findall(r"\d+", line)) for line in shown), strict=True)
    assert done[0] == 0, "how much there is to read is said first"
    assert list(done) == sorted(done)
    assert {done[-1]} == set(totals)
    page.run("window.rate = progress(); rate(512, 4000)")
    assert page.text("#eta") == "512 of 4,000 tokens read"
    page.run("new Promise((done) => setTimeout(() => { rate(1512, 4000); done(); }, 1000))")
    assert page.run("[document.getElementById('bar').value, document.getElementById('bar').max]") == [1512, 4000]
    assert re.fullmatch(r"1,512 of 4,000 tokens read, about [345] s left", page.text("#eta"))


# Files


def sent(server: Server, name: str, content: bytes, **headers: str) -> tuple[int, Any]:
    """Status and object of the answer to a file."""
    connection = http.client.HTTPConnection(server.address.removeprefix("http://"), timeout=120)
    wanted = {"Content-Type": "application/octet-stream"} | headers
    connection.request("POST", f"/document?name={name}", content, wanted)
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.pdf", pdf("One page", "and another")),
        ("a.html", HTML.encode()),
        ("a.html", b"<!doctype html><p>One<p hidden>Two"),
        ("a.md", "# Caf\u00e9\r\n".encode()),
        ("a", "One".encode("utf-16")),
    ],
)
def test_a_file_is_read_as_the_command_reads_it(name: str, content: bytes, server: Server, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    notes: list[str] = []
    text = documents.read([tmp_path / name], notes.append)
    notes = [note.replace(str(tmp_path / name), name) for note in notes]
    assert sent(server, name, content) == (200, {"text": text, "notes": notes})


def test_a_file_that_cannot_be_read_is_a_sentence(
    server: Server, tiny: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content, words in (
        ("a.pdf", locked(), "document a.pdf is locked by a password"),
        ("a.bin", b"a\0b", "document a.bin is a binary file"),
        ("a.txt", b" ", "document a.txt has no text"),
        ("", b"One", "the file has no name"),
    ):
        status, answer = sent(server, name, content)
        assert (status, words in answer["error"]["message"]) == (400, True), answer
    status, answer = sent(server, "a.txt", b"One", **{"Content-Type": "text/plain"})
    assert status == 400, "a page of another site can send this type without being asked for leave"
    monkeypatch.setattr(servers, "BODY", 1000)
    assert sent(server, "a.txt", b"x" * 2000)[0] == 413
    monkeypatch.undo()
    with serving(tiny, api_key="secret") as guarded:
        assert sent(guarded, "a.txt", b"One")[0] == 401
        assert sent(guarded, "a.txt", b"One", Authorization="Bearer secret")[1]["text"] == "One"


def test_the_page_takes_files(page: Browser) -> None:
    files = {"a.html": "<!doctype html><p>One<p hidden>Two", "b.md": "# Three"}
    made = ", ".join(f"new File([{json.dumps(text)}], {json.dumps(name)})" for name, text in files.items())
    page.run(f"load([{made}])")
    assert page.run("document.getElementById('text').value") == "One\n\n# Three"
    assert "hidden text left out" in page.text("#left")
    assert page.text("#state").startswith("a.html, b.md: ")
    page.run("load([new File(['a\\0b'], 'a.bin')])")
    assert "a.bin is a binary file" in page.text("#state")
    page.complaints.clear()


# Questions


def test_what_a_reader_understands_is_said() -> None:
    tiny, public = listed_settings("tiny"), listed_settings("qwen25_coder_1_5b")
    assert understands(public) == "Reader qwen25_coder_1_5b understands any question."
    assert "only questions such as" in understands(tiny)
    assert is_understood(tiny, QUESTION)
    assert not is_understood(tiny, "Who chaired the meeting?")
    assert is_understood(public, "Who chaired the meeting?")
    assert is_understood(tiny, example(tiny).question)
    assert not is_understood(tiny, example(public).question)
