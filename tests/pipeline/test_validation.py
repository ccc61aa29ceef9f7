"""Drawn people on whom the tiny reader's training is validated, and the shipped reader on a few of them."""

from pathlib import Path

import pytest
from commands import snakemake
from conftest import copy_checkout

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


@pytest.mark.parametrize("kind", Drawn.KINDS)
def test_people_are_of_the_split_and_facts_are_in_the_text_or_absent(tiny: Reader, kind: str) -> None:
    prose = [p for article in articles(paper_articles(), 0) for p in paragraphs(article["text"])]
    for row in Drawn(prose, counter(tiny.tokenizer), tiny.before, 0).rows(kind, 60):
        text, person = row["text"], row["person"]
        assert row["facts"] or row["absent"]
        assert split_of(person) == SPLIT
        assert person in text
        for fact in row["facts"]:
            assert fact["value"] in text
            assert kind != "summary" or summary(fact["attribute"], person, fact["value"]) in text
        natural = not any(f"The {attribute} of " in text for attribute in ATTRIBUTES)
        for attribute in row["absent"]:
            assert not row["facts"]
            assert f"The {attribute} of {person}" not in text
            assert natural or f"The {attribute} of " in text, "another has it"


def test_files_are_made_by_their_rule_and_asked_by_the_task(tmp_path: Path, tiny: Reader) -> None:
    checkout = copy_checkout(tmp_path / "utaca")
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
