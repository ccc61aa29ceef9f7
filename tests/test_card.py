"""The reader card: its material, what counts as exact, its figures, and the shipped reader on a small sample."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from training.narratives import narrative
from utaca.biographies.corpora.embedded import articles
from utaca.biographies.corpora.topics import paper_articles
from utaca.biographies.padding import counter
from utaca.biographies.people import split_of
from utaca.biographies.sentences import abstention, summary
from utaca.card import figures, speed
from utaca.card.figures import ABSTAINED, EXACT, WRONG, Bar, Figure, outcome, share
from utaca.card.material import ATTRIBUTES, LONGEST, SHORT, SPLIT, Material, Question
from utaca.card.reading import read
from utaca.card.write import verdict, write_csv, write_markdown
from utaca.errors import UserError
from utaca.readers.load import Reader
from utaca.readers.shelf import load_reader
from utaca.records import SCHEMAS
from utaca.records.journal import Journal
from utaca.reporting.statistics import resamples
from utaca.settings import schema
from utaca.settings.checks import load, validate
from utaca.settings.compose import compose

LONG = "blocks-2000"
CELLS = (*SHORT, LONG)


@pytest.fixture(scope="module")
def reader() -> Reader:
    return load_reader("tiny")


@pytest.fixture(scope="module")
def material(reader: Reader) -> Material:
    return make_material(reader)


def make_material(reader: Reader) -> Material:
    return Material(articles(paper_articles(), 0), "embedded", counter(reader.tokenizer), reader.before, 0)


@pytest.fixture(scope="module")
def config(root: Path) -> schema.Config:
    return load(compose({"scale": "smoke", "card": {"questions": 6, "lengths": [2000], "budgets": [2, 8]}}, root))


# Material


@pytest.mark.parametrize("cell", CELLS)
def test_people_are_of_the_split_and_every_value_is_in_the_text(material: Material, cell: str) -> None:
    for document in material.documents(cell, 60):
        text = document.text()
        assert document.questions
        for question in document.questions:
            assert split_of(question.person) == SPLIT
            assert question.person in text
            for attribute, value in question.facts:
                if value is not None:
                    assert value in text
                    assert cell != "summary" or summary(attribute, question.person, value) in text


def test_absent_facts_are_absent_for_the_person_and_present_for_another(reader: Reader) -> None:
    stated: dict[str, dict[str, set[str]]] = {}

    class Watched(Material):
        def _patterned(self, *arguments, **keywords):
            return self._note(super()._patterned(*arguments, **keywords))

        def _narrated(self, *arguments, **keywords):
            return self._note(super()._narrated(*arguments, **keywords))

        def _note(self, made):
            text, known = made
            stated[text] = {person.name: {a for a, _ in facts} for person, facts in known.items()}
            assert all(value in text for facts in known.values() for _, value in facts)
            return made

    watched = Watched(articles(paper_articles(), 0), "embedded", counter(reader.tokenizer), reader.before, 0)
    natural = 0
    for document in watched.documents("absent", 100):
        known = stated[document.text()]
        natural += not any(f"The {a} of " in document.text() for a in ATTRIBUTES)
        for question in document.questions:
            ((attribute, value),) = question.facts
            assert value is None
            assert attribute not in known[question.person]
            assert any(attribute in own for person, own in known.items() if person != question.person)
    assert natural


def test_summary_cell_goes_round_all_attributes_and_people_share_them(material: Material) -> None:
    documents = material.documents("summary", 300)
    asked = [(d.id, attribute) for d in documents for q in d.questions for attribute, _ in q.facts]
    assert {attribute for _, attribute in asked} == set(ATTRIBUTES)
    assert len(set(asked)) < 0.7 * len(asked)


def test_natural_prose_is_not_worded_as_in_training(material: Material) -> None:
    """The same facts told by the training's wordings share hardly a sentence with the test documents."""
    rng, same, told = random.Random(0), 0, 0
    for document in material.documents("natural", 120):
        text = document.text()
        for question in document.questions:
            for sentence in narrative(question.person, list(question.facts), rng):
                told += 1
                same += any(value in sentence for _, value in question.facts) and sentence in text
    assert told > 100
    assert same / told < 0.02


def test_short_documents_keep_their_length(material: Material, reader: Reader) -> None:
    for cell in SHORT:
        for document in material.documents(cell, 60):
            assert len(reader.encode_document(document.text())) <= LONGEST


def test_a_larger_card_starts_with_the_documents_of_a_smaller_one(reader: Reader, material: Material) -> None:
    def plain(m: Material, cell: str, questions: int) -> list[tuple[str, str, tuple[Question, ...]]]:
        return [(d.id, d.text(), d.questions) for d in m.documents(cell, questions)]

    for cell in CELLS:
        small, large = plain(material, cell, 12), plain(make_material(reader), cell, 30)
        assert small == large[: len(small)]
        assert sum(len(q.facts) for _, _, questions in small for q in questions) >= 12


def test_unknown_cell(material: Material) -> None:
    with pytest.raises(UserError, match="no cell 'prose'"):
        material.documents("prose", 1)


# What counts


def test_one_attribute_is_exact_as_the_whole_answer_alone() -> None:
    right = summary("hobby", "Ann Lee", "Chess")
    assert outcome(right, "hobby", "Ann Lee", "Chess", alone=True) == EXACT
    for answer in (right + " ", right + right, right.replace("Chess", "chess"), right.replace("Ann", "Al"), ""):
        assert outcome(answer, "hobby", "Ann Lee", "Chess", alone=True) == WRONG
    withheld = abstention("hobby", "Ann Lee")
    assert outcome(withheld, "hobby", "Ann Lee", "Chess", alone=True) == ABSTAINED
    assert outcome(withheld, "hobby", "Ann Lee", None, alone=True) == ABSTAINED
    assert outcome(abstention("hobby", "Al Lee"), "hobby", "Ann Lee", None, alone=True) == WRONG


def test_several_attributes_are_judged_each_by_its_sentence() -> None:
    answer = " ".join(
        [
            summary("major", "Ann Lee", "Law"),
            abstention("company", "Ann Lee"),
            summary("birth place", "Ann Lee", "Rome"),
        ]
    )
    wanted = {"major": ("Law", EXACT), "company": ("Sony", ABSTAINED), "birth place": ("Oslo, Norway", WRONG)}
    for attribute, (value, expected) in wanted.items():
        assert outcome(answer, attribute, "Ann Lee", value, alone=False) == expected
    assert outcome(answer, "work place", "Ann Lee", "Rome", alone=False) == WRONG


def test_share_has_an_interval_even_where_all_documents_agree() -> None:
    counts = resamples(20, 500, 0, "test")
    asked = np.full(20, 6.0)
    some = share(np.array([6.0, 3.0] * 10), asked, counts)
    assert some.low < some.value == 0.75 < some.high
    for hits, value in ((0.0, 0.0), (6.0, 1.0), (3.0, 0.5)):
        same = share(np.full(20, hits), asked, counts)
        assert same.value == value
        assert same.low <= value <= same.high
    alone = share(np.array([2.0]), np.array([3.0]), resamples(1, 500, 0, "test"))
    assert np.isnan([alone.low, alone.high]).all(), "one document"
    # Wilson, 20 of 20: n / (n + z^2)
    assert share(asked, asked, counts).low == pytest.approx(20 / (20 + 1.959964**2), abs=1e-6)


def test_verdicts() -> None:
    def of(value: float, bar: Bar) -> str:
        return verdict(Figure("natural", "full attention", EXACT, 500, value, bar=bar))

    assert of(0.9, Bar(0.9)) == "met"
    assert of(0.8999, Bar(0.9)) == "missed by 0.001"
    assert of(0.02, Bar(0.03, most=True)) == "met"
    assert of(0.05, Bar(0.03, most=True)) == "missed by 0.020"
    assert of(math.nan, Bar(0.9)) == "not measured"


def test_bars_are_beside_the_figures_they_are_for(config: schema.Config, tmp_path: Path) -> None:
    rows = [
        {"cell": f"blocks-{n}", "document": f"blocks-{n}-{i}", "question": 0, "budget": budget, "person": "Ann Lee",
         "attribute": "major", "value": "Law", "n_context": n,
         "answer": summary("major", "Ann Lee", "Law" if budget > 2 else "Botany")}
        for n in (32768, 131072, 250000) for i in range(3) for budget in (2, 96)
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=SCHEMAS["readings"])
    found = figures.readings(table, config.judge, tmp_path / "answers.sqlite", config)
    barred = {(f.cell, f.setting, f.measure): (str(f.bar), f.value) for f in found if f.bar}
    assert barred == {
        ("blocks-32768", "K=96", "CAS"): (">= 0.85", 1.0),
        ("blocks-32768", "K=2 to K=96", "rise of CAS"): (">= 0.25", 1.0),
        ("blocks-131072", "K=96", "CAS"): (">= 0.80", 1.0),
        ("blocks-250000", "K=96", "CAS"): (">= 0.75", 1.0),
    }


# The shipped reader


@pytest.fixture(scope="module")
def answers(reader: Reader, material: Material, config: schema.Config, tmp_path_factory: pytest.TempPathFactory):
    journal = Journal(tmp_path_factory.mktemp("journal"), "")
    return pa.concat_tables([run(reader, material, cell, config, journal) for cell in CELLS])


def run(reader: Reader, material: Material, cell: str, config: schema.Config, journal: Journal) -> pa.Table:
    budgets = [None] if cell in SHORT else config.card.budgets
    return read(reader, cell, material.documents(cell, config.card.questions), budgets, journal)


def test_every_cell_is_on_the_card(reader: Reader, answers: pa.Table, config: schema.Config, tmp_path: Path) -> None:
    labels = [
        {"document": f"d{i % 3}", "budget": 1, "step": i, "token": i, "text": "x", "label": label,
         "source": "template", "reason": ""}
        for i, label in enumerate([0, 1, 2, None] * 10)
    ]  # fmt: skip
    found = [
        *figures.readings(answers, config.judge, tmp_path / "answers.sqlite", config),
        *figures.labels(pa.Table.from_pylist(labels, schema=SCHEMAS["labels"]), config),
        *figures.fertility(articles(paper_articles(), 0)[:3], counter(reader.tokenizer), 0),
    ]
    by_key = {(f.cell, f.setting, f.measure): f for f in found}
    assert len(by_key) == len(found)
    for cell, setting, measures in [
        ("summary", "full attention", (EXACT, ABSTAINED, WRONG)),
        ("natural", "full attention", (EXACT, ABSTAINED, WRONG)),
        ("absent facts", "full attention", (ABSTAINED, WRONG)),
        (LONG, "K=2", ("CAS", EXACT, ABSTAINED, WRONG)),
        (LONG, "K=8", ("CAS", EXACT, ABSTAINED, WRONG)),
        (LONG, "K=2 to K=8", ("rise of CAS",)),
        ("detector training set", "train", ("correct", "unknown", "hallucinated")),
    ]:
        assert all(by_key[cell, setting, measure].n >= 6 for measure in measures)
        shares = [by_key[cell, setting, measure].value for measure in measures if measure not in ("CAS", "rise of CAS")]
        assert not shares or sum(shares) == pytest.approx(1)
    assert ("summary and natural", "full attention", ABSTAINED) in by_key
    for f in found:
        assert math.isnan(f.low) or f.low <= f.value <= f.high, f
    assert all(("tokenizer", name, "tokens a value") in by_key for name in ATTRIBUTES)
    assert by_key["tokenizer", "prose", "tokens a word"].value > 1

    speeds = {
        "tokens": 2000,
        "prefills": 3,
        "prefill_seconds": 1.0,
        "budget": 32,
        "decoded": 48,
        "decode_milliseconds": 3.0,
        "points": {"number": 8, "milliseconds": 4.0, "alone_milliseconds": 2.0},
        "against": {"2048": {"prefill": 1.0, "forward": 3.0}},
    }
    write_csv(tmp_path / "card.csv", found)
    write_markdown(tmp_path / "card.md", found, {**speeds, "threads": 1, "dtype": "float32", "device": "x"}, config)
    text = (tmp_path / "card.md").read_text(encoding="utf-8")
    assert all(heading in text for heading in ("# Reader card: tiny", "## Bars", "## Block memory", "## Speed"))
    assert "A sample" in text
    assert "2.00 times as long" in text
    assert "| 2048 tokens read | 2048 tokens/s | 683 tokens/s | 3.00 x |" in text
    assert "| 30 (and 10 failed) |" in text
    header = (tmp_path / "card.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header == "cell,setting,measure,n,value,low,high,bar,failed"


def test_answers_are_the_same_in_another_run(
    reader: Reader, answers: pa.Table, config: schema.Config, tmp_path: Path
) -> None:
    again = run(reader, make_material(reader), "summary", config, Journal(tmp_path, ""))
    assert again.equals(answers.slice(0, len(again)))


def test_a_killed_reading_goes_on_from_its_journal(
    reader: Reader, material: Material, config: schema.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, documents = Journal(tmp_path, ""), material.documents(LONG, 12)
    cut = [documents[0], replace(documents[1], text=lambda: 1 / 0)]
    with pytest.raises(ZeroDivisionError):
        read(reader, LONG, cut, [2, 8], journal)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    assert len(kept) == 1, "both budgets"
    whole = read(reader, LONG, documents, [2, 8], journal)
    assert all(path.stat().st_mtime_ns == at for path, at in kept.items())
    assert len(whole) == 24

    monkeypatch.setattr("utaca.card.reading.prefill", None)
    assert read(reader, LONG, documents, [2, 8], journal).equals(whole)


def test_speed_is_measured(reader: Reader, material: Material) -> None:
    found = speed.measure(reader, material.documents(LONG, 1)[0])
    assert found["tokens"] == pytest.approx(2000, rel=0.02)
    assert found["prefill_seconds"] > 0
    assert found["device"]
    assert found["decoded"] == 0 or found["decode_milliseconds"] > 0
    assert found["points"]["milliseconds"] > 0


# Settings


@pytest.mark.parametrize(
    ("card", "said"),
    [
        ({"lengths": [32768, 8192]}, "card.lengths is"),
        ({"lengths": [300]}, "card.lengths starts at 300 but must start at 1024 or more"),
        ({"budgets": [0, 2]}, "card.budgets is"),
        ({"budgets": [2, 2]}, "card.budgets is"),
        ({"questions": 0}, "card.questions is 0"),
    ],
)
def test_impossible_settings_are_named(root: Path, card: dict[str, object], said: str) -> None:
    plain = compose({}, root)
    with pytest.raises(UserError, match=said):
        validate({**plain, "card": {**plain["card"], **card}})
