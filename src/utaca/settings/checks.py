"""Make the typed config from a plain dict, and check its keys against each other; every mistake is one sentence.

Functions ``_…_faults`` yield a sentence for every mistake in a part of the config; their ``path`` is the dotted key of
that part.
"""

import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

from pydantic import AnyHttpUrl, TypeAdapter

from utaca.biographies.lengths import mode, share_outside
from utaca.errors import UserError
from utaca.readers.questions import wordings
from utaca.settings import schema
from utaca.settings.budgets import resolve
from utaca.settings.triggers import KINDS, as_written
from utaca.settings.validation import build, refuse, unknown_key

_BLOCKS_ONLY = (schema.VALIDATION, schema.TEST, schema.SWEEP, schema.ABLATION, schema.DRAFTS)
"""Sections of ``decode`` whose tables show only points that decode from block memory."""
# Names become parts of file names, which have at most 255 bytes.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{,99}")
# ASCII only, because a host with other letters is sent in ASCII.
_ADDRESS = re.compile(
    r"(?i)https?://([\w-]{1,63}(\.[\w-]{1,63})*|\[[0-9a-f:.]+\])(:\d{1,5})?(/[\w!$%&'()*+,;=:~./-]*)?", re.ASCII
)
# User, host, port, database, and options without a secret.
_DATABASE = re.compile(
    r"(?ai)postgresql(\+psycopg)?://([\w.%-]+@)?([\w.%-]+|\[[\da-f:]+\])?(:\d+)?/[\w.%-]+"
    r"(\?((?!\w*(password|secret|_key|token))\w+=[^&@#]*&?)+)?"
)
DATABASE = "postgresql://USER@HOST/DATABASE"
"""Format of the URL of a PostgreSQL database in the config key ``answers``."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ROLES = ("writer", "labeller", "judge")
SPLITS = ("train", "validation", "test")
LEAST_OUTSIDE, AIM_OUTSIDE = 0.5, 0.8
"""Least share of a split's facts outside of the reader's window that a config may have, and the share that the shipped
scales aim at."""
EMBEDDED = "utaca-reference"
"""Model name of the embedded reference endpoint."""
SHARED_FOLDERS = ("tables", "corpus", "training")
"""Folders in ``results`` that do not belong to one run; a run must not have one of these names."""


def load(config: Mapping[str, Any]) -> schema.Config:
    """Make the typed config from a plain dict; raises :class:`UserError` naming every faulty key and what is allowed.

    Keys are compared with each other only if each key is valid by itself.
    """
    settings = build(schema.Config, config)
    refuse(_config_faults(settings))
    return settings


def identity(settings: Any) -> dict[str, Any]:
    """The part of a settings object that decides results, as a plain dict: all keys but transport keys.

    Workflow rules have this dict among their ``params``, so that a new address or rate reruns nothing.
    """
    # Transport keys are declared with pydantic's ``exclude`` (utaca.settings.schema.setting).
    return TypeAdapter(type(settings)).dump_python(settings)


def digest(settings: Any) -> str:
    """The digest of a settings object or plain value: 16 hexadecimal digits of the SHA-256 of its canonical JSON."""
    plain = as_written(settings) if is_dataclass(settings) and not isinstance(settings, type) else settings
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def build_reader(data: Mapping[str, Any]) -> schema.ReaderSettings:
    """Make a reader's settings from a plain dict; raises :class:`UserError` as :func:`load` does."""
    reader = build(schema.ReaderSettings, data, "reader")
    refuse(_reader_faults(reader))
    return reader


def check_detector(detector: schema.DetectorSettings, path: str) -> None:
    """Raise :class:`UserError` if the settings of a detector contradict each other; ``path`` is their dotted key."""
    refuse(_detector_faults(detector, path))


def _config_faults(config: schema.Config) -> Iterator[str]:
    """Faults of the whole config, whose keys are each valid on their own."""
    if config.run:
        yield from _name_faults(config.run, "run")
    if config.run in SHARED_FOLDERS:
        yield f"run is {config.run!r}, which is the name of a folder that all runs share; give the run another name."
    for name in ("reader", "corpus", *ROLES, "scale"):
        yield from _name_faults(getattr(config, name).name, f"{name}.name")
    split_faults: list[str] = []
    for split in SPLITS:
        split_faults += _split_faults(getattr(config.scale, split), f"scale.{split}")
    yield from split_faults
    yield from _reader_faults(config.reader)
    if config.reader.graphs and config.generation.together:
        yield (
            "reader.graphs=true works only if answers do not share passes; set generation.together=false, or leave "
            "reader.graphs out."
        )
    yield from _corpus_faults(config.corpus)
    for where, methods in (("reader.methods", config.reader.methods), ("methods", config.methods)):
        for name in methods:
            if name not in schema.CONTEXT_METHODS:
                yield unknown_key(f"{where}.{name}", schema.CONTEXT_METHODS)
    for role in ROLES:
        yield from _endpoint_faults(getattr(config, role), role)
    if not split_faults:
        # These checks rely on the splits' sizes.
        yield from _window_faults(config)
        yield from _expanded_faults(config)
    yield from _detectors_faults(config)
    for name, point in config.points.items():
        yield from _name_faults(name, f"points.{name}")
        yield from _point_faults(point, f"points.{name}", config)
    for name in config.tasks.sets:
        yield from _name_faults(name, f"tasks.sets.{name}")
        if name in schema.SECTIONS:
            yield f"tasks.sets.{name} has the name of a section of decode; give it another name."
    decode_faults = list(_decode_faults(config))
    yield from decode_faults
    if not decode_faults:
        # These checks look up the decoded points by name.
        yield from _trigger_faults(config)
        yield from _plan_faults(config)
    if not config.answers:
        yield "answers is empty; name a file, such as results/answers.sqlite."
    try:
        is_database(config.answers)
    except UserError as fault:
        yield f"{fault}."


def _name_faults(value: str, path: str) -> Iterator[str]:
    """The fault of a name that cannot be part of a file's name."""
    if not _NAME.fullmatch(value):
        yield f"{path} is {value!r} but is used in file names; use letters, digits, '-', '_' and '.', at most 100."


def _split_faults(split: schema.SplitSettings, path: str) -> Iterator[str]:
    """Faults of the sizes of a split."""
    low, high = split.tokens
    # Lengths have a triangular distribution, whose mean is a third of the sum of low, high and mode. The mode lies from
    # low to high, so the mean lies from (2 low + high) / 3 to (low + 2 high) / 3.
    if split.mean_tokens and not low <= mode(low, high, split.mean_tokens) <= high:
        yield (
            f"{path}.mean_tokens is {split.mean_tokens} but must be from {-(-(2 * low + high) // 3)} to "
            f"{(low + 2 * high) // 3}, a mean of lengths from {low} to {high} with one peak; change it or "
            f"{path}.tokens."
        )
    if split.shards > split.biographies:
        yield f"{path}.shards is {split.shards} but must be at most {path}.biographies, which is {split.biographies}."
    # Files of trajectories distinguish them by their budget or, of a path, by its K_max.
    all_budgets = [*split.budgets, *(each.budget for each in split.paths)]
    repeated = [each.budget for each in split.paths if all_budgets.count(each.budget) > 1]
    if repeated:
        yield f"{path}.paths has K_max={repeated[0]}, which another path or {path}.budgets has too; remove one of them."
    if not split.evidence:
        yield f"{path}.evidence is empty; name some of {', '.join(schema.EVIDENCE)}."
    if split.people and path != "scale.test":
        yield f"{path}.people is {split.people}, but only the test split can use a file; set scale.test.people instead."


def _expanded_faults(config: schema.Config) -> Iterator[str]:
    """The fault of an expanded budget that is not above the compact ones that detectors learn from."""
    expanded = config.trajectories.expanded
    learned = [config.scale.train, config.scale.validation]
    largest_budget = max(max(split.budgets) for split in learned)
    largest_path = max((path.budget for split in learned for path in split.paths), default=0)
    if 0 < expanded <= largest_budget:
        yield f"trajectories.expanded is {expanded} but must be above the budgets, which go up to {largest_budget}."
    elif 0 < expanded < largest_path:
        yield (
            f"trajectories.expanded is {expanded} but must be at least the K_max of paths, which go up to "
            f"{largest_path}."
        )


def _reader_faults(reader: schema.ReaderSettings) -> Iterator[str]:
    """Faults of a reader's settings: values that are not allowed, or that contradict each other."""
    if reader.prompt not in wordings():
        yield f"reader.prompt is {reader.prompt!r} but must be one of {', '.join(wordings())}."
    memory = reader.memory
    if not reader.path:
        yield "reader.path is empty; set it to a Hugging Face id or a local folder."
    if reader.revision and (reader.path.lower().endswith(".gguf") or os.path.exists(reader.path)):
        yield (
            f"reader.revision is {reader.revision}, but reader.path={reader.path} is on this machine and has no "
            "versions; leave reader.revision out."
        )
    if memory.n_representatives > memory.block_size:
        yield (
            f"reader.memory.n_representatives is {memory.n_representatives} but must be at most "
            f"reader.memory.block_size, which is {memory.block_size}."
        )
    if memory.representatives == schema.TOKENS and memory.storage == "host":
        yield (
            "reader.memory.representatives=tokens needs all keys on the device, but reader.memory.storage=host keeps "
            "them in host memory; set reader.memory.storage=device or reader.memory.representatives=attention_mass."
        )
    # A key, whether its value excludes CUDA graphs, and the value that it must have with them.
    with_graphs = (
        ("storage", memory.storage == "host", "device"),
        ("representatives", memory.representatives == schema.TOKENS, "attention_mass"),
        ("far_positions", memory.far_positions == schema.PACKED, schema.CLIPPED),
        ("device", reader.device == "cpu", "cuda"),
    )
    for key, excluded, wanted in with_graphs:
        if reader.graphs and excluded:
            where = "reader" if key == "device" else "reader.memory"
            yield f"reader.graphs=true needs {where}.{key}={wanted}; set it, or leave reader.graphs out."


def outside(config: schema.Config) -> dict[str, float]:
    """The expected share, 0 to 1, of each split's facts that lie outside of the reader's initial tokens and window."""
    layout = config.reader.memory.layout
    shares = {}
    for split in SPLITS:
        size = getattr(config.scale, split)
        shares[split] = share_outside(*size.tokens, size.mean_tokens, layout)
    return shares


def _window_faults(config: schema.Config) -> Iterator[str]:
    """The fault of splits most of whose facts lie in the reader's window, so that a budget hardly matters."""
    shares = outside(config)
    too_short = [split for split, share in shares.items() if share < LEAST_OUTSIDE]
    if too_short:
        memory = config.reader.memory
        found = " and ".join(f"{shares[split]:.0%} of the facts of scale.{split}" for split in too_short)
        lengths = " and ".join(f"scale.{split}.tokens" for split in too_short)
        yield (
            f"the window of reader {config.reader.name} (reader.memory.n_init={memory.n_init}, "
            f"n_local={memory.n_local}) leaves only {found} outside of it. Below {LEAST_OUTSIDE:.0%}, a budget hardly "
            f"matters; raise {lengths} or lower reader.memory.n_local until {AIM_OUTSIDE:.0%} are outside."
        )


def _corpus_faults(corpus: schema.CorpusSettings) -> Iterator[str]:
    """Faults of the corpus: a path belongs to the source "folder", and only to it."""
    if corpus.source == "folder" and not corpus.path:
        yield (
            "corpus.path is empty but corpus.source is folder; name a folder or file, "
            "for example --config corpus=/data/articles.jsonl."
        )
    if corpus.source != "folder" and corpus.path:
        yield f"corpus.path is set but corpus.source is {corpus.source}; only corpus.source=folder reads it."


def address_fault(url: str) -> str:
    """Why ``url`` is not a server's address, as the rest of a sentence that begins with its key; "" if it is one."""
    if re.search("[@?#]", url):
        # The message omits the URL, which may hold a key.
        return (
            "must not have a user, a password or a query; put the key into an environment variable, and name the "
            "variable in api_key_env"
        )
    try:
        is_address = _ADDRESS.fullmatch(url) and AnyHttpUrl(url).port != 0
    except ValueError:
        is_address = False
    if is_address:
        return ""
    return f"{url!r} must be the address of the server, such as http://localhost:8000/v1 or http://[::1]:8000/v1"


def is_database(answers: str) -> bool:
    """Whether ``answers`` is the URL of a database, and not the path of a file.

    Raises :class:`UserError`, which does not quote the URL, if it has a password, another scheme or no database.
    """
    if "://" not in answers and not re.match(r"(?i)\s*postgres\w*:", answers):
        return False
    if not _DATABASE.fullmatch(answers):
        raise UserError(
            f"answers must be the path of a file, or {DATABASE} without a password; put the password into the "
            "environment variable PGPASSWORD or into ~/.pgpass"
        )
    return True


def _endpoint_faults(endpoint: schema.EndpointSettings, role: str) -> Iterator[str]:
    """Faults of the endpoint of a role, which is a server (remote) or the rules built into the project."""
    remote = endpoint.kind == "remote"
    if remote and (fault := address_fault(endpoint.base_url)):
        yield f"{role}.base_url {fault}."
    if remote and endpoint.name == "reference":
        yield (
            f"{role}.name is reference, which is the name of the built-in endpoint; name the server and its model: "
            f"--config '{role}={{name: NAME, model: MODEL, base_url: URL}}' or "
            f"'{role}={{use: gpt_oss_120b, base_url: URL}}'."
        )
    if not remote and endpoint.base_url:
        yield (
            f"{role}.base_url is set but {role}.kind is reference, which needs no server; set {role}.kind=remote, or "
            f"leave {role}.base_url out."
        )
    if not remote and endpoint.model != EMBEDDED:
        yield (
            f"{role}.model is {endpoint.model!r} but {role}.kind is reference, whose model is {EMBEDDED}; to use "
            f"a server, set {role}.base_url to its address."
        )
    if endpoint.api_key_env and not _VARIABLE.fullmatch(endpoint.api_key_env):
        # The value may be the key itself: never show it.
        yield (
            f"{role}.api_key_env must be the name of the environment variable that holds the key, "
            "in letters, digits and '_', not the key itself."
        )


def _detector_faults(detector: schema.DetectorSettings, path: str) -> Iterator[str]:
    """Faults of a detector variant's settings, which contradict each other or name unknown signals."""
    if not detector.signals and not detector.embedding:
        yield f"{path}.signals is empty and {path}.embedding is false; give it at least one input."
    if unknown := [name for name in detector.signals if name not in schema.SIGNALS]:
        yield f"{path}.signals has {unknown[0]!r}, which does not exist; signals are {', '.join(schema.SIGNALS)}."
    if detector.classes != 2 and (detector.kind == "evidential" or detector.label == "needed"):
        key = f"kind {detector.kind}" if detector.kind == "evidential" else f"label {detector.label}"
        yield f"{path}.classes is {detector.classes} but {key} has two classes; set {path}.classes to 2."
    if detector.kind == "linear" and (detector.signals or not detector.embedding or detector.lstm):
        yield f"{path}.kind is linear, which reads only the embedding; set signals=[], embedding=true, lstm=false."
    if detector.chain > 1 and not detector.lstm:
        yield (
            f"{path}.chain is {detector.chain}, but only a detector with an LSTM can read several answers in a row; "
            "set it to 1."
        )
    if detector.mixed and not detector.sets:
        yield f"{path}.mixed is true but {path}.sets is empty; name the sets of tasks that it also learns from."


def _detectors_faults(config: schema.Config) -> Iterator[str]:
    """Faults of the detector variants, and of the name of the one that is used."""
    recorded = config.trajectories
    if config.detector not in config.detectors:
        yield (
            f"detector is {config.detector!r} but must name one of detectors, which are "
            f"{', '.join(config.detectors) or 'none'}."
        )
    for name, detector in config.detectors.items():
        path = f"detectors.{name}"
        yield from _name_faults(name, path)
        if name in KINDS:
            yield f"{path} has the name of a kind of trigger; give the detector another name."
        if re.fullmatch("top10_std|logit_margin|entropy|(.*_)?probability|.*_(youden|mass)", name):
            yield (
                f"{path} has a name that the tables use for a baseline or another threshold; give the detector another "
                "name."
            )
        yield from _detector_faults(detector, path)
        if detector.taken:
            for key in ("start", "sets", "mixed"):
                if value := getattr(detector, key):
                    yield (
                        f"{path}.{key} is {value!r}, but {path}.taken says that the detector is not trained here; "
                        "remove one of them."
                    )
            continue
        if detector.embedding and detector.site not in recorded.sites:
            yield (
                f"{path}.site is {detector.site}, but trajectories.sites is {recorded.sites}; add {detector.site} "
                "there."
            )
        if detector.label == "needed" and not recorded.expanded:
            yield (
                f"{path}.label is needed, which needs trajectories.expanded above 0; set trajectories.expanded to a "
                "K_max."
            )
        if detector.start:
            yield from _start_faults(detector, path, config)
        for task_set in detector.sets:
            if task_set not in config.tasks.sets:
                yield f"{path}.sets names {task_set!r}, which is not in tasks.sets; tasks.sets has {_sets(config)}."
            elif not config.tasks.sets[task_set].budgets:
                yield (
                    f"{path}.sets names {task_set!r}, but tasks.sets.{task_set}.budgets is empty; give it some budgets."
                )


def _sets(config: schema.Config) -> str:
    """The names of the sets of tasks, for a message."""
    return ", ".join(config.tasks.sets) or "none; add --config tasks=paper, or another option"


def _start_faults(detector: schema.DetectorSettings, path: str, config: schema.Config) -> Iterator[str]:
    """Faults of ``detector.start``, the variant that its training starts from."""
    first = config.detectors.get(detector.start)
    if first is None or first is detector:
        others = ", ".join(name for name, other in config.detectors.items() if other is not detector) or "none"
        yield f"{path}.start is {detector.start!r} but must name another of detectors, which has {others}."
    elif first.start:
        yield f"{path}.start is {detector.start}, which itself starts from {first.start}; set it to {first.start}."
    elif key := detector.differing(first):
        yield (
            f"{path}.{key} is {getattr(detector, key)} but must be {getattr(first, key)}, as in the detector that "
            f"it starts from, {detector.start}."
        )


def _decode_faults(config: schema.Config) -> Iterator[str]:
    """Faults of the sections of ``decode``, and of the points that they name."""
    for section, names in config.decode.items():
        path = f"decode.{section}"
        if section not in (*schema.SECTIONS, *config.tasks.sets):
            sections = ", ".join(schema.SECTIONS)
            yield f"{path} is unknown; sections are {sections}, or one of tasks.sets, which has {_sets(config)}."
        for twice in dict.fromkeys(name for name in names if names.count(name) > 1):
            yield f"{path} names {twice} twice; remove one."
        for name in dict.fromkeys(names):
            point = config.points.get(name)
            # Faults of the point itself, such as an unknown method, are named elsewhere.
            is_sound = point is not None and not any(_point_faults(point, "", config))
            if point is None:
                near = difflib.get_close_matches(name, config.points, n=1)
                hint = f"did you mean {near[0]}?" if near else f"points are {', '.join(config.points) or 'none'}."
                yield f"{path} names {name!r}, which is not in points; {hint}"
            elif section in _BLOCKS_ONLY and is_sound and not point.in_blocks:
                yield f"{path} names {name}, which does not use block memory; move it to decode.methods."


def _plan_faults(config: schema.Config) -> Iterator[str]:
    """Faults of the plan's comparisons.

    The first point of each must be an adaptive point of ``decode.test``. The second may also have the method "top_p".
    """
    if config.plan.secondary and not config.plan.primary:
        yield "plan.secondary is set but plan.primary is empty; set plan.primary to the main comparison."
    decoded = config.decode.get(schema.TEST, ())
    adaptive = [name for name in decoded if config.points[name].adaptive]
    over = [name for name in decoded if name in adaptive or config.points[name].method == schema.TOP_P]
    comparisons = config.plan.comparisons
    faults = []
    for comparison in comparisons:
        if comparison.label not in adaptive:
            names = ", ".join(adaptive) or "none"
            faults.append(
                f"plan names {comparison.label!r} but must name adaptive points of decode.test, which are {names}."
            )
        if comparison.over and comparison.over not in over:
            names = ", ".join(over) or "none"
            faults.append(
                f"plan names {comparison.over!r} after 'over' but must name adaptive or top_p points of decode.test, "
                f"which are {names}."
            )
    yield from dict.fromkeys(faults)
    for comparison in dict.fromkeys(comparisons):
        if comparisons.count(comparison) > 1:
            yield f"plan names {' over '.join(filter(None, comparison))} twice; remove one."
        if comparison.label == comparison.over:
            yield f"plan compares {comparison.label} with itself; name another point after 'over'."


def _trigger_faults(config: schema.Config) -> Iterator[str]:
    """The fault that triggers of decoded points name detectors which the config does not have; each detector once."""
    # A point that each detector triggers; "" stands for the config's detector, and for other triggers.
    first_points: dict[str, str] = {}
    for names in config.decode.values():
        for name in names:
            first_points.setdefault(config.points[name].detector, name)
    missing = {detector: name for detector, name in first_points.items() if detector not in ("", *config.detectors)}
    if missing:
        triggers = " and ".join(f"points.{name}.trigger is {detector!r}" for detector, name in missing.items())
        yield (
            f"{triggers} but must be one of {', '.join(config.detectors)}, or margin.X, agreement, agreement.N, "
            "every.N or never; define it under detectors, or choose an option of detectors that has it."
        )


def _point_faults(point: schema.PointSettings, path: str, config: schema.Config) -> Iterator[str]:
    """Faults of an operating point, decoded or not."""
    if point.method not in (*schema.IN_BLOCKS, *schema.CONTEXT_METHODS):
        known = ", ".join([*schema.IN_BLOCKS, *schema.CONTEXT_METHODS])
        yield f"{path}.method is {point.method!r} but must be one of {known}."
        return
    is_share = isinstance(point.budget, str)
    if is_share and not point.in_blocks:
        yield f"{path}.budget is {point.budget}, a share of blocks, but this point has none; give a number of tokens."
        return
    fewest = resolve(point.budget, 0)
    named = f"{point.budget} and may be a single block" if is_share else str(point.budget)
    for key in ("base", "policy", "trigger"):
        text = str(getattr(point, key))
        if text and not point.adaptive and (key, point.method) != ("policy", schema.TOP_P):
            yield f"{path}.{key} is {text!r} but only method utaca uses it, not {point.method}; remove it."
    if point.adaptive and point.base and point.base not in schema.CONTEXT_METHODS:
        yield f"{path}.base is {point.base!r} but must be one of {', '.join(schema.CONTEXT_METHODS)}."
    if point.drafts and not point.in_blocks:
        yield f"{path}.drafts is {point.drafts} but only points with block memory use drafts; remove it."
    if point.draft_budget and not (point.method == schema.FIXED and point.drafts):
        yield (
            f"{path}.draft_budget is {point.draft_budget} but only points of method infllm with drafts use it; remove "
            "it."
        )
    elif point.draft_budget >= max(fewest, 1):
        yield f"{path}.draft_budget is {point.draft_budget} but must be below the budget, which is {named}."
    if point.seeds != 1 and not point.detected:
        yield f"{path}.seeds is set, but the point has no detector; remove it."
    if point.seeds > config.scale.detector_seeds:
        yield (
            f"{path}.seeds is {point.seeds} but must be at most scale.detector_seeds, which is "
            f"{config.scale.detector_seeds}."
        )
    trigger = point.trigger
    if trigger.kind == "agreement" and trigger.value is not None and trigger.value >= max(fewest, 1):
        yield f"{path}.trigger is {trigger} but N must be below the budget, which is {named}."
    if trigger.kind == "margin" and trigger.value is None:
        yield f"{path}.trigger is margin but needs a threshold in logits, such as margin.2.5."
    if (point.in_blocks or point.adaptive) and fewest < 1:
        yield f"{path}.budget is {point.budget} but must be at least 1, in {'tokens' if point.base else 'blocks'}."
    elif point.method == schema.TOP_P and re.fullmatch(schema.TOP_P_POLICY, point.policy) is None:
        yield f"{path}.policy is {point.policy!r} but method top_p needs top_p.X with X below 1, such as top_p.0.9."
    elif point.adaptive:
        policy = re.fullmatch(schema.POLICY, point.policy)
        needed = "an adaptive budget needs set.N or sub.N with N at least 1, such as sub.16"
        if policy is None:
            yield f"{path}.policy is {point.policy!r} but {needed}."
        elif policy[1] == "set" and not is_share and int(policy[2]) > point.budget:
            yield f"{path}.policy is {point.policy} but N must be at most the budget, which is {point.budget}."
