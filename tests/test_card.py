"""The reader card: its material, what counts as exact, its table, and the shipped reader on a small sample."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from training.narratives import narrative
from utaca.biographies.corpora.embedded import articles
from utaca.biographies.corpora.topics import paper_articles
from utaca.biographies.padding import counter
from utaca.biographies.people import split_of
from utaca.biographies.sentences import abstention, summary
from utaca.errors import UserError
from utaca.readers.load import Reader
from utaca.readers.shelf import load_reader
from utaca.records import SCHEMAS
from utaca.records.journal import Journal
from utaca.reporting.card import card, verdict
from utaca.reporting.tables import save
from utaca.settings import schema
from utaca.settings.checks import identity, load, validate
from utaca.settings.compose import compose
from utaca.tasks.card.answers import answers as read
from utaca.tasks.card.drawn import ATTRIBUTES, LONGEST, Drawn
from utaca.tasks.card.material import SPLIT, Question
from utaca.tasks.card.measures import ABSTAINED, EXACT, WRONG, outcome, scores

SHORT = ("summary", "natural", "absent")
LONG = "blocks-2000"
CELLS = (*SHORT, LONG)


@pytest.fixture(scope="module")
def reader() -> Reader:
    return load_reader("tiny")


@pytest.fixture(scope="module")
def material(reader: Reader) -> Drawn:
    return make_material(reader)


def make_material(reader: Reader) -> Drawn:
    return Drawn(articles(paper_articles(), 0), "embedded", counter(reader.tokenizer), reader.before, 0)


@pytest.fixture(scope="module")
def config(root: Path) -> schema.Config:
    return load(compose({"scale": "smoke", "card": {"questions": 6, "lengths": [2000], "budgets": [2, 8]}}, root))


# Drawn


@pytest.mark.parametrize("cell", CELLS)
def test_people_are_of_the_split_and_every_value_is_in_the_text(material: Drawn, cell: str) -> None:
    for document in material.documents(cell, 60):
        text = document.text()
        assert document.questions
        for question in document.questions:
            assert split_of(question.person) == SPLIT
            assert question.person in text
            for fact in question.facts:
                if fact.value is not None:
                    assert fact.value in text
                    assert cell != "summary" or summary(fact.attribute, question.person, fact.value) in text


def test_absent_facts_are_absent_for_the_person_and_present_for_another(reader: Reader) -> None:
    stated: dict[str, dict[str, set[str]]] = {}

    class Watched(Drawn):
        def _patterned(self, *arguments, **keywords):
            return self._note(super()._patterned(*arguments, **keywords))

        def _narrated(self, *arguments, **keywords):
            return self._note(super()._narrated(*arguments, **keywords))

        def _note(self, made):
            text, told = made
            stated[text] = {person.name: set(known) for person, known in told.items()}
            assert all(value in text for known in told.values() for value in known.values())
            return made

    watched = Watched(articles(paper_articles(), 0), "embedded", counter(reader.tokenizer), reader.before, 0)
    natural = 0
    for document in watched.documents("absent", 100):
        known = stated[document.text()]
        natural += not any(f"The {a} of " in document.text() for a in ATTRIBUTES)
        for question in document.questions:
            (fact,) = question.facts
            assert fact.value is None
            assert fact.attribute not in known[question.person]
            assert any(fact.attribute in own for person, own in known.items() if person != question.person)
    assert natural


def test_summary_cell_goes_round_all_attributes_and_people_share_them(material: Drawn) -> None:
    documents = material.documents("summary", 300)
    asked = [(d.id, fact.attribute) for d in documents for q in d.questions for fact in q.facts]
    assert {attribute for _, attribute in asked} == set(ATTRIBUTES)
    assert len(set(asked)) < 0.7 * len(asked)


def test_natural_prose_is_not_worded_as_in_training(material: Drawn) -> None:
    """The same facts told by the training's wordings share hardly a sentence with the test documents."""
    rng, same, told = random.Random(0), 0, 0
    for document in material.documents("natural", 120):
        text = document.text()
        for question in document.questions:
            facts = [(fact.attribute, fact.value) for fact in question.facts]
            for sentence in narrative(question.person, facts, rng):
                told += 1
                same += any(value in sentence for _, value in facts) and sentence in text
    assert told > 100
    assert same / told < 0.02


def test_short_documents_keep_their_length(material: Drawn, reader: Reader) -> None:
    for cell in SHORT:
        for document in material.documents(cell, 60):
            assert len(reader.encode_document(document.text())) <= LONGEST


def test_a_larger_card_starts_with_the_documents_of_a_smaller_one(reader: Reader, material: Drawn) -> None:
    def plain(m: Drawn, cell: str, questions: int) -> list[tuple[str, str, tuple[Question, ...]]]:
        return [(d.id, d.text(), d.questions) for d in m.documents(cell, questions)]

    for cell in CELLS:
        small, large = plain(material, cell, 12), plain(make_material(reader), cell, 30)
        assert small == large[: len(small)]
        assert sum(len(q.facts) for _, _, questions in small for q in questions) >= 12


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


# The table


def figures_of(readings: pa.Table, config: schema.Config, store: Path) -> pd.DataFrame:
    return card(scores(readings, config.judge, store), config).frame.set_index(["cell", "setting", "measure"])


def test_verdicts() -> None:
    least = schema.Bar("natural", EXACT, 0.9)
    most = schema.Bar("natural", ABSTAINED, 0.03, most=True)
    assert [str(least), str(most)] == [">= 0.90", "<= 0.03"]
    assert verdict(0.9, least) == "met"
    assert verdict(0.8999, least) == "missed by 0.001"
    assert verdict(0.02, most) == "met"
    assert verdict(0.05, most) == "missed by 0.020"
    assert verdict(float("nan"), least) == "not measured"


def test_bars_of_the_readers_file_are_beside_their_figures(config: schema.Config, tmp_path: Path) -> None:
    rows = [
        {"cell": f"blocks-{n}", "document": f"blocks-{n}-{i}", "question": 0, "budget": budget, "person": "Ann Lee",
         "attribute": "major", "value": "Law", "n_context": n,
         "answer": summary("major", "Ann Lee", "Law" if budget > 2 else "Botany")}
        for n in (32768, 131072) for i in range(3) for budget in (2, 96)
    ]  # fmt: skip
    table = figures_of(pa.Table.from_pylist(rows, schema=SCHEMAS["readings"]), config, tmp_path / "answers.sqlite")
    barred = table[table["bar"] != ""][["bar", "verdict"]].T.to_dict("list")
    assert len(barred) == len(config.reader.bars)
    assert barred["blocks-32768", "K=96", "CAS"] == [">= 0.85", "met"]
    assert barred["blocks-32768", "K=2 to K=96", "rise of CAS"] == [">= 0.25", "met"]
    assert barred["blocks-131072", "K=96", "CAS"] == [">= 0.80", "met"]
    assert barred["blocks-250000", "K=96", "CAS"] == [">= 0.75", "not measured"]
    assert table.loc[("blocks-32768", "K=96", "CAS"), "value"] == 1


def test_another_bar_decodes_nothing_anew(root: Path) -> None:
    bars = [{"cell": "written", "measure": "value found", "limit": 0.5}]
    other = load(compose({"reader": {"use": "tiny", "bars": bars}}, root)).reader
    usual = load(compose({}, root)).reader
    assert other.bars != usual.bars
    assert identity(other) == identity(usual)


@pytest.mark.parametrize(
    ("bar", "said"),
    [
        ({"measure": "found"}, r"reader.bars\[0\].measure is 'found' but must be one of"),
        ({"limit": 80}, r"reader.bars\[0\].limit is 80 but must be a number at least -1.0 and at most 1.0"),
        ({"lowest": 0.1}, r"unknown config key reader.bars\[0\].lowest"),
    ],
)
def test_an_impossible_bar_is_named(root: Path, bar: dict[str, object], said: str) -> None:
    plain = compose({}, root)
    bars = [{"cell": "written", "measure": "value found", "limit": 0.5, **bar}]
    with pytest.raises(UserError, match=said):
        validate({**plain, "reader": {**plain["reader"], "bars": bars}})


# The shipped reader


@pytest.fixture(scope="module")
def answers(reader: Reader, material: Drawn, config: schema.Config, tmp_path_factory: pytest.TempPathFactory):
    journal = Journal(tmp_path_factory.mktemp("journal"), "")
    return pa.concat_tables([run(reader, material, cell, config, journal) for cell in CELLS])


def run(reader: Reader, material: Drawn, cell: str, config: schema.Config, journal: Journal) -> pa.Table:
    budgets = [None] if cell in SHORT else config.card.budgets
    return read(reader, cell, material.documents(cell, config.card.questions), budgets, journal)


def test_every_cell_is_on_the_card(answers: pa.Table, config: schema.Config, tmp_path: Path) -> None:
    scored = scores(answers, config.judge, tmp_path / "answers.sqlite")
    scored.loc[scored.index[scored["measure"] == "CAS"][0], "score"] = None
    table = card(scored, config)
    frame = table.frame.set_index(["cell", "setting", "measure"]).sort_index()
    assert frame.index.is_unique
    for cell, setting, measures in [
        ("summary", "full attention", (EXACT, ABSTAINED, WRONG)),
        ("natural", "full attention", (EXACT, ABSTAINED, WRONG)),
        ("absent facts", "full attention", (ABSTAINED, WRONG)),
        (LONG, "K=2", ("CAS", EXACT, ABSTAINED, WRONG)),
        (LONG, "K=8", ("CAS", EXACT, ABSTAINED, WRONG)),
        (LONG, "K=2 to K=8", ("rise of CAS",)),
    ]:
        assert (frame.loc[(cell, setting)][["n", "failed"]].sum(axis=1) >= 6).all()
        shares = [frame.loc[(cell, setting, measure), "value"] for measure in measures if "CAS" not in measure]
        assert not shares or sum(shares) == pytest.approx(1)
    assert ("summary and natural", "full attention", ABSTAINED) in frame.index
    assert any(setting in ATTRIBUTES for cell, setting, _ in frame.index if cell == "summary")
    inside = frame.dropna(subset="low")
    assert ((inside["low"] <= inside["value"]) & (inside["value"] <= inside["high"])).all()

    save(table, tmp_path)
    text = (tmp_path / "card.md").read_text(encoding="utf-8")
    assert text.startswith("## Reader card: tiny\n")
    assert "(and 1 failed) |" in text
    header = (tmp_path / "card.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header == "cell,setting,measure,n,value,low,high,bar,failed,verdict"


def test_answers_are_the_same_in_another_run(
    reader: Reader, answers: pa.Table, config: schema.Config, tmp_path: Path
) -> None:
    again = run(reader, make_material(reader), "summary", config, Journal(tmp_path, ""))
    assert again.equals(answers.slice(0, len(again)))


def test_a_killed_reading_goes_on_from_its_journal(
    reader: Reader, material: Drawn, config: schema.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("utaca.tasks.card.answers.TOGETHER", 2)
    journal, documents = Journal(tmp_path, ""), material.documents(LONG, 12)
    cut = [documents[0], replace(documents[1], text=lambda: 1 / 0)]
    with pytest.raises(ZeroDivisionError):
        read(reader, LONG, cut, [2, 8], journal)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.parquet")}
    assert len(kept) == 1, "both budgets"
    whole = read(reader, LONG, documents, [2, 8], journal)
    assert all(path.stat().st_mtime_ns == at for path, at in kept.items())
    assert len(whole) == 24

    monkeypatch.setattr("utaca.tasks.card.answers.prefill", None)
    assert read(reader, LONG, documents, [2, 8], journal).equals(whole)


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
