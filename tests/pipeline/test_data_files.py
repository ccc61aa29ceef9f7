"""Text under ``data/``: what a file says, and the one sentence about a file that is wrong."""

import re
import shutil
from pathlib import Path

import pytest
from conftest import ROOT

from training.narratives import Wordings
from utaca import data_files
from utaca.biographies.attributes import Values
from utaca.biographies.corpora.embedded import Grammar, Vocabulary
from utaca.biographies.corpora.topics import Topics
from utaca.biographies.fillers import Fillers
from utaca.biographies.templates import Templates
from utaca.errors import UserError
from utaca.reporting.paper import Tables
from utaca.reporting.paper_tables import PaperTables
from utaca.runs.code_digest import closure

FILES = {
    "biographies/wordings.yaml": Wordings,
    "biographies/writer.yaml": Templates,
    "biographies/fillers.yaml": Fillers,
    "biographies/values.yaml": Values,
    "biographies/topics.yaml": Topics,
    "biographies/vocabulary.yaml": Vocabulary,
    "biographies/grammar.yaml": Grammar,
    "paper.yaml": Tables,
    "paper_tables.yaml": PaperTables,
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the texts, which is read instead of them."""
    for name in FILES:
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "data" / name, tmp_path / "data" / name)
    monkeypatch.setattr(data_files, "root", lambda: tmp_path)
    monkeypatch.setattr(data_files, "read", data_files.read.__wrapped__)
    return tmp_path / "data"


def test_a_line_that_is_added_is_read_a_comment_is_none_and_words_stay_words(data: Path) -> None:
    hobbies, name = data_files.read("biographies/values.yaml", Values).hobbies, "biographies/vocabulary.yaml"
    path = data / "biographies" / "values.yaml"
    path.write_text(path.read_text("utf-8").replace("hobbies: |\n", "hobbies: |\n  # first\n  Falconry\n\n"), "utf-8")
    assert data_files.read("biographies/values.yaml", Values).hobbies == ("Falconry", *hobbies)
    (data / name).write_text(re.sub(r"region: .*", "region: [on, no, 12]", (data / name).read_text("utf-8")), "utf-8")
    assert data_files.read(name, Vocabulary).slots["region"] == ("on", "no", "12")


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        (
            "wordings",
            "On {v}, {s} {was|were} born.",
            "On {v} in {w}.",
            "facts > birth date > entry 1 .*{w} is not a slot",
        ),
        ("wordings", "On {v}, {s} {was|were} born.", "{s} {was|were} born.", "entry 1 .*it has {v} 0 times, not once"),
        ("wordings", "On {v}, {s} {was|were} born.", "On {v} a child came.", "entry 1 .*it has none of {"),
        ("wordings", "On {v}, {s} {was|were} born.", "On {v}, {s was born.", "entry 1 .*a brace has no partner"),
        ("wordings", "On {v}, {s} {was|were} born.", "On {v}, {s} came", "entry 1 .*does not end in a full stop"),
        ("wordings", "  birth place: |", "  birth date: |", "'birth date' comes twice.*line 96"),
        ("wordings", "openings: |", "openings:\n\nothers: |", "openings.*at least 1"),
        ("wordings", "facts:", "facts: [", "is not a YAML file of texts: .*line"),
        ("writer", "{Subject} was born on {value}.", "{Subject} was {value!r}.", "facts > birth date > entry 1"),
        ("writer", "    {firm}", "    Acme", "forms > firm > entry 1 .*it has {firm} 0 times"),
        ("fillers", "The sun is warm.", "The sun is", "fillers > entry 3 .*does not end in a full stop"),
        ("values", "  Sleeping", f"  {'Sleeping' * 13}", "hobbies > entry 1 .*at most 100 characters"),
        ("grammar", "{topic} has been", "{subject} has been", "opening > entry 1 .*{subject} is not a slot"),
        ("paper", "top10_std: [57.43, ", "top10_std: [many, ", "detection > top10_std.*'many'"),
        ("paper", "utaca 3 set.1:", "utaca:", "validation > llama31_8b > utaca"),
        ("paper_tables", "targets: [detection]", "targets: []", "tables > entry 1 > targets.*at least 1"),
    ],
)
def test_a_wrong_file_is_one_sentence(data: Path, name: str, old: str, new: str, said: str) -> None:
    name = f"{name}.yaml" if name.startswith("paper") else f"biographies/{name}.yaml"
    text = (data / name).read_text("utf-8")
    assert old in text
    for content, sentence in ((text.replace(old, new, 1), said), ("", "the whole: Input should be")):
        (data / name).write_text(content, "utf-8")
        with pytest.raises(UserError, match=sentence) as caught:
            data_files.read(name, FILES[name])
        assert str(data / name) in str(caught.value)
        assert "\n" not in str(caught.value)
    (data / name).unlink()
    with pytest.raises(UserError, match=r"\.yaml cannot be read .*restore it"):
        data_files.read(name, FILES[name])


def test_a_stage_has_the_texts_that_it_reads_among_its_code() -> None:
    read = {
        "corpus": {"topics", "vocabulary", "grammar"},
        "draw_biographies": {"values", "locales"},
        # The list of public readers, to which users add, is not among them.
        "fill": {"fillers"},
    }
    for stage, texts in read.items():
        files = {Path(path) for path in closure(ROOT / "workflow/scripts" / f"{stage}.py", ROOT / "src")}
        assert {path.stem for path in files if path.is_relative_to(ROOT / "data")} == texts
