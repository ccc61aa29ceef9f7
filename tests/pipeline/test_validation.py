"""Drawn people on whom the tiny reader's training is validated."""

from pathlib import Path

from commands import snakemake
from conftest import copy_checkout

from training.tiny.validation import ATTRIBUTES, SPLIT, Drawn
from utaca.biographies.handwritten import biographies
from utaca.biographies.people import split_of
from utaca.biographies.sentences import summary


def test_files_made_by_their_rule_state_facts_or_lack_them(tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / "utaca")
    done = snakemake(checkout, "-s", "training/Snakefile", "--cores", "1", "validation", "--config", "share=0.02")
    assert done.returncode == 0, done.stdout
    folder = checkout / "results" / "training" / "validation"
    assert sorted(path.stem for path in folder.glob("*.jsonl")) == sorted(Drawn.KINDS)
    for kind in Drawn.KINDS:
        rows = biographies(folder / f"{kind}.jsonl")  # whose facts are in their texts
        for row in rows:
            text, person = row["text"], row["person"]
            assert bool(row["facts"]) != bool(row["absent"])
            assert split_of(person) == SPLIT
            assert person in text
            for fact in row["facts"]:
                assert kind != "summary" or summary(fact["attribute"], person, fact["value"]) in text
            natural = not any(f"The {attribute} of " in text for attribute in ATTRIBUTES)
            for attribute in row["absent"]:
                assert f"The {attribute} of {person}" not in text
                assert natural or f"The {attribute} of " in text, "another has it"
        assert sum(len(row["facts"]) + len(row["absent"]) for row in rows) >= 10
