"""Decoding options as users write them, on the command line and in requests to the server.

A *budget* is a number of blocks: K of a fixed budget, K_max of an adaptive one. A *policy* is written as in the config,
``sub.8`` or ``set.2``. A *trigger* decides at which tokens the budget is expanded:

* the name of a detector that ships for the reader (``data/detectors``), or the path of a detector's file;
* ``margin``, or ``margin.X``: the token's logit margin is below X logits (:data:`MARGINS`, :data:`MARGIN`);
* ``agreement``, or ``agreement.N``: the reader generates another token under K_max, or under N blocks;
* ``every.N``: every N-th token; ``never``: no token; without a policy, the budget is then fixed.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from utaca.data_files import root
from utaca.decoding.policies import parse
from utaca.decoding.triggers import Agreement, Detected, Margin, Trigger
from utaca.decoding.triggers import parse as parse_trigger
from utaca.detection.detector import Detector, load
from utaca.errors import UserError, whole
from utaca.readers.files import listed_settings
from utaca.readers.load import Reader

BUDGETS = {"tiny": 8}
"""Default K_max by reader: the largest of the default run (docs/default_run.md)."""
BUDGET = 32
"""Default K_max of other readers: the public model's (config/experiments/evidence-public.yaml)."""
MARGINS = {"tiny": 7.5}
"""Default threshold of the trigger ``margin`` by reader, in logits: Youden's threshold on the validation tokens of the
reader's shipped detectors (config/runs/detectors-tiny.yaml)."""
MARGIN = 1.0
"""Default for other readers, in logits, not fitted: the second token is over exp(-1) times as likely as the best."""
PREFERRED = ("needed_chained", "utaca", "needed")
"""Names of shipped detectors; the first of them that ships for a reader is the reader's default trigger."""
FIXED = "never"


@dataclass(frozen=True)
class Choice:
    """How an answer is decoded.

    ``options`` are fields of :class:`utaca.decoding.options.Decoding`. ``trigger`` and ``policy`` are as a user writes
    them; a fixed budget has no policy. ``note`` is for the user, about a default that was chosen, or about a detector
    that was trained under another block memory; empty: no note.
    """

    options: Mapping[str, Any]
    trigger: str
    policy: str | None = None
    note: str = ""


def choose(
    reader: Reader,
    *,
    budget: object = None,
    policy: object = None,
    trigger: object = None,
    max_new_tokens: object = None,
) -> Choice:
    """The decoding options for an answer of ``reader``; an argument that is None stands for the reader's default.

    By default a shipped detector expands the budget; a reader without one answers under a fixed budget. The default
    policy is Sub.(K_max / 4), the proportion of the paper's K_max=64 and Sub.16. Raises :class:`UserError`, with a
    sentence that names the option, if a value is invalid.
    """
    most = _at_least_one("budget", BUDGETS.get(reader.settings.name, BUDGET) if budget is None else budget)
    longest = reader.settings.max_new_tokens if max_new_tokens is None else max_new_tokens
    options: dict[str, Any] = {"budget": most, "max_new_tokens": _at_least_one("max_new_tokens", longest)}
    if not isinstance(policy, str | None):
        raise UserError(f"policy must be a text, as sub.8 or set.2, not {policy!r}")
    if policy is not None:
        parse(policy)
    note = ""
    if trigger is None:
        trigger = next((name for name in PREFERRED if name in detectors(reader.identity)), None)
        if trigger is None and policy:
            raise UserError(
                f"no detector ships for reader {reader.settings.name}, so that policy needs a trigger too: the path of "
                "a detector, margin, agreement or every.N"
            )
        if trigger is None:
            trigger = FIXED
            note = (
                f"No detector ships for reader {reader.settings.name}: it answers under a fixed budget of {most} "
                "blocks; trigger margin adapts it without training."
            )
    expanding = triggered(reader, trigger, most)
    if trigger != FIXED or policy is not None:
        policy = policy or f"sub.{max(1, most // 4)}"
        options |= {"trigger": expanding, "policy": parse(policy)}
    if isinstance(expanding, Detected):
        path = detectors(reader.identity).get(str(trigger)) or Path(str(trigger))
        note = f"{note} {_other_memory(reader, expanding.detector, path)}".strip()
    return Choice(options, str(trigger), policy, note)


def triggered(reader: Reader, trigger: object, most: int) -> Trigger:
    """The trigger that a text names, under K_max = ``most``; raises :class:`UserError` if the text names none."""
    if not isinstance(trigger, str):
        raise UserError(f"trigger must be a text, as margin, not {trigger!r}")
    if parsed := parse_trigger(trigger):
        if isinstance(parsed, Agreement) and parsed.blocks >= most:
            blocks = parsed.blocks
            raise UserError(f"trigger {trigger} tries {blocks} blocks, but must try fewer than the budget, {most}")
        return parsed
    if match := re.fullmatch(r"margin(?:\.([0-9]{1,9}(?:\.[0-9]{1,9})?))?", trigger):
        return Margin(float(match[1] or MARGINS.get(reader.settings.name, MARGIN)))
    shipped = detectors(reader.identity)
    path = shipped.get(trigger) or (Path(trigger) if trigger.endswith(".safetensors") else None)
    if path:
        detector = _loaded(path)
        detector.check(reader)
        return Detected(detector)
    known = [*shipped, "margin", "agreement", "every.N", "never"]
    near = get_close_matches(trigger, known, n=1)
    hint = f"did you mean {near[0]}? Choose" if near else "choose"
    raise UserError(
        f"there is no trigger {trigger!r} for reader {reader.settings.name}; {hint} among {', '.join(known)}, or give "
        "the path of a detector's file, model.safetensors"
    )


def _other_memory(reader: Reader, detector: Detector, path: Path) -> str:
    """A sentence if the detector in the file ``path`` learnt from answers under another block memory; else "".

    The file says under which. Those that ship do not: they lie in a folder of the reader whose settings they had.
    """
    trained = detector.facts.get("memory")
    if trained is None and path.resolve().is_relative_to((root() / "data" / "detectors").resolve()):
        trained = asdict(listed_settings(path.resolve().parts[-4]).memory)
    ours = asdict(reader.settings.memory)
    # Where keys and values lie changes no answer.
    others = [key for key in ours if key != "storage" and key in (trained or ()) and ours[key] != trained[key]]
    if not others:
        return ""
    then = ", ".join(f"{key} {trained[key]}" for key in others)
    now = ", ".join(f"{key} {ours[key]}" for key in others)
    return f"Detector {path.resolve().parts[-3]} was trained under {then}, and is used here under {now}."


@cache
def detectors(identity: str) -> dict[str, Path]:
    """Files, by name, of the detectors that ship for the reader with this :attr:`Reader.identity`: the first seed's."""
    files = sorted((root() / "data" / "detectors").glob("*/*/seed0/model.safetensors"))
    return {path.parent.parent.name: path for path in files if _loaded(path).reader.identity == identity}


_loaded = cache(load)


def _at_least_one(name: str, value: object) -> int:
    number = whole(name, value)
    if number < 1:
        raise UserError(f"{name} must be at least 1, not {number}")
    return number
