"""From a plain dict to the typed config, with one sentence for every mistake.

The second gate behind Hydra: it also serves dicts that never passed through Hydra (scripts, notebooks).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from utaca.errors import UserError
from utaca.settings import schema

T = TypeVar("T")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPE_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
ROLES = ("writer", "labeller", "judge")


def validate(config: Mapping[str, Any]) -> None:
    """Check a plain config dict; raises :class:`UserError` naming the first faulty key and what is allowed."""
    load(config)


def load(config: Mapping[str, Any]) -> schema.Config:
    """The typed config from a plain dict, checked as :func:`validate` does."""
    typed = build(schema.Config, config)
    _check_config(typed)
    return typed


def build(kind: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """An instance of the dataclass ``kind`` from a plain dict; ``where`` is the dict's dotted path, for messages.

    Keys left out take their default. Raises :class:`UserError` for unknown or missing keys, wrong types and
    values outside their range or choices.
    """
    if not isinstance(data, Mapping):
        raise UserError(f"{where or 'the config'} must be a mapping of keys to values, not {data!r}.")
    hints = get_type_hints(kind)
    known = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    for key in data:
        if key not in known:
            raise unknown_key(_join(where, str(key)), str(key), known)
    values = {}
    for name, declared in known.items():
        path = _join(where, name)
        if name in data:
            values[name] = _value(hints[name], data[name], path)
        elif declared.default == schema.MISSING:
            raise UserError(f"{path} is missing; set it to {_describe(hints[name], declared.metadata)}.")
        else:
            continue
        _check_range(values[name], declared.metadata, path)
    return kind(**values)


def unknown_key(path: str, key: str, known: Iterable[str]) -> UserError:
    """The error for a key that no dataclass has, with the nearest one that exists."""
    names = sorted(known)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"did you mean {_join(path.rpartition('.')[0], near[0])}?" if near else f"allowed are {', '.join(names)}."
    return UserError(f"unknown config key {path}; {hint}")


def identity(settings: Any) -> dict[str, Any]:
    """The part of a settings object that decides results, as a plain dict: all keys but transport.

    Rules take it as ``params``, so that a new address or rate reruns nothing.
    """
    return {f.name: _plain(getattr(settings, f.name)) for f in fields(settings) if not f.metadata.get("transport")}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return identity(value)
    if isinstance(value, list):
        return [_plain(element) for element in value]
    if isinstance(value, dict):
        return {name: _plain(element) for name, element in value.items()}
    return value


def digest(settings: Any) -> str:
    """16 hex digits of the SHA-256 of the canonical JSON of a settings object or plain value."""
    plain = asdict(settings) if is_dataclass(settings) and not isinstance(settings, type) else settings
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def _join(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _describe(kind: Any, metadata: Mapping[str, Any]) -> str:
    if "choices" in metadata:
        return "one of " + ", ".join(json.dumps(choice) for choice in metadata["choices"])
    if get_origin(kind) is list:
        return "a list"
    described = _TYPE_NAMES.get(kind, "a mapping")
    bounds = [
        f"{word} {metadata[key]}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in metadata
    ]
    return " ".join([described, " and ".join(bounds)]).strip()


def _value(kind: Any, value: Any, path: str) -> Any:
    if kind is Any:
        return value
    if value == schema.MISSING:
        raise UserError(f"{path} is missing; set it.")
    if is_dataclass(kind) and isinstance(kind, type):
        return value if isinstance(value, kind) else build(kind, value, path)
    if get_origin(kind) in (list, tuple):
        if not isinstance(value, list | tuple):
            raise UserError(f"{path} must be a list, not {value!r}.")
        item = get_args(kind)[0]
        return get_origin(kind)(_value(item, element, f"{path}[{number}]") for number, element in enumerate(value))
    if get_origin(kind) is dict:
        if not isinstance(value, Mapping):
            raise UserError(f"{path} must be a mapping of names to values, not {value!r}.")
        return {
            str(name): _value(get_args(kind)[1], element, _join(path, str(name))) for name, element in value.items()
        }
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise UserError(f"{path} must be {_TYPE_NAMES[kind]}, not {value!r}.")
    return value


def _check_range(value: Any, metadata: Mapping[str, Any], path: str) -> None:
    low, high, choices = metadata.get("minimum"), metadata.get("maximum"), metadata.get("choices")
    # written so that NaN fails
    out_of_range = (low is not None and not value >= low) or (high is not None and not value <= high)
    if out_of_range or (choices is not None and value not in choices):
        raise UserError(f"{path} is {value!r} but must be {_describe(type(value), metadata)}.")


def _check_config(config: schema.Config) -> None:
    for name in ("reader", "corpus", *ROLES, "scale"):
        _check_name(getattr(config, name).name, f"{name}.name")
    for split in ("train", "validation", "test"):
        _check_split(getattr(config.scale, split), f"scale.{split}")
    _check_reader(config.reader)
    _check_window(config)
    _check_corpus(config.corpus)
    for role in ROLES:
        _check_endpoint(getattr(config, role), role)
    _check_detectors(config)
    _check_suites(config)
    _check_card(config)


def _check_name(value: str, path: str) -> None:
    if not _NAME.fullmatch(value):
        raise UserError(f"{path} is {value!r} but is used in file names; use letters, digits, '-', '_' and '.' alone.")


def _check_split(split: schema.SplitSize, path: str) -> None:
    if len(split.tokens) != 2 or not 0 < split.tokens[0] <= split.tokens[1]:
        raise UserError(f"{path}.tokens is {split.tokens} but must be two ascending lengths, as in [400, 900].")
    if split.shards > split.biographies:
        raise UserError(
            f"{path}.shards is {split.shards} but must be at most {path}.biographies, which is {split.biographies}."
        )
    if not split.budgets or min(split.budgets) < 1 or sorted(set(split.budgets)) != split.budgets:
        raise UserError(f"{path}.budgets is {split.budgets} but must be ascending, distinct, and at least 1 each.")


def build_reader(data: Mapping[str, Any]) -> schema.Reader:
    """A reader's settings from a plain dict; raises :class:`UserError` as :func:`build` does, and where they do not fit
    together."""
    reader = build(schema.Reader, data, "reader")
    _check_reader(reader)
    return reader


def _check_reader(reader: schema.Reader) -> None:
    memory, training = reader.memory, reader.training
    if not reader.path:
        raise UserError("reader.path is empty; set it to a Hugging Face id or a local folder.")
    if memory.n_representatives > memory.block_size:
        raise UserError(
            f"reader.memory.n_representatives is {memory.n_representatives} but must be at most "
            f"reader.memory.block_size, which is {memory.block_size}."
        )
    if training.heads % training.kv_heads:
        raise UserError(
            f"reader.training.heads is {training.heads} but must be a multiple of reader.training.kv_heads, "
            f"which is {training.kv_heads}."
        )
    if training.hidden_size % (2 * training.heads):
        raise UserError(
            f"reader.training.hidden_size is {training.hidden_size} but must be a multiple of twice "
            f"reader.training.heads, which is {training.heads}, so that a head's width is even."
        )


def _window(memory: schema.Memory) -> int:
    """Tokens of the shortest document with a block outside of the window.

    A shorter one is read whole under every budget, and teaches nothing about budgets.
    """
    return memory.n_init + memory.n_local + memory.block_size


def _check_window(config: schema.Config) -> None:
    least = _window(config.reader.memory)
    for split in ("train", "validation", "test"):
        shortest = getattr(config.scale, split).tokens[0]
        if shortest < least:
            raise UserError(
                f"scale.{split}.tokens starts at {shortest}, but the window of reader {config.reader.name} holds "
                f"documents below {least} tokens whole, whatever the budget; start it at {least} or more (scale=paper "
                "does), or lower reader.memory.n_local."
            )


def _check_corpus(corpus: schema.Corpus) -> None:
    if corpus.source == "folder" and not corpus.path:
        raise UserError(
            "corpus.path is empty but corpus.source is folder; give the folder or file, "
            "as in --config corpus=/data/articles.jsonl."
        )
    if corpus.source != "folder" and corpus.path:
        raise UserError(f"corpus.path is set but corpus.source is {corpus.source}; only corpus.source=folder reads it.")


def _check_endpoint(endpoint: schema.Endpoint, role: str) -> None:
    if endpoint.kind == "remote" and not re.match(r"https?://[^/\s]", endpoint.base_url):
        raise UserError(
            f"{role}.base_url is {endpoint.base_url!r} but must be the server's address, as in http://localhost:8000/v1."
        )
    if endpoint.kind == "remote" and "@" in endpoint.base_url:
        raise UserError(
            f"{role}.base_url must not hold a user or password; name the environment variable of the key in "
            f"{role}.api_key_env."
        )
    if endpoint.api_key_env and not _VARIABLE.fullmatch(endpoint.api_key_env):
        # the value may be the key itself: never echo it
        raise UserError(
            f"{role}.api_key_env must be the name of the environment variable that holds the key, "
            "in letters, digits and '_', not the key itself."
        )


def check_detector(detector: schema.Detector, path: str) -> None:
    """Raise :class:`UserError` where the settings of a detector contradict each other."""
    if not detector.signals and not detector.embedding:
        raise UserError(f"{path}.signals is empty and {path}.embedding is false; give it at least one input.")
    if unknown := [name for name in detector.signals if name not in schema.SIGNALS]:
        raise UserError(f"{path}.signals names {unknown[0]!r}; signals are {', '.join(schema.SIGNALS)}.")
    if len(set(detector.signals)) != len(detector.signals):
        raise UserError(f"{path}.signals is {detector.signals} but must name each signal once.")
    if detector.classes != 2 and (detector.kind == "evidential" or detector.label == "needed"):
        key = f"kind {detector.kind}" if detector.kind == "evidential" else f"label {detector.label}"
        raise UserError(f"{path}.classes is {detector.classes} but {key} knows two classes; set it to 2.")
    if detector.chain > 1 and not detector.lstm:
        raise UserError(f"{path}.chain is {detector.chain} but without an LSTM answers have no length; set it to 1.")
    if len(detector.class_weights) != 3 or min(detector.class_weights) < 0 or not any(detector.class_weights):
        raise UserError(
            f"{path}.class_weights is {detector.class_weights} but must be three weights of at least 0, not all of "
            "them 0 (a detector of two classes uses them too)."
        )
    _check_policy(detector.target.policy, detector.target.k_max, f"{path}.target.policy")


def _check_detectors(config: schema.Config) -> None:
    recorded = config.trajectories
    if unknown := [site for site in recorded.sites if site not in schema.SITES]:
        raise UserError(f"trajectories.sites names {unknown[0]!r}; sites are {', '.join(schema.SITES)}.")
    if len(set(recorded.sites)) != len(recorded.sites):
        raise UserError(f"trajectories.sites is {recorded.sites} but must name each site once.")
    widest = max(max(getattr(config.scale, split).budgets) for split in ("train", "validation", "test"))
    if 0 < recorded.expanded <= widest:
        raise UserError(
            f"trajectories.expanded is {recorded.expanded} but must be above the budgets, which go up to {widest}."
        )
    if config.detector not in config.detectors:
        raise UserError(
            f"detector is {config.detector!r} but must name one of detectors, which are "
            f"{', '.join(config.detectors) or 'none'}."
        )
    for name, detector in config.detectors.items():
        path = f"detectors.{name}"
        _check_name(name, path)
        check_detector(detector, path)
        if detector.embedding and detector.site not in recorded.sites:
            raise UserError(
                f"{path}.site is {detector.site}, but trajectories.sites is {recorded.sites}; add it there."
            )
        if detector.label == "needed" and not recorded.expanded:
            raise UserError(
                f"{path}.label is needed, which trajectories tell only where trajectories.expanded is above 0; set it "
                "to a K_max."
            )


def _check_card(config: schema.Config) -> None:
    for key in ("lengths", "budgets"):
        values: list[int] = getattr(config.card, key)
        if not values or values[0] < 1 or sorted(set(values)) != values:
            raise UserError(f"card.{key} is {values} but must be ascending, distinct, and at least 1 each.")
    # The shortest one must also hold a biography.
    least = max(1024, _window(config.reader.memory))
    if config.card.lengths[0] < least:
        raise UserError(f"card.lengths starts at {config.card.lengths[0]} but must start at {least} or more.")


def _check_suites(config: schema.Config) -> None:
    for name, suite in config.suites.items():
        path = f"suites.{name}"
        _check_name(name, path)
        if name == "replays":
            raise UserError("suites.replays would share its results' folder with the replays; give it another name.")
        if not suite.points:
            raise UserError(f"{path}.points is empty; give it at least one operating point.")
        for number, point in enumerate(suite.points):
            _check_point(point, f"{path}.points[{number}]", config)
        compares = suite.table in ("methods", "budgets")
        if compares and suite.split != "test":
            raise UserError(f"{path}.table is {suite.table} but its split is {suite.split}; use split: test.")
        if not compares and (foreign := [point.decoder for point in suite.points if not point.in_blocks]):
            raise UserError(
                f"{path} holds method {foreign[0]} but its table is {suite.table}; use table: methods or budgets."
            )
        names = [point.label for point in suite.ran(config.scale.detector_seeds)]
        if len(set(names)) != len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise UserError(f"{path}.points holds {twice} twice; remove one.")
        adaptive = any(point.method == "utaca" for point in suite.points)
        if adaptive and config.detector_seed >= config.scale.detector_seeds:
            raise UserError(
                f"detector_seed is {config.detector_seed} but must be below scale.detector_seeds, "
                f"which is {config.scale.detector_seeds}."
            )
        for number, point in enumerate(suite.points):
            _check_trigger(point, f"{path}.points[{number}]", config)
    replayable = [point.label for point in config.replayable()]
    if config.scale.replays and config.replays_of not in replayable:
        raise UserError(
            f"replayed is {config.replayed!r} but must name a point of method utaca of the test split, which are "
            f"{', '.join(replayable) or 'none'}; or set scale.replays to 0."
        )


def _check_trigger(point: schema.Point, path: str, config: schema.Config) -> None:
    if point.method != "utaca" and (point.detector or point.seed >= 0):
        key = "detector" if point.detector else "seed"
        raise UserError(f"{path}.{key} is set but method {point.method} has no detector; remove it.")
    if point.detector and point.detector not in config.detectors:
        raise UserError(f"{path}.detector is {point.detector!r} but must be one of {', '.join(config.detectors)}.")
    if point.seed >= config.scale.detector_seeds:
        raise UserError(
            f"{path}.seed is {point.seed} but must be below scale.detector_seeds, which is "
            f"{config.scale.detector_seeds}."
        )


def _check_point(point: schema.Point, path: str, config: schema.Config) -> None:
    adaptive = point.method in ("utaca", "oracle")
    if point.base and not adaptive:
        raise UserError(f"{path}.base is {point.base!r} but method {point.method} is its own; remove it.")
    if point.base and point.base not in config.methods:
        raise UserError(f"{path}.base is {point.base!r} but must be one of {', '.join(config.methods)}.")
    if point.method not in (*schema.BLOCK_METHODS, *config.methods):
        known = ", ".join([*schema.BLOCK_METHODS, *config.methods])
        raise UserError(f"{path}.method is {point.method!r} but must be one of {known}.")
    if (point.in_blocks or adaptive) and point.budget < 1:
        unit = "tokens" if point.base else "blocks"
        raise UserError(f"{path}.budget is {point.budget} but must be at least 1, in {unit}.")
    if not adaptive:
        if point.policy:
            raise UserError(
                f"{path}.policy is {point.policy!r} but a fixed budget (method {point.method}) has no policy; "
                "remove it."
            )
        return
    _check_policy(point.policy, point.budget, f"{path}.policy")


def _check_policy(policy: str, budget: int, path: str) -> None:
    match = re.fullmatch(schema.POLICY, policy)
    if match is None:
        raise UserError(
            f"{path} is {policy!r} but an adaptive budget needs set.N or sub.N with N at least 1, as in sub.16."
        )
    if match[1] == "set" and int(match[2]) > budget:
        raise UserError(f"{path} is {policy} but N must be at most the budget, which is {budget}.")
