"""The tokenizer by itself is the automatic one, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer, Qwen2Tokenizer

from utaca.readers.tokenizer import load_tokenizer

TEXTS = ["Emma Thompson was born on 12 May 1987.\n\n", "Ünïcode ٣ 漢字 \t 1234567", "<|end|> as text", ""]


def test_it_is_the_automatic_one(root: Path) -> None:
    path = str(root / "data" / "readers" / "tiny")
    own, automatic = load_tokenizer(path), AutoTokenizer.from_pretrained(path)
    assert type(own) is type(automatic)
    assert own.all_special_ids == automatic.all_special_ids
    for text in TEXTS:
        ids = own(text)["input_ids"]
        assert ids == automatic(text)["input_ids"]
        assert own.decode(ids) == automatic.decode(ids)


def test_a_class_of_its_own_is_kept(tmp_path: Path) -> None:
    vocabulary = {chr(33 + place): place for place in range(90)}
    Qwen2Tokenizer(vocab=vocabulary, merges=[]).save_pretrained(tmp_path)
    assert type(load_tokenizer(str(tmp_path))) is type(AutoTokenizer.from_pretrained(tmp_path))


@pytest.mark.parametrize("script", ["pad", "label_traces", "view_traces"])
def test_stages_that_only_tokenize_load_no_torch(root: Path, script: str) -> None:
    code = (
        "import ast, sys; from pathlib import Path;"
        f"tree = ast.parse(Path('workflow/scripts/{script}.py').read_text());"
        "tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)];"
        "exec(compile(tree, 'script', 'exec'), globals());"
        "load_tokenizer('data/readers/tiny'); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env={"PYTHONPATH": "src"}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "False", done.stderr
