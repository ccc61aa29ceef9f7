"""The table of what a run is made of, held against files by hand."""

from pathlib import Path
from typing import Any

import factories
import pandas as pd
import pytest
from configs import reference_config

from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES
from utaca.biographies.corpora.topics import paper_articles
from utaca.detection.detector import Detector
from utaca.records import write
from utaca.reporting import paper
from utaca.reporting.table import Table
from utaca.reporting.tables import dataset
from utaca.settings import schema

PEOPLE: dict[str, list[dict[str, Any]]] = {
    "train": [
        {
            "facts": {"hobby": "Chess"},
            "sentences": ["It rains.", "Snow is cold.", "The hobby of Ann is Chess.", "Sun.", "Bye."],
        },
        {"facts": {"hobby": "Go"}, "sentences": ["The hobby of Ann is Go."]},
        {"facts": {"isbn code": "1-2"}, "sentences": ["The isbn code of Ann is 1-2."]},
    ],
    "validation": [{"facts": {"major": "Law"}, "sentences": ["The major of Ann is Law."]}],
    "test": [
        {
            "facts": {"company": "Acme", "shoe size": "44"},
            "sentences": ["Ann wears 44.", "She rests.", "Acme has her."],
        },
        {"facts": {"company": "Bolt"}, "sentences": ["Bolt has her."]},
    ],
}
TOKENS = {"train": [900, 1100, 1003], "validation": [800], "test": [171_000, 400_000]}


def files(folder: Path, settings: schema.DetectorSettings, titles: list[str]) -> dataset.Files:
    made: dict[str, list[str]] = {"biographies": [], "documents": [], "corpus": [], "main_detectors": []}
    for split, people in PEOPLE.items():
        rows, documents = [], []
        for number, person in enumerate(people):
            facts = [{"attribute": attribute, "value": value} for attribute, value in person["facts"].items()]
            told = {"person": "Ann", "locale": "", "facts": facts, "sentences": person["sentences"]}
            writer = "utaca-reference" if split == "test" else "pattern"
            rows.append({"id": f"{split}-{number}", "split": split, "writer": writer} | told)
            spans = [{"kind": "article", "source": "Jazz", "start": 0, "end": 9}] if split == "test" else []
            about = {"split": split, "n_tokens": TOKENS[split][number], "spans": spans}
            documents.append(factories.long_document(f"{split}-{number}", "", {}, **about))
        for kind, content in (("biographies", rows), ("documents", documents)):
            made[kind].append(str(folder / kind / f"{split}.parquet"))
            write(made[kind][-1], kind, content)
    article = {"text": "x", "url": "", "licence": "", "revision": "", "source": "", "synthetic": True}
    made["corpus"] = [str(folder / "corpus.parquet")]
    write(made["corpus"][0], "corpus", [article | {"title": title} for title in titles])
    for seed in range(2):
        detector = Detector(settings, 24)
        detector.facts = {"steps": 4321}
        made["main_detectors"].append(str(folder / f"seed{seed}.safetensors"))
        detector.save(made["main_detectors"][-1])
    return made


def cells(frame: pd.DataFrame) -> dict[tuple[str, str], tuple[str, str]]:
    return {(row.part, row.item): (row.here, row.paper) for row in frame.itertuples()}


def test_a_run_stands_beside_the_papers_data_set(tmp_path: Path) -> None:
    config, titles = reference_config(run="smoke-7"), ["Jazz", "Light", "Zoo"]
    frame = dataset.dataset(files(tmp_path, schema.DetectorSettings(), titles), config)
    found = cells(frame)
    assert len(found) == len(frame), "a row is named once"
    for split, count, facts in (("Training", "3", "1"), ("Validation", "1", "1"), ("Test", "2", "1 to 2")):
        assert found[f"{split} split", "Documents"][0] == count
        assert found[f"{split} split", "Facts per document"][0] == facts
    assert [found[f"{split} split", "Documents"][1] for split in ("Training", "Test")] == ["10,000", "100"]
    assert found["Training split", "Tokens per document"] == ("900 to 1,100, mean 1,001", "")
    tokens = found["Test split", "Tokens per document"]
    assert tokens == ("171,000 to 400,000, mean 285,500", "171,000 to 400,000, mean 252,000")
    assert found["Training split", "Text"][0] == "Summary among simple sentences"
    assert found["Training split", "Padding"] == ("none", "")
    assert found["Test split", "Padding"] == ("embedded (synthetic prose)", "Wikipedia")
    assert found["Test split", "Text"] == (
        "reference (built-in rules, no language model; the paper used GPT-OSS-120B)", "GPT-OSS-120B",
    )  # fmt: skip
    assert found["Attributes, training", "Hobby"][0] == "The hobby of Ann is Chess."
    assert found["Attributes, training", "Timezone"] == ("", paper.tables().attributes["timezone"])
    held_out = "Attributes, validation and test"
    assert found[held_out, "Company"][0] == "The company of Ann is Acme."
    assert found[held_out, "Shoe size"] == ("The shoe size of Ann is 44.", "")
    assert found["Example, training", "Biography"][0] == "... It rains. ... The hobby of Ann is Chess. ... Bye. ..."
    assert found["Example, test", "Biography"][0] == "... Ann wears 44. ... Acme has her. ..."
    assert found["Example, test", "Summary"][0] == "The company of Ann is Acme. The shoe size of Ann is 44."
    articles = "Articles of the padding"
    assert found[articles, "The paper's"] == ("2 of 90, synthetic prose under their titles, and 1 more", "90")
    assert (found[articles, "Arts"], found[articles, "History"][0]) == (("1: Jazz", "17"), "0")
    for item, here, reported in (
        ("Width of the embedding", "24", "4,096 (Llama-3.1-8B), 3,584 (Qwen2-7B)"),
        ("Signals, one number each", "1", "1"),
        ("Width of the hidden vector", "64", "64"),
        ("Inner width of a signal's encoder", "32", "32"),
        ("Residual blocks", "3", "3"),
        ("Expansion of a block", "2", "2"),
        ("Classes", "3", "3"),
    ):
        assert found["Detector", item] == (here, reported)
    training = "Training of the detector"
    assert found[training, "Steps"] == ("4,321", "10,000")
    assert found[training, "Seeds"] == ("2", "8")
    alike = {item for part, item in found if part == training} - {"Steps", "Seeds"}
    assert all(here == reported for item in alike for here, reported in [found[training, item]])
    assert "The run is smoke-7." in Table.of("dataset", frame, config).caption


def test_other_detectors_say_what_they_have(tmp_path: Path) -> None:
    settings = schema.DetectorSettings(signals=["margin", "retrieval"], embedding=False, classes=2)
    found = cells(dataset.dataset(files(tmp_path, settings, list(paper_articles())), reference_config()))
    items = ("Width of the embedding", "Signals, one number each", "Classes")
    assert [found["Detector", item][0] for item in items] == ["none", "2", "2"]
    assert found["Articles of the padding", "The paper's"][0] == "90 of 90, synthetic prose under their titles"
    bare = cells(dataset.dataset(files(tmp_path, schema.DetectorSettings(signals=[]), ["Zoo"]), reference_config()))
    assert bare["Detector", "Inner width of a signal's encoder"][0] == "none"


def test_the_papers_attributes_are_those_that_are_drawn() -> None:
    assert {*paper.tables().attributes} == {*TRAINING_ATTRIBUTES, *HELD_OUT_ATTRIBUTES}
    assert (len(TRAINING_ATTRIBUTES), len(HELD_OUT_ATTRIBUTES)) == (21, 6)
    for attribute, sentence in paper.tables().attributes.items():
        assert sentence.startswith(f"The {attribute} of ")


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (1234, "1,234"), (0.001, "0.001"), ((1.0, 0.05), "1, 0.05"), ("a", "a")]
)
def test_values_are_texts(value: object, text: str) -> None:
    assert dataset.said(value) == text
