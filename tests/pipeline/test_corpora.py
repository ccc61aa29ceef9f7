"""Padding prose: embedded, from files, from a MediaWiki API."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from server import Call, Reply, Server, serving

from utaca.biographies import corpora
from utaca.biographies.corpora import embedded, folder, wikipedia
from utaca.biographies.corpora.text import MINIMUM_CHARACTERS, paragraphs
from utaca.biographies.corpora.topics import domain_and_phrase, paper_articles, training_topics
from utaca.errors import UserError
from utaca.prose_files import prose_files
from utaca.records import tables
from utaca.settings.schema import CorpusSettings

PROSE = "The river rises in the hills and reaches the sea after a course of several hundred kilometres."


def test_topics_of_training_and_of_the_paper_are_apart() -> None:
    assert len(set(paper_articles())) == 90
    assert not set(paper_articles()) & set(training_topics())
    assert domain_and_phrase("Cell (biology)") == ("science", "the cell")
    assert domain_and_phrase("Something New (song)") == (None, "Something New")


def test_embedded_prose_is_varied_and_depends_on_topic_and_seed_alone() -> None:
    rows = embedded.articles(paper_articles()[::10], 3)
    texts = [text for row in rows for text in row["text"].split("\n\n")]
    assert len(texts) == len(set(texts)) == 60 * len(rows)
    assert all(60 <= len(text.split()) <= 160 for text in texts)
    assert not [text for text in texts if re.search(r"[{}^@|_]|  ", text)]
    assert all(paragraphs(row["text"]) == row["text"].split("\n\n") for row in rows)
    alone = embedded.articles(["Jazz"], 1, paragraphs=5)
    assert embedded.articles(["Law", "Jazz"], 1, paragraphs=5)[1:] == alone
    assert embedded.articles(["Jazz"], 2, paragraphs=5) != alone
    assert embedded.articles(["Jazz"], 1, paragraphs=9)[0]["text"].startswith(alone[0]["text"])


def test_jsonl_and_parquet(tmp_path: Path) -> None:
    records = [
        {"title": "A", "text": PROSE, "url": "https://a.org", "licence": "CC BY-SA 3.0", "revision": 7, "more": 1},
        {"title": "B", "text": f"{PROSE} \u2028 {PROSE}"},
        {"title": "Stub", "text": "Too short."},
    ]
    path = tmp_path / "articles.jsonl"
    path.write_text("\n".join(json.dumps(record, ensure_ascii=False) for record in records) + "\n\n", encoding="utf-8")
    rows = folder.articles(path)
    assert [(row["title"], row["url"], row["revision"]) for row in rows] == [("A", "https://a.org", "7"), ("B", "", "")]
    tables.write(tmp_path / "corpus.parquet", "corpus", rows)
    assert folder.articles(tmp_path / "corpus.parquet") == rows


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("broken.jsonl", "{'title'}\n", "line 1, is not JSON"),
        ("untitled.jsonl", json.dumps({"text": PROSE}), "line 1, has no text under the key 'title'"),
        (
            "stub.jsonl",
            json.dumps({"title": "A", "text": "x" * (MINIMUM_CHARACTERS - 1)}),
            "has no paragraph of at least",
        ),
        ("not.parquet", "x", "cannot be read as Parquet"),
        ("untitled.parquet", pa.table({"text": [PROSE]}), "no column title"),
        ("prose.pdf", "x", "neither a folder"),
        ("nowhere", None, "does not exist"),
        ("", None, r"no \.txt or \.md file"),
    ],
)
def test_faults_of_files_are_named(tmp_path: Path, name: str, content: object, said: str) -> None:
    path = tmp_path / name
    if isinstance(content, pa.Table):
        pq.write_table(content, path)
    elif content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=rf"{re.escape(str(path))}.*{said}"):
        corpora.load(CorpusSettings(name="own", source="folder", path=str(path)), 0, tmp_path)


def test_a_folder_is_read_as_far_as_it_is_linked_and_says_what_it_leaves_out(tmp_path: Path, caplog) -> None:
    mine, far = tmp_path / "mine", tmp_path / "far"
    for path in (mine / "one.TXT", far / "two.md", far / "deep {a} b" / "three.Md", mine / ".git" / "x.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# Heading\n\n{PROSE}")
    (far / "b_river.txt").write_text(f"{PROSE}\n\nShort.\n\n{PROSE[:40]}\n{PROSE[40:]} More.\r\n")
    for name in (".hidden.txt", "scan.pdf", "old.rst"):
        (mine / name).write_text(PROSE)
    (mine / "empty.txt").touch()
    os.close(os.open(os.fsencode(mine) + b"/J\xfcrgen.txt", os.O_CREAT))
    os.mkfifo(mine / "pipe.txt")
    for place, target in {"far/back": mine, "far/itself": "itself", "mine/gone.txt": "/nowhere/at/all.txt",
                          "mine/link": far, "mine/twice": far, "mine/copy.txt": "one.TXT"}.items():  # fmt: skip
        (tmp_path / place).symlink_to(target)
    rows = {row["title"]: row["text"] for row in folder.articles(mine)}
    assert rows.keys() in ({"one", "b river", "three", "two"}, {"copy", "b river", "three", "two"})
    assert rows["two"] == PROSE
    assert rows["b river"].split("\n\n") == [PROSE, f"{PROSE[:40]} {PROSE[40:].strip()} More."]
    assert len(prose_files(str(mine))) == 6, "those without prose too"
    told, short = (record.getMessage() for record in caplog.records)
    for part in ("2 hidden, such as ", "2 neither .txt nor .md", "3 linked twice", "3 neither file nor folder"):
        assert part in told
    assert "2 of 6 texts have no paragraph" in short


def test_a_folder_with_what_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.txt").write_text(PROSE)
    (tmp_path / "private").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: "private" not in path)
    with pytest.raises(UserError, match=r"private cannot be read; correct its permissions"):
        folder.articles(tmp_path)


@pytest.fixture
def wiki(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A stub of the API: pages by title, refusals that come before, calls, and the articles of titles by it."""
    monkeypatch.setattr(wikipedia, "INTERVAL_S", 0.001)
    stub = SimpleNamespace(pages={}, refusals=[])

    def script(server: Server, call: Call) -> Reply:
        if stub.refusals:
            status = stub.refusals.pop(0)
            return Reply("<p>" if status == 203 else "{}", status=status, headers={"retry-after": "0"})
        title = call.query["titles"].replace("Cinema", "Film" if call.query.get("redirects") else "Cinema")
        page = {"title": title, "missing": True}
        if title in stub.pages:
            page = {"pageid": 1, "title": title, "extract": stub.pages[title], "revisions": [{"revid": 42}]}
        return Reply(json.dumps({"batchcomplete": True, "query": {"pages": [page]}}))

    with serving(script) as server:
        stub.calls = server.calls
        stub.articles = lambda *titles: wikipedia.articles(tmp_path, titles=titles, api=f"{server.address}/w/api.php")
        yield stub


def test_wikipedia_follows_redirects_and_caches(wiki: SimpleNamespace, tmp_path: Path) -> None:
    wiki.pages = {
        "Film": f"{PROSE} One.\n\n\n== History ==\n{PROSE} Two.\nA short line.\n\n  {{\\displaystyle {'x' * 90}}}\n"
        f"== See also ==\n{PROSE} Three.\n=== Lists ===\n{PROSE} Four.\n== Legacy ==\n{PROSE} Five.",
        "Law": PROSE,
    }
    wiki.refusals = [503]
    rows = wiki.articles("Cinema", "Law")
    assert [row["title"] for row in rows] == ["Film", "Law"]
    assert rows[0]["text"].split("\n\n") == [f"{PROSE} One.", f"{PROSE} Two.", f"{PROSE} Five."]
    assert rows[0]["revision"] == "42"
    assert rows[0]["url"].endswith("/w/index.php?title=Film&oldid=42")
    assert {call.headers["user-agent"] for call in wiki.calls} == {wikipedia.USER_AGENT}
    assert {"action": "query", "explaintext": "1", "redirects": "1"}.items() <= wiki.calls[0].query.items()
    assert wiki.articles("Cinema", "Law") == rows
    assert len(wiki.calls) == 3


def test_wikipedia_keeps_what_it_has_when_a_later_title_fails(wiki: SimpleNamespace, tmp_path: Path) -> None:
    wiki.pages = {"Law": PROSE, "Stub": "Short."}
    for titles, refusals, said in (
        (["Law", "Nothing"], [], "no article 'Nothing'"),
        (["Law", "Stub"], [], "'Stub' has no usable prose"),
        (["Food"], [403], r"HTTP 403.*corpus=folder.*corpus=embedded"),
        (["Food"], [503] * 4, "HTTP 503"),
        (["Food"], [200], "returned no text for 'Food'"),
        (["Food"], [203], "its answer is not JSON"),
    ):
        wiki.refusals = refusals
        with pytest.raises(UserError, match=said):
            wiki.articles(*titles)
    assert [call.query["titles"] for call in wiki.calls] == ["Law", "Nothing", "Stub", *["Food"] * 7]
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(UserError, match=r"cannot be used .*choose corpus=folder with corpus.path, or corpus=embedded"):
        wikipedia.articles(tmp_path, titles=["Food"], api="http://127.0.0.1:9/w/api.php")
    next(tmp_path.iterdir()).write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        wiki.articles("Law")


def test_load_dispatches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wikipedia, "articles", lambda cache: [{"cache": cache}])
    hub, prose = (CorpusSettings(name=name, source=name) for name in ("wikipedia", "embedded"))
    assert corpora.load(hub, 0, tmp_path) == [{"cache": tmp_path}]
    assert [row["title"] for row in corpora.load(prose, 5, tmp_path)] == list(paper_articles())
