"""The trainings beside the package: their settings, and what their workflow makes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import snakemake
from conftest import ROOT, copy_checkout
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.settings import load
from training.tiny.training import SCHEDULE
from utaca.errors import UserError


def train(folder: Path, *arguments: str) -> str:
    """What Snakemake says of trainings; they succeed."""
    done = snakemake(folder, "-s", "training/Snakefile", "--cores", "1", *arguments)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_reader_and_the_classifier_are_trained_by_their_rules(tmp_path: Path) -> None:
    """The smallest share of the steps, one a stage, of a narrow model on a tiny corpus."""
    checkout = copy_checkout(tmp_path / "utaca")
    (checkout / "hills").mkdir()
    (checkout / "hills" / "hills.txt").write_text("The hills are old. " * 30 + "\n\n" + "The rivers are young. " * 30)
    sizes = "tiny={hidden_size: 32, layers: 3, heads: 2, kv_heads: 1, vocabulary: 600}"
    targets, trial = ("tiny", "llmlingua_classifier"), ("share=0.0001", "corpus=hills", sizes)
    train(checkout, "-n", "validation")
    train(checkout, *targets, "--config", *trial)
    results = checkout / "results" / "training"
    assert sorted(path.name for path in results.iterdir()) == ["llmlingua_classifier", "tiny"]
    folder = results / "tiny"
    assert len((folder / "curve.csv").read_text().splitlines()) == 1 + len(SCHEDULE)
    card = (folder / "README.md").read_text()
    assert "**A trial**" in card
    assert "`hills`" in card
    assert AutoModelForCausalLM.from_pretrained(folder).config.num_hidden_layers == 3
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert not (folder / "checkpoint.pt").exists()
    assert "Nothing to be done" in train(checkout, "-n", *targets, "--config", *trial)
    wordings = checkout / "data" / "biographies" / "wordings.yaml"
    wordings.write_text(wordings.read_text(encoding="utf-8") + "# One more.\n", encoding="utf-8")
    assert re.search(r"^total +2$", train(checkout, "-n", *targets, "--config", *trial), re.MULTILINE), "both read it"
    faulty = snakemake(checkout, "-s", "training/Snakefile", "-n", "tiny", "--config", "tiny={heads: 5}")
    assert "Error: tiny.heads is 5 but must be a multiple" in faulty.stdout
    assert (faulty.returncode, "Traceback" in faulty.stdout) == (1, False)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"tiny": {"kv_heads": "3"}}, "tiny.heads is 4 but must be a multiple of tiny.kv_heads, which is 3"),
        ({"tiny": {"hidden_size": "190"}}, "tiny.hidden_size is 190 but must be a multiple of twice tiny.heads"),
        ({"tiny": {"layer": 6}}, "unknown config key tiny.layer; did you mean tiny.layers?"),
        ({"share": 2}, "share is 2 but must be a number"),
        ({"corpus": 2020}, "corpus must be text"),
    ],
    ids=str,
)
def test_a_faulty_setting_is_a_sentence(changed: dict[str, Any], sentence: str) -> None:
    config = yaml.safe_load((ROOT / "training" / "config.yaml").read_text(encoding="utf-8"))
    for key, value in changed.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    with pytest.raises(UserError, match=re.escape(sentence)):
        load(config)
