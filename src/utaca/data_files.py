"""Text that ships as YAML files under ``data/``: wordings, words, values, the paper's figures.

A file is read once per process, when first needed, and checked against a type: a :class:`DataFile` of :data:`Entries`.
"""

import hashlib
import os
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from utaca.errors import UserError

_PACKAGE = Path(__file__).resolve().parent
_SLOT = re.compile(r"\{([^{}]*)\}")

T = TypeVar("T")
DataFileType = TypeVar("DataFileType", bound="DataFile")


class DataFile(BaseModel, frozen=True, extra="forbid"):
    """What a file holds: its keys are the fields, no more and no fewer."""


class _Loader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):
    """YAML loader that leaves every scalar a text ("on" is a word) and refuses a key that comes twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        """The dict of a YAML mapping; raises yaml.MarkedYAMLError if a key comes twice."""
        keys: list[Any] = []
        for key, _ in node.value:
            keys.append(self.construct_object(key))
            if keys[-1] in keys[:-1]:
                raise yaml.MarkedYAMLError(problem=f"the key {keys[-1]!r} comes twice", problem_mark=key.start_mark)
        return super().construct_mapping(node, deep)


def _lines(held: Any) -> Any:
    """The lines of a text, without comments and empty lines; anything but a text as it is."""
    if not isinstance(held, str):
        return held
    lines = (line.strip() for line in held.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


Entries = Annotated[tuple[T, ...], BeforeValidator(_lines), Field(min_length=1)]
"""One or more entries of type T, in the order of the file: one per line, or a YAML list; "#" begins a comment."""

Pair = Annotated[tuple[T, T], BeforeValidator(lambda key: tuple(key.split(", ")))]
"""A key of two parts of type T, "birth date, birth place"."""


def _sentence(text: str) -> str:
    """Return the text if it ends in a full stop; else raise ValueError."""
    if not text.endswith("."):
        raise ValueError("it does not end in a full stop")
    return text


Sentence = Annotated[str, AfterValidator(_sentence)]
"""A text that ends in a full stop."""


def slots(
    others: str = "", once: str = "", some: str = "", capitals: bool = False, choices: bool = False
) -> AfterValidator:
    """Make a check of texts with slots ``{NAME}``: a pydantic validator that refuses a text with wrong slots.

    ``others``, ``once`` and ``some`` are names of slots, separated by blanks. Each name of ``once`` must occur exactly
    once, and at least one of the names of ``some``; names of ``others`` may occur; other names may not. With
    ``capitals``, a name may begin with a capital; with ``choices``, a slot may offer two words, as ``{was|were}``.
    """
    once_names = once.split()
    some_names = some.split()
    names = {*others.split(), *once_names, *some_names}

    def check(text: str) -> str:
        """Return the text if its slots are right; else raise ValueError, which says what is wrong."""
        used = _SLOT.findall(text)
        if capitals:
            # A slot at the start of a sentence, {Name}, counts as the slot {name}.
            used = [name[:1].lower() + name[1:] for name in used]
        for name in used:
            is_choice = choices and name.count("|") == 1
            if name not in names and not is_choice:
                raise ValueError(f"{{{name}}} is not a slot; use {_listed(sorted(names))}")
        if re.search(r"[{}]", _SLOT.sub("", text)):
            raise ValueError("a brace has no partner")
        for name in once_names:
            if used.count(name) != 1:
                raise ValueError(f"it has {{{name}}} {used.count(name)} times, not once")
        if some_names and not set(used) & set(some_names):
            raise ValueError(f"it has none of {_listed(some_names)}")
        return text

    return AfterValidator(check)


def _listed(names: list[str]) -> str:
    """The slots of these names, for a message."""
    return ", ".join(f"{{{name}}}" for name in names)


def root() -> Path:
    """The folder that holds ``config/`` and ``data/``: the checkout, or their copy in an installed package."""
    installed = _PACKAGE / "shipped"
    return installed if installed.is_dir() else _PACKAGE.parents[1]


@cache
def read(name: str, kind: type[DataFileType]) -> DataFileType:
    """Read the file ``data/NAME`` into an object of the class ``kind``.

    Callers write ``name`` as a literal, because :mod:`utaca.runs.code_digest` looks for it in the code, to make the
    file a part of the code's digest.

    Raises:
        UserError: the file is missing, or not YAML, or not of this ``kind``; names the file and the line or key.
    """
    path = root() / "data" / name
    try:
        with path.open("rb") as file:
            held = yaml.load(file, _Loader)
        return kind.model_validate(held)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); restore it from the repository.") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not a YAML file of texts: {' '.join(str(error).split())}.") from error
    except ValidationError as error:
        raise UserError(f"{path}, {_fault(error)}.") from error


def _fault(error: ValidationError) -> str:
    """The first fault: the key, the number and text of the entry under that key, and what is wrong."""
    fault = error.errors()[0]
    parts = [f"entry {part + 1}" if isinstance(part, int) else part for part in fault["loc"]]
    place = " > ".join(parts)
    entry = f" {fault['input']!r}" if isinstance(fault["input"], str) else ""
    return f"{place or 'the whole'}{entry}: {fault['msg'].removeprefix('Value error, ')}"


def sha256(path: Path) -> str:
    """SHA-256 of a file, as 64 hex digits; "" if the file is missing."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shipped(path: str, root: Path) -> str:
    """``path``, made absolute if the checkout ``root`` has it and the working directory does not; else unchanged."""
    is_shipped = path and not os.path.exists(path) and os.path.exists(root / path)
    return str(root / path) if is_shipped else path
