"""Drawn people on whom the tiny reader's training is validated, and the shipped reader on a few of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import snakemake

from training.tiny.validation import ATTRIBUTES, SPLIT, Drawn
from utaca.biographies.corpora.embedded import articles
from utaca.biographies.corpora.text import paragraphs
from utaca.biographies.corpora.topics import paper_articles
from utaca.biographies.handwritten import biographies
from utaca.biographies.padding import counter
from utaca.biographies.people import split_of
from utaca.biographies.sentences import summary
from utaca.readers.load import Reader
from utaca.settings.schema import TaskSetSettings
from utaca.tasks.biographies import Biographies


@pytest.fixture(scope="module")
def material(tiny: Reader) -> Drawn:
    return make_material(tiny)


def make_material(reader: Reader, kind: type[Drawn] = Drawn) -> Drawn:
    prose = [p for article in articles(paper_articles(), 0) for p in paragraphs(article["text"])]
    return kind(prose, counter(reader.tokenizer), reader.before, 0)


@pytest.mark.parametrize("kind", Drawn.KINDS)
def test_people_are_of_the_split_and_every_value_is_in_the_text(material: Drawn, kind: str) -> None:
    for row in material.rows(kind, 60):
        assert row["facts"] or row["absent"]
        assert split_of(row["person"]) == SPLIT
        assert row["person"] in row["text"]
        for fact in row["facts"]:
            assert fact["value"] in row["text"]
            assert kind != "summary" or summary(fact["attribute"], row["person"], fact["value"]) in row["text"]


def test_absent_facts_are_absent_for_the_person_and_present_for_another(tiny: Reader) -> None:
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

    natural = 0
    for row in make_material(tiny, Watched).rows("absent", 100):
        known = stated[row["text"]]
        natural += not any(f"The {a} of " in row["text"] for a in ATTRIBUTES)
        assert not row["facts"]
        for attribute in row["absent"]:
            assert attribute not in known[row["person"]]
            assert any(attribute in own for person, own in known.items() if person != row["person"])
    assert natural


def test_files_are_made_by_their_rule_and_asked_by_the_task(checkout: Path, tiny: Reader) -> None:
    done = snakemake(checkout, "-s", "training/Snakefile", "--cores", "1", "validation", "--config", "share=0.02")
    assert done.returncode == 0, done.stdout
    folder = checkout / "results" / "training" / "validation"
    assert sorted(path.stem for path in folder.glob("*.jsonl")) == sorted(Drawn.KINDS)
    for kind, evidence in (("natural", "complete"), ("absent", "missing")):
        rows = biographies(folder / f"{kind}.jsonl")
        settings = TaskSetSettings(task="biographies", evidence=[evidence], asked=6)
        examples = Biographies().examples(settings, {"rows": folder / f"{kind}.jsonl"}, tiny.prompts)
        assert len({one.document for one in examples}) == len({row["text"] for row in rows})
        assert sum(len(one.references) for one in examples) >= 10
