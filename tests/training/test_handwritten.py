"""Biographies that people wrote by hand, as a task: their file, their documents, and what counts as found."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from utaca.biographies.corpora.embedded import articles
from utaca.biographies.corpora.topics import paper_articles
from utaca.biographies.handwritten import biographies, handwritten
from utaca.biographies.lengths import counter
from utaca.biographies.padding import Padder
from utaca.biographies.sentences import summary
from utaca.errors import UserError
from utaca.readers.prompts import Prompts
from utaca.readers.questions import question
from utaca.readers.tokenizer import load_tokenizer
from utaca.records import write
from utaca.records.tables import rows as rows_of
from utaca.settings.schema import TaskSetSettings
from utaca.tasks.biographies import Biographies, abstains, gives
from utaca.tasks.task import Example

TINY = str(ROOT / "data" / "readers" / "tiny")
BIOGRAPHIES = ROOT / "data" / "biographies" / "handwritten.jsonl"


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return biographies(BIOGRAPHIES)


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts(load_tokenizer(TINY), "instruct")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "corpus.parquet"
    write(path, "corpus", articles(paper_articles(), 0))
    return path


# The biographies

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
        (a_row() + "\n\n" + a_row(id=7), "line 3, has an error at id: Input should be a valid string"),
        (a_row() + "\n" + a_row(), "line 2, has the same id 'x1' as an earlier row"),
        (a_row(facts=[FACT | {"value": "Kerry"}]), "line 1, has the value 'Kerry', but its text does not contain it"),
        (a_row(facts=[FACT | {"value": " "}]), "line 1, has an error at facts.0.value"),
        (a_row(absent=["birth place"]), "line 1, has the attribute 'birth place' twice"),
        (a_row(facts=[]), "the biography 'x1' states no fact to ask for"),
        (b"\xff\xfe[", "is not UTF-8 text"),
        (None, "cannot be read"),
    ],
)
def test_bad_biographies_are_named(tmp_path: Path, content: str | bytes | None, said: str) -> None:
    bad = tmp_path / "bad.jsonl"
    if content is not None:
        bad.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=rf"bad\.jsonl.*{re.escape(said)}.*name another JSONL file"):
        list(handwritten(bad, 1))


def test_the_test_split_takes_the_first_people_and_six_of_their_facts(rows: list[dict], corpus: Path) -> None:
    found = list(handwritten(BIOGRAPHIES, 3))
    assert [row["person"] for row in found] == [row["person"] for row in rows[:3]]
    for row, original in zip(found, rows, strict=False):
        assert [fact["value"] for fact in row["facts"]] == [fact["value"] for fact in original["facts"][:6]]
        padder = Padder(rows_of(corpus, "corpus"), counter(load_tokenizer(TINY)), "of the test")
        document = padder.document(row, 2000, random.Random(0))
        assert original["text"] in document["text"]
        assert [place["attribute"] for place in document["evidence"]] == [fact["attribute"] for fact in row["facts"]]
    with pytest.raises(UserError, match=rf"{len(rows)} biographies, but 1000 are asked for"):
        list(handwritten(BIOGRAPHIES, 1000))


def asked(prompts: Prompts, corpus: Path | None = None, **settings: Any) -> list[Example]:
    files = {"rows": BIOGRAPHIES} | ({"corpus": corpus} if corpus else {})
    return Biographies().examples(TaskSetSettings(task="biographies", **settings), files, prompts)


def facts(examples: list[Example]) -> list[dict]:
    return [json.loads(reference) for one in examples for reference in one.references]


def test_each_stands_alone_and_is_asked_what_it_states_or_lacks(rows: list[dict], prompts: Prompts) -> None:
    one_by_one, lacking = asked(prompts), asked(prompts, evidence=["missing"], asked=7)
    assert {one.text for one in one_by_one} == {row["text"] for row in rows}
    assert [(fact["attribute"], fact["values"]) for fact in facts(one_by_one)] == [
        (fact["attribute"], [fact["value"], *fact["also"]]) for row in rows for fact in row["facts"]
    ]
    absent = [(name, []) for row in rows for name in row["absent"]]
    assert [(fact["attribute"], fact["values"]) for fact in facts(lacking)] == absent
    assert len(lacking) == len(absent)
    together = asked(prompts, asked=7, examples=3)
    assert [len(one.references) for one in together] == [len(row["facts"]) for row in rows[:3]]
    names = [fact["attribute"] for fact in rows[0]["facts"]]
    assert together[0].question == question(names, rows[0]["person"], "instruct")
    assert Biographies().longest(together[0].references) == 48 * len(names)
    with pytest.raises(UserError, match="has 66 biographies, but the set has examples=67"):
        asked(prompts, examples=67)
    with pytest.raises(UserError, match="evidence has 'partial'"):
        asked(prompts, evidence=["partial"])


def test_long_documents_hold_several_people_between_prose(rows: list[dict], prompts: Prompts, corpus: Path) -> None:
    for length, people in ((2048, 1), (4096, 2), (16384, 4)):
        examples = asked(prompts, corpus, length=length, asked=7)
        assert len({one.document for one in examples}) == -(-len(rows) // people)
        first = examples[0]
        assert len(prompts.text(first.text)) == pytest.approx(length, rel=0.01)
        assert all(row["text"] in first.text for row in rows[:people])
        sharing = [one for one in examples if one.document == first.document]
        assert {fact["person"] for fact in facts(sharing)} == {row["person"] for row in rows[:people]}
        assert {one.text for one in sharing} == {first.text}
    assert asked(prompts, corpus, length=4096) == asked(prompts, corpus, length=4096)
    with pytest.raises(UserError, match=r"does not fit into a document of 90; raise the set's length$"):
        asked(prompts, corpus, length=90)


# Scores


def test_a_score_is_the_share_of_what_was_asked(rows: list[dict], prompts: Prompts) -> None:
    task, example = Biographies(), asked(prompts, asked=7)[0]
    right = [summary(x["attribute"], rows[0]["person"], x["value"]) for x in rows[0]["facts"]]
    for lost in (0, 1, len(right)):
        share = 100 * (1 - lost / len(right))
        assert task.score(" ".join(right[lost:]), example.references) == pytest.approx(share)
    lacking = asked(prompts, evidence=["missing"])[0]
    (fact,) = facts([lacking])
    for value, points in (("unknown", 100), ("Rome", 0)):
        assert task.score(summary(fact["attribute"], fact["person"], value), lacking.references) == points
    assert task.is_official({"rows": BIOGRAPHIES})


def test_found_and_abstained() -> None:
    person, attribute = "Ann Lee", "birth place"
    said, unknown = summary(attribute, person, "the town of Cork, Ireland"), summary(attribute, person, "unknown")
    for answer, values, right in (
        (summary(attribute, person, "A+"), ["A+"], True),
        (summary(attribute, person, "A"), ["A+"], False),
        (said, ["Kerry", "town of cork ireland"], True),
        (said, ["Cor"], False),
        (summary(attribute, person, "Cork and then five more words here"), ["Cork"], False),
        (unknown, ["Cork"], False),
    ):
        assert gives(answer, attribute, person, values) == right
    assert abstains(unknown, attribute, person)
    free = f"The major of {person} is Law.\n{person}, the second of three sisters, was born in Cork.\nShe likes tea."
    assert gives(free, attribute, person, ["Cork"])
    assert gives(summary("place of birth", person, "Cork"), "place of birth", person, ["Cork"])
    assert not gives(free, "work place", person, ["Cork"])
