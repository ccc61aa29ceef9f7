"""Decoding options as users write them, on the command line and in requests to the server.

A *budget* is a number of blocks, or a share of the document's (:mod:`utaca.settings.budgets`): K of a fixed budget,
K_max of an adaptive one. A *policy* is written as in the config, ``sub.8`` or ``set.2``. A *trigger* decides at which
tokens the budget is expanded:

* the name of a detector that ships for the reader (``data/detectors``), or the path of a detector's file;
* ``margin``, or ``margin.X``: the token's logit margin is below X logits (by default, the reader's ``margin``);
* ``agreement``, or ``agreement.N``: the reader generates another token under K_max, or under N blocks;
* ``every.N``: every N-th token; ``never``: no token; without a policy, the budget is then fixed.

:mod:`utaca.settings.triggers` reads a trigger's text.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from utaca.data_files import root
from utaca.decoding.policies import parse
from utaca.decoding.triggers import Detected, Trigger, trigger_of
from utaca.detection.detector import Detector, load
from utaca.errors import UserError, whole
from utaca.readers.files import listed_settings
from utaca.readers.load import Reader
from utaca.settings.budgets import Budget, checked, in_words, resolve
from utaca.settings.triggers import TriggerSetting
from utaca.settings.triggers import parse as parse_trigger

PREFERRED = ("needed_chained", "utaca", "needed")
"""Names of shipped detectors; the first of them that ships for a reader is the reader's default trigger."""
DRAFTS = 7
"""Default number of tokens to guess together."""
NEVER = TriggerSetting("never", None)
ENDLESS = 10**9
"""Blocks of a document without end: options are also checked before there is a document."""


@dataclass(frozen=True)
class Choice:
    """How an answer is decoded.

    ``options`` are fields of :class:`utaca.decoding.options.Decoding`, whose ``budget`` is a number of blocks.
    ``budget`` and ``policy`` are as a user writes them; a fixed budget has no policy. ``note`` is for the user, about a
    default that was chosen, or about a detector that was trained under another block memory; empty: no note.
    """

    options: Mapping[str, Any]
    trigger: TriggerSetting
    budget: Budget
    policy: str | None = None
    note: str = ""


def choose(
    reader: Reader,
    blocks: int = ENDLESS,
    *,
    budget: object = None,
    policy: object = None,
    trigger: object = None,
    max_new_tokens: object = None,
    drafts: object = None,
) -> Choice:
    """Choose the decoding options for an answer of ``reader``; an argument that is None means the reader's default.

    ``blocks`` is the document's number of blocks, for a budget that is a share of them.

    By default a shipped detector expands the budget; a reader without one answers under a fixed budget. The default
    policy is Sub.(K_max / 4), the proportion of the paper's K_max=64 and Sub.16. Raises :class:`UserError`, with a
    sentence that names the option, if a value is invalid.
    """
    settings = reader.settings
    written = checked(settings.budget if budget is None else budget)
    k_max = resolve(written, blocks)
    longest = settings.max_new_tokens if max_new_tokens is None else max_new_tokens
    options: dict[str, Any] = {"budget": k_max, "max_new_tokens": _at_least_one("max_new_tokens", longest)}
    options["drafts"] = DRAFTS if drafts is None else whole("drafts", drafts)
    if not isinstance(policy, str | None):
        raise UserError(f"policy must be a string such as sub.8 or set.2, not {policy!r}")
    if policy is not None:
        parse(policy)  # raises UserError for an invalid policy
    note = ""
    if trigger is not None:
        setting = _parsed(trigger)
    elif default := _preferred(reader):
        setting = TriggerSetting("detector", default)
    elif policy:
        raise UserError(
            f"no detector ships for reader {settings.name}, so a policy also needs a trigger: margin, agreement, "
            "every.N, or the path of a detector"
        )
    else:
        setting = NEVER
        note = (
            f"No detector ships for reader {settings.name}: it answers under a fixed budget of {in_words(written)}; "
            "trigger margin adapts it without training."
        )
    expansion = triggered(reader, setting, k_max)
    # A trigger that never expands, without a policy, is a fixed budget: it gets neither.
    is_adaptive = setting != NEVER or policy is not None
    if is_adaptive:
        policy = policy or f"sub.{max(1, k_max // 4)}"
        options["trigger"] = expansion
        options["policy"] = parse(policy)
    if isinstance(expansion, Detected):
        path = detectors(reader.identity).get(str(setting)) or Path(str(setting))
        note = f"{note} {_other_memory(reader, expansion.detector, path)}".strip()
    return Choice(options, setting, written, policy, note)


def detector_of(reader: Reader, name: str | None = None) -> Detector | None:
    """The detector of a ``name`` or file for a reader, by default the one that :func:`choose` takes.

    None if no name is given and no detector ships for the reader. Raises :class:`UserError` if the name is not a
    detector's, or if the detector does not suit the reader.
    """
    name = name or _preferred(reader)
    if not name:
        return None
    setting = _parsed(name)
    if setting.kind != "detector":
        raise UserError(
            f"{name} is a trigger without a detector; give the name of a detector that ships, or the path of a detector"
        )
    return triggered(reader, setting, ENDLESS).detector


def _preferred(reader: Reader) -> str:
    """The name of the detector that is taken for a reader if the user names none; "" if none ships."""
    shipped = detectors(reader.identity)
    names = [name for name in PREFERRED if name in shipped]
    return names[0] if names else ""


def _parsed(text: object) -> TriggerSetting:
    """Parse a trigger that a user wrote; raises :class:`UserError` if it is not a trigger."""
    if not isinstance(text, str):
        raise UserError(f"trigger must be a string such as margin, not {text!r}")
    try:
        return parse_trigger(text)
    except ValueError as error:
        raise UserError(f"trigger {error}") from error


def triggered(reader: Reader, setting: TriggerSetting, k_max: int) -> Trigger:
    """Make the trigger that a setting means for ``reader`` under ``k_max`` blocks.

    Raises :class:`UserError` if the setting names no detector, one that does not suit the reader, or too many blocks.
    """
    if setting.kind == "agreement" and setting.value is not None and setting.value >= k_max:
        raise UserError(
            f"trigger {setting}: the second pass has {setting.value} blocks, but must have fewer than the budget, "
            f"{k_max}"
        )
    if setting.kind == "margin" and setting.value is None:
        setting = replace(setting, value=reader.settings.margin)
    if setting.kind != "detector":
        return trigger_of(setting)
    name = str(setting)
    shipped = detectors(reader.identity)
    path = shipped.get(name) or (Path(name) if name.endswith(".safetensors") else None)
    if path:
        detector = _loaded(path)
        detector.check(reader)
        return trigger_of(setting, detector)
    known = [*shipped, "margin", "agreement", "every.N", "never"]
    similar = get_close_matches(name, known, n=1)
    hint = f"did you mean {similar[0]}? Otherwise " if similar else ""
    raise UserError(
        f"there is no trigger {name!r} for reader {reader.settings.name}; {hint}choose one of {', '.join(known)}, or "
        "give the path of a detector (.../model.safetensors)"
    )


def _other_memory(reader: Reader, detector: Detector, path: Path) -> str:
    """A sentence if the detector in the file ``path`` was trained under other settings of block memory; else "".

    The facts in the file have these settings. Files that ship lack them: they lie in a folder of the reader whose
    listed settings they were trained under (READER/DETECTOR/seed0/model.safetensors).
    """
    trained = detector.facts.get("memory")
    if trained is None and path.resolve().is_relative_to((root() / "data" / "detectors").resolve()):
        trained = asdict(listed_settings(path.resolve().parts[-4]).memory)
    if trained is None:
        return ""
    present = asdict(reader.settings.memory)
    # Where keys and values lie ("storage") changes no answer.
    compared = [key for key in present if key != "storage" and key in trained]
    differing = [key for key in compared if present[key] != trained[key]]
    if not differing:
        return ""
    then = ", ".join(f"{key} {trained[key]}" for key in differing)
    now = ", ".join(f"{key} {present[key]}" for key in differing)
    return f"Detector {path.resolve().parts[-3]} was trained under {then}, and is used here under {now}."


@cache
def detectors(identity: str) -> dict[str, Path]:
    """The files of the detectors that ship for the reader with this :attr:`Reader.identity`, by the detector's name.

    Of a detector's seeds, only the first ships.
    """
    files = sorted((root() / "data" / "detectors").glob("*/*/seed0/model.safetensors"))
    return {path.parent.parent.name: path for path in files if _loaded(path).reader.identity == identity}


_loaded = cache(load)


def _at_least_one(name: str, value: object) -> int:
    """The number that a user gave for ``name``; raises :class:`UserError` unless it is whole and at least 1."""
    number = whole(name, value)
    if number < 1:
        raise UserError(f"{name} must be at least 1, not {number}")
    return number
