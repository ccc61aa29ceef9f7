"""What the reader card asks of prose that nobody here generated: biographies written by hand, and SQuAD's questions."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import ROOT

from training.narratives import wordings
from training.smollm2.examples import APART, squad
from utaca.biographies.corpora.embedded import articles
from utaca.biographies.corpora.topics import paper_articles
from utaca.biographies.padding import Padder, counter
from utaca.biographies.sentences import abstention, summary
from utaca.errors import UserError
from utaca.readers.shelf import load_reader
from utaca.records import SCHEMAS
from utaca.reporting.card import card as card_of
from utaca.settings import schema
from utaca.settings.checks import load, validate
from utaca.settings.compose import compose
from utaca.tasks.card import written
from utaca.tasks.card.cells import cell_of
from utaca.tasks.card.material import Fact
from utaca.tasks.card.measures import abstains, exact_match, f1, found, scores

BIOGRAPHIES = ROOT / "data" / "biographies" / "handwritten.jsonl"
WORDINGS_OF_TUNING = Path(__file__).parents[1] / "data" / "readers" / "smollm2-tuned"


@pytest.fixture(scope="module")
def shared() -> Path:
    """A folder with SQuAD's and XQuAD's files in `qa`."""
    folder = Path(os.environ.get("UTACA_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / "qa" / "xquad_en.json").is_file():
        pytest.skip("needs SQuAD's and XQuAD's files; UTACA_DATA names the folder that has them in qa")
    return folder


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return written.biographies(BIOGRAPHIES)


@pytest.fixture(scope="module")
def config(root: Path) -> schema.Config:
    return load(compose({"reader": "smollm2_tuned"}, root))


# The biographies


def test_biographies_are_enough_and_state_what_they_say(rows: list[dict]) -> None:
    assert len(rows) >= 60
    assert len({row["person"] for row in rows}) == len(rows)
    assert sum(len(row["facts"]) for row in rows) >= 360
    for row in rows:
        stated = [fact["attribute"] for fact in row["facts"]]
        assert row["person"] in row["text"]
        assert all(fact["value"] in row["text"] for fact in row["facts"])
        assert len(set(stated)) == len(stated)
        assert len(row["absent"]) >= 2
        assert not set(row["absent"]) & set(stated)


_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def _tokens(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _trained() -> list[str]:
    """Every sentence of every wording that a reader of the project is trained on."""
    files = [WORDINGS_OF_TUNING / name for name in ("passages.jsonl", "sentences.jsonl")]
    lines = chain.from_iterable(file.read_text(encoding="utf-8").splitlines() for file in files)
    texts = [*(json.loads(line)["text"] for line in lines), *chain.from_iterable(wordings().facts.values())]
    return [sentence for text in texts for sentence in _SENTENCE_END.split(text)]


def test_no_sentence_that_states_a_fact_is_near_a_wording_of_any_training(rows: list[dict]) -> None:
    """Of all sentences four, of five to seven words and without a fact, are as near as 0.60 to 0.62."""
    trained = [_tokens(sentence) for sentence in _trained()]
    assert len(trained) > 2000
    matcher, nearest = difflib.SequenceMatcher(autojunk=False), 0.0
    stated = [(row, sentence) for row in rows for sentence in _SENTENCE_END.split(row["text"])]
    for sentence in (s for row, s in stated if any(fact["value"] in s for fact in row["facts"])):
        tokens = _tokens(sentence)
        matcher.set_seq2(tokens)
        counted = Counter(tokens)
        for other in trained:
            # An upper bound first: most pairs share few words in any order.
            most = 2 * (counted & Counter(other)).total() / (len(tokens) + len(other))
            if most > nearest:
                matcher.set_seq1(other)
                nearest = max(nearest, matcher.ratio())
    assert 0.2 < nearest < 0.6


ROW = {"id": "x1", "person": "Ann Lee", "text": "Ann Lee came from Cork.", "absent": ["hobby"]}
FACT = {"attribute": "birth place", "value": "Cork", "also": []}


def a_row(**keys: Any) -> str:
    return json.dumps(ROW | {"facts": [FACT]} | keys, ensure_ascii=False)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (a_row()[:30], "line 1, is not JSON"),
        ("[1]", "line 1, is not a JSON object"),
        ("", "has no biographies"),
        (a_row() + "\n\n" + a_row(id=7), "line 3, has a fault at id: Input should be a valid string"),
        (a_row() + "\n" + a_row(), "line 2, has the id 'x1', as a row before"),
        (a_row(facts=[FACT | {"value": "Kerry"}]), "line 1, has the value 'Kerry', which its text has not"),
        (a_row(facts=[FACT | {"value": 7}]), "line 1, has a fault at facts.0.value"),
        (a_row(facts=[FACT | {"value": " "}]), "line 1, has a fault at facts.0.value"),
        (a_row(facts=[{"attribute": "a", "value": "Cork"}]), "line 1, has a fault at facts.0.also: Field required"),
        (a_row(facts=None), "line 1, has a fault at facts"),
        (a_row(facts=[FACT, FACT]), "line 1, has the attribute 'birth place' twice"),
        (a_row(absent=["birth place"]), "line 1, has the attribute 'birth place' twice"),
        (a_row(absent="hobby"), "line 1, has a fault at absent"),
        (json.dumps(ROW), "line 1, has a fault at facts: Field required"),
        (b"\xff\xfe[", "is not UTF-8 text"),
        ('{"a":' * 10**5, "line 1, is not JSON"),
    ],
)
def test_bad_biographies_are_named(tmp_path: Path, content: str | bytes, said: str) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=rf"bad\.jsonl.*{re.escape(said)}.*card\.biographies"):
        written.biographies(bad)


@pytest.mark.parametrize("name", ["none.jsonl", ""])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"cannot be read .*card\.biographies"):
        written.biographies(tmp_path / name)
    with pytest.raises(UserError, match=r"cannot be read .*card\.xquad"):
        written.squad(tmp_path / name)


@pytest.mark.parametrize("text", ["Cork\u2028She", "Cork\x85", "Cork \ud83d"])
def test_what_is_json_is_read(tmp_path: Path, text: str) -> None:
    line = json.dumps(ROW | {"facts": [FACT], "text": text}, ensure_ascii="\ud83d" in text)
    (tmp_path / "rows.jsonl").write_text("\ufeff" + line, encoding="utf-8")
    (row,) = written.biographies(tmp_path / "rows.jsonl")
    assert row["text"] == text.replace("\ud83d", "\ufffd")


def test_documents_of_biographies(rows: list[dict]) -> None:
    reader = load_reader("tiny")
    count = counter(reader.tokenizer)
    padder = Padder(articles(paper_articles(), 0), count, "embedded")
    alone = written.alone(rows, 1)
    assert [document.text() for document in alone] == [row["text"] for row in rows]
    asked = [fact for document in alone for question in document.questions for fact in question.facts]
    assert sum(fact.value is not None for fact in asked) == sum(len(row["facts"]) for row in rows)
    assert sum(fact.value is None for fact in asked) == sum(len(row["absent"]) for row in rows)
    for length, people in ((2048, 1), (4096, 2), (16384, 4)):
        documents = written.long(rows, length, 1, padder, 0)
        assert len(documents) == -(-len(rows) // people)
        first = documents[0]
        text = first.text()
        assert count(text) == pytest.approx(length, rel=0.01)
        assert all(row["text"] in text for row in rows[:people])
        assert {question.person for question in first.questions} == {row["person"] for row in rows[:people]}
        assert all(fact.value is not None for question in first.questions for fact in question.facts)
        assert written.long(rows, length, 1, padder, 0)[0].text() == text
    with pytest.raises(UserError, match=r"does not fit .* of 90; raise card\.lengths or card\.written_lengths$"):
        written.long(rows, 90, 1, padder, 0)[0].text()


def test_attributes_of_a_person_are_asked_at_once(rows: list[dict]) -> None:
    together = written.alone(rows, 7)
    for document, row in zip(together, rows, strict=True):
        first, *others = document.questions
        assert first.facts == tuple(Fact(one["attribute"], one["value"], tuple(one["also"])) for one in row["facts"])
        assert [question.facts for question in others] == [(Fact(name),) for name in row["absent"]]
    for document in written.alone(rows, 4):
        sizes = [len(one.facts) for one in document.questions if one.facts[0].value]
        assert sizes in ([4, 2], [4, 3])


# Scores


@pytest.mark.parametrize(
    ("answer", "golds", "score", "exact"),
    [
        ("The Norman dynasty.", ["Norman dynasty"], 1.0, 1.0),
        ("in the 10th century", ["10th century", "the 9th"], 2 * (2 / 3) / (2 / 3 + 1), 0.0),
        ("a cat, a dog", ["cat"], 2 / 3, 0.0),
        ("dog dog", ["dog"], 2 / 3, 0.0),
        ("nothing", ["everything"], 0.0, 0.0),
        ("", ["x"], 0.0, 0.0),
    ],
)
def test_scores_of_squad(answer: str, golds: list[str], score: float, exact: float) -> None:
    assert f1(answer, golds) == pytest.approx(score)
    assert exact_match(answer, golds) == exact


def test_found_and_abstained() -> None:
    person, attribute = "Ann Lee", "birth place"
    said = summary(attribute, person, "the town of Cork, Ireland")
    assert found(said, attribute, person, ["Cork"])
    assert found(said, attribute, person, ["Kerry", "town of cork ireland"])
    assert not found(said, attribute, person, ["Cor"])
    assert not found(summary(attribute, person, "Cork and then five more words here"), attribute, person, ["Cork"])
    assert abstains(abstention(attribute, person), attribute, person)
    assert not abstains(said, attribute, person)
    assert not found(abstention(attribute, person), attribute, person, ["Cork"])
    free = f"The major of {person} is Law.\n{person}, the second of three sisters, was born in Cork.\nShe likes tea."
    assert found(free, attribute, person, ["Cork"])
    assert not found(free, "work place", person, ["Cork"])


def _answered(cell: str, document: str, budget: int | None, value: str | None, said: str) -> dict:
    return {
        "cell": cell, "document": document, "question": 0, "budget": budget, "prefill_budget": None,
        "person": "Ann Lee", "attribute": "major", "value": value, "also": ["Botanics"], "n_context": 9,
        "answer": summary("major", "Ann Lee", said),
    }  # fmt: skip


def test_figures_of_prose_are_held_to_the_readers_bars(config: schema.Config, tmp_path: Path) -> None:
    rows = [
        _answered("written", "a", None, "Botany", "botany"),
        _answered("written", "b", None, "Botany", "Botanics"),
        _answered("written", "c", None, "Botany", "unknown"),
        _answered("written", "d", None, "Botany", "Law"),
        _answered("written", "a", None, None, "unknown"),
        _answered("written", "b", None, None, "Law"),
    ]
    for document in "abcd":
        rows.append(_answered("written-4096", document, None, "Botany", "Botany"))
        rows.append(_answered("written-4096", document, 96, "Botany", "Botany" if document != "d" else "Law"))
        rows.append(_answered("written-16384", document, 8, "Botany", "Botany" if document == "a" else "Law"))
        rows.append(_answered("written-16384", document, 32, "Botany", "Botany" if document in "ab" else "Law"))
    rows.append({**_answered("xquad", "q", None, "red wine", ""), "also": [], "answer": "wine"})
    table = pa.Table.from_pylist(rows, schema=SCHEMAS["readings"])
    table = card_of(scores(table, config.judge, tmp_path / "answers.sqlite"), config).frame
    barred = table[(table["bar"] != "") & (table["n"] > 0)].set_index(["cell", "setting", "measure"])
    assert barred["value"].to_dict() == {
        ("written", "full attention", "value found"): 0.5,
        ("written", "full attention", "abstained"): 0.25,
        ("written, absent facts", "full attention", "abstained"): 0.5,
        ("written-4096", "full attention", "value found"): 1.0,
        ("written-4096", "K=96", "full attention less blocks"): 0.25,
        ("written-16384", "K=8 to K=32", "rise of values found"): 0.25,
        ("xquad", "full attention", "F1"): pytest.approx(2 / 3),
    }


# SQuAD


def test_questions_of_squad(tmp_path: Path) -> None:
    rows = [{"id": "1", "question": " Who? ", "answers": [{"text": "Rollo"}, {"text": "Count Rollo"}]},
            {"id": "2", "question": "Why?", "answers": [], "is_impossible": True}]  # fmt: skip
    file = tmp_path / "squad.json"
    file.write_text(json.dumps({"data": [{"title": "T", "paragraphs": [{"context": "Rollo did.", "qas": rows}]}]}))
    (document,) = written.squad(file)
    assert document.text() == "Rollo did."
    (question,) = document.questions
    assert (question.text, question.facts) == ("Who?", (Fact("1", "Rollo", ("Count Rollo",)),))
    paragraph = {"context": "Rollo did.", "qas": rows}
    bad = tmp_path / "bad.json"
    for content, said in (
        ([], "has a fault: Input should be a valid dictionary"),
        ({"data": [{"title": "T", "paragraphs": [{"context": "c"}]}]}, r"a fault at data\.0\.paragraphs\.0\.qas"),
        ({"data": [{"title": "T", "paragraphs": [paragraph]}] * 2}, "two articles of the title 'T'"),
        ({"data": []}, "no question with an answer"),
    ):
        bad.write_text(json.dumps(content))
        with pytest.raises(UserError, match=said) as caught:
            written.squad(bad)
        assert "card.xquad" in str(caught.value)


def test_training_leaves_out_what_benchmarks_ask(shared: Path) -> None:
    qa = shared / "qa"
    plain = lambda text: " ".join(text.split())  # noqa: E731
    kept = squad(qa / "squad_dev_v2_cs224n.json", qa / "xquad_en.json")
    assert kept
    assert not {article["title"] for article in kept} & set(APART)
    asked = {
        plain(p["context"]) for a in json.loads((qa / "xquad_en.json").read_text())["data"] for p in a["paragraphs"]
    }
    assert not {plain(p["context"]) for article in kept for p in article["paragraphs"]} & asked


# Cells and settings


def test_cells(root: Path) -> None:
    card = load(compose({"reader": "smollm2_tuned", "card": {"xquad": "x.json"}}, root)).card
    assert card.cells == ["summary", "natural", "absent", "written", "written-2048", "written-4096", "written-16384",
                          "xquad", "prefill-4096"]  # fmt: skip
    assert load(compose({}, root)).card.cells[-2:] == ["written", "written-16384"]


def test_full_attention_only_where_the_reader_has_the_positions(rows: list[dict]) -> None:
    reader = load_reader("tiny")
    card = schema.Card(biographies=str(BIOGRAPHIES), budgets=[2, 8], prefill_length=1024, prefill_budgets=[0, 10**6])
    prose_of = articles(paper_articles(), 0)
    assert cell_of("written", card, reader, prose_of, "embedded", 0).budgets == [None]
    assert cell_of("written-16384", card, reader, prose_of, "embedded", 0).budgets == [2, 8]
    assert cell_of("written-1024", card, reader, prose_of, "embedded", 0).budgets == [None, 2, 8]
    assert cell_of("prefill-1024", card, reader, prose_of, "embedded", 0).prefill_budgets == [0, 64]


@pytest.mark.parametrize(
    ("card", "said"),
    [
        ({"written_lengths": [300]}, "card.written_lengths starts at 300"),
        ({"prefill_budgets": [8, 0], "prefill_length": 4096}, "card.prefill_budgets is"),
        ({"prefill_budgets": [8]}, "belong together"),
        ({"budgets": []}, "card.budgets is"),
    ],
)
def test_impossible_settings_are_named(root: Path, card: dict[str, object], said: str) -> None:
    plain = compose({}, root)
    with pytest.raises(UserError, match=said):
        validate({**plain, "card": {**plain["card"], **card}})
