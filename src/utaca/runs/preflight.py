"""Checks before the first job of a run: everything that a stage would lack later is reported at once.

``utaca preflight [--configfile FILE ...] [--config KEY=VALUE ...]`` does only the checks, for a whole run, and prints a
line per check; it exits with 1 if something is missing. A run checks its stages before its first job.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from utaca import machine
from utaca.errors import UserError
from utaca.machine import check_room, free_disk, gib
from utaca.prose_files import prose_files
from utaca.readers import files, gguf, hub, public
from utaca.runs.places import check_paths
from utaca.settings import schema
from utaca.settings.checks import outside
from utaca.settings.validation import refuse
from utaca.sizes import FACTS, Sizes
from utaca.stages import STAGES as PIPELINE

NOT_IN_A_DRY_RUN = (
    "A dry run does not check weights, settings of methods, memory, endpoints or disk; `utaca preflight`, given the "
    "same config, does."
)
WINDOW = "window"
"""Name of the check of the documents' lengths against the reader's window."""
STAGES = (
    "biographies", "corpus", "documents", "trajectories", "labels", "detectors", "generations", "methods", "scores",
    "tasks",
)  # fmt: skip
"""Stages of a run that need something."""
_OF_RULES = {rule: stage.name for stage in PIPELINE for rule in stage.checked}
"""Stages by the rules that make them; in rules of sets of tasks, the wildcard ``task`` names the set."""
_DECODING = {"trajectories", "generations", "methods", "tasks"}
# Rough sizes on disk: a token of a document as text, one of an answer with its trace, a number of an embedding.
_TEXT_BYTES = 5
_ANSWER_BYTES = 200
_EMBEDDING_BYTES = 4
_ROLES = {"biographies": "writer", "labels": "labeller", "scores": "judge"}


def check(
    settings: schema.Config, stages: Collection[str], *, here: bool = True, sets: Collection[str] | None = None
) -> dict[str, str]:
    """Check what ``stages`` that still have work need: names of :data:`STAGES`, or ``detections``; others need nothing.

    ``here``: jobs run on this machine; a cluster's machines have another memory and other GPUs. ``sets`` are the sets
    of tasks to make; None: all sets that the stages ask or learn from. Returns a note by the name of each check.

    Raises:
        UserError: a sentence for every fault: what is missing, where it was looked for and what to set.
    """
    results = list(findings(settings, stages, here=here, sets=sets))
    refuse((result.fault for result in results if result.fault), "{} things are missing:")
    return {result.name: result.note for result in results}


def check_jobs(settings: schema.Config, jobs: Iterable[Any], *, here: bool) -> dict[str, str]:
    """As :func:`check`, for the stages and sets of Snakemake's ``jobs``."""
    stages = set()
    sets = set()
    for job in jobs:
        stages.add(_OF_RULES.get(job.rule.name, ""))
        if job.wildcards_dict.get("kind") == "methods":
            stages.add("methods")
        sets |= {job.wildcards_dict["task"]} if "task" in job.wildcards_dict else set()
    return check(settings, stages, here=here, sets=[name for name in settings.tasks.sets if name in sets])


def check_files(jobs: Sequence[Any], folder: Path) -> None:
    """Raise :class:`UserError` if a file of the run in ``folder``, or a detector, that Snakemake's ``jobs`` read and
    none of them makes is cut off or damaged: Snakemake looks only at its time."""
    from utaca.detection.about import settings_of
    from utaca.records.tables import check_whole

    made = {str(path) for job in jobs for path in job.output}
    there = {str(path) for job in jobs for path in job.input} - made
    faults = []
    for path in sorted(path for path in there if Path(path).exists()):
        try:
            if path.endswith(".parquet") and path.startswith(f"{folder}/"):
                check_whole(path)
            elif Path(path).parent.name.startswith("seed") and path.endswith(".safetensors"):
                settings_of(path)
        except UserError as error:
            faults.append(f"{error}.")
    refuse(faults, "{} files cannot be read:")


@dataclass(frozen=True)
class Finding:
    """The result of one check: a ``fault``, or a ``note`` on what there is."""

    name: str
    note: str = ""
    fault: str = ""


def findings(
    settings: schema.Config, stages: Collection[str], *, here: bool = True, sets: Collection[str] | None = None
) -> Iterator[Finding]:
    """The result of each check that the stages call for, one after another; see :func:`check`."""
    wanted = set(stages)
    names = _sets(settings, wanted) if sets is None else list(sets)
    # Decoding the rows of a set counts as a stage, whichever stage it is for.
    wanted = wanted | {"tasks"} if names else wanted - {"tasks"}
    decoding = wanted & _DECODING
    reading = wanted & {"documents", *_DECODING}
    people = settings.scale.test.people
    taken = {name: detector.taken for name, detector in settings.detectors.items() if detector.taken}
    roles = [role for stage, role in _ROLES.items() if stage in wanted and not (people and role == "writer")]
    # One request is enough for an endpoint in several roles.
    first = {role: next(x for x in roles if getattr(settings, x) == getattr(settings, role)) for role in roles}
    alike = [" and ".join(role for role in roles if first[role] == one) for one in dict.fromkeys(first.values())]
    checks: list[tuple[str, Any, Callable[[], str]]] = [
        ("people", people and wanted & {"biographies", "documents"}, lambda: _people(settings.scale.test)),
        ("corpus", "corpus" in wanted, lambda: _corpus(settings)),
        (WINDOW, wanted & {"documents", "trajectories", "generations"}, lambda: _window(settings)),
        ("reader", reading, lambda: _reader(settings.reader, bool(decoding), here)),
        ("tasks", names, lambda: _tasks(settings.tasks, names)),
        ("methods", wanted & {"generations", "methods", "tasks"}, lambda: _methods(settings)),
        ("detectors", taken and wanted & {"detections", "generations", "tasks"}, lambda: _detectors(settings, taken)),
        ("memory", decoding and here, lambda: _memory(settings, wanted, names)),
        # The rules in process keep no answers.
        ("answers", any(getattr(settings, x).kind == "remote" for x in roles), lambda: _answers(settings.answers)),
        *((name, True, partial(_endpoint, getattr(settings, name.split()[0]), name)) for name in alike),
        ("disk", reading, lambda: _disk(settings, wanted)),
    ]
    unread = gguf.is_gguf(settings.reader.path) and files.folder_of(settings.reader) is None
    for name, called, work in checks:
        # The checks of memory and disk read the reader's model, which may be missing.
        if not called or (unread and name in ("memory", "disk")):
            continue
        try:
            yield Finding(name, note=work())
        except UserError as error:
            unread |= name == "reader"
            yield Finding(name, fault=str(error))


def _people(size: schema.SplitSettings) -> str:
    """Check that the file of biographies holds as many as the settings want."""
    from utaca.biographies.handwritten import handwritten

    return f"{len(list(handwritten(size.people, size.biographies)))} biographies of {size.people}"


def _corpus(settings: schema.Config) -> str:
    from utaca.biographies.corpora import folder

    if settings.corpus.source == "folder":
        folder.articles(settings.corpus.path)
    check_paths(prose_files(settings.corpus.path))
    return settings.corpus.path or settings.corpus.name


def _window(settings: schema.Config) -> str:
    """What share of each split's facts retrieval alone reaches; the config was refused if one is too small."""
    shares = ", ".join(f"{split} {share:.0%}" for split, share in outside(settings).items())
    return f"facts outside of the reader's initial tokens and window: {shares}"


def _sets(settings: schema.Config, stages: Collection[str]) -> list[str]:
    """The sets of tasks that the stages ask or learn from."""
    found = {name for name in settings.tasks.sets if "tasks" in stages and settings.decode.get(name)}
    if "detectors" in stages:
        found |= {name for detector in settings.detectors.values() for name in detector.sets}
    return [name for name in settings.tasks.sets if name in found]


def _tasks(tasks: schema.TasksSettings, names: Sequence[str]) -> str:
    """Check each set's settings against its task, the metric's packages, and its files; raise all faults at once."""
    from utaca.tasks.registry import files_of, task_of

    faults = []
    files = set()
    for name in names:
        settings = tasks.sets[name]
        try:
            task_of(settings).check(settings)
        except UserError as error:
            faults.append(f"tasks.sets.{name}: {error}")
        try:
            files |= set(files_of(settings, tasks.path).values())
        except UserError as error:
            faults.append(f"tasks.sets.{name}: {error}")
    if faults:
        raise UserError("; ".join(dict.fromkeys(faults)))
    return f"{len(names)} sets of {len(files)} files in {tasks.path}"


def _endpoint(endpoint: schema.EndpointSettings, role: str) -> str:
    from utaca.endpoints.chat import check as check_endpoint

    check_endpoint(endpoint, role)
    place = endpoint.base_url if endpoint.kind == "remote" else "the embedded reference"
    return f"{place} answers as {endpoint.model}"


def _answers(place: str) -> str:
    from utaca.endpoints.store import check as check_store

    return check_store(place)


def _methods(settings: schema.Config) -> str:
    """Check methods by building them with their settings and their points' values; raise all faults at once."""
    # A file of the user's there may not load.
    from utaca.detection.signals import SIGNALS  # noqa: F401
    from utaca.methods import build, method_of

    others = [point for point in settings.operating.values() if not point.in_blocks]
    used = dict.fromkeys([*settings.reader.methods, *settings.methods, *(x.base or x.method for x in others)])
    about = {name: settings.settings_of(name) for name in used}
    faults = []
    for make in [*(partial(build, *one) for one in about.items()), *(partial(method_of, x, about) for x in others)]:
        try:
            make()
        except UserError as error:
            faults += getattr(error, "faults", [str(error)])
    refuse(faults)
    return f"{len({(point.family, point.base) for point in others})} beside block memory"


def _detectors(settings: schema.Config, taken: Mapping[str, str]) -> str:
    """Check that the files of detectors ``taken`` from folders (by variant) exist and are as the config says."""
    from utaca.detection.about import check_alike, settings_of

    for name, folder in taken.items():
        for seed in range(settings.scale.detector_seeds):
            path = Path(folder, f"seed{seed}", "model.safetensors")
            if not path.exists():
                raise UserError(
                    f"detectors.{name}.taken is {folder}, but {path} does not exist; first make the detectors of the "
                    "run that trains it, or set scale.detector_seeds to as many as there are"
                )
            check_alike(path, settings_of(path), settings.detectors[name])
    return f"{len(taken)} taken"


def _reader(reader: schema.ReaderSettings, weights: bool, here: bool) -> str:
    """Check the model's config, tokenizer and family, and, if ``weights``, that these are here or can be fetched."""
    from utaca.readers.checks import check as check_reader
    from utaca.readers.checks import check_settings

    reader = reader if here else replace(reader, device="auto")
    # A job of the run fetches the file of a reader of the catalogue.
    expected = public.is_made(reader.path) and not Path(reader.path).is_file()
    if expected and (awaited := public.entry(reader.path)) is not None:
        check_settings(reader)
        public.check_fetch(Path(reader.path), awaited)
        public.check_index(awaited)
        return f"{reader.path}, {gib(awaited.size)} to be fetched"
    check_reader(reader)
    found = files.weights(reader)
    if Path(reader.path).exists():
        return f"{reader.path}, {gib(_size(found or [Path(reader.path)]))} of weights"
    if not weights:
        return reader.path
    if found:
        return f"{reader.path}, {gib(_size(found))} of weights in the cache"
    return f"{reader.path}, {gib(_to_fetch(reader))} of weights to be fetched"


def _to_fetch(reader: schema.ReaderSettings) -> int:
    """Bytes of weights to fetch for a hub model; raises :class:`UserError` if the hub does not answer or has none."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    where = files.where(reader)
    mend = f"fetch them first: hf download {reader.path}"
    try:
        with hub.asked_once(reader.path, reader.revision):
            about = HfApi().model_info(reader.path, revision=reader.revision or None, files_metadata=True, timeout=20)
    except (HTTPError, OSError, ValueError) as error:
        raise UserError(f"{where} has no weights in the cache, and the hub cannot be asked for them; {mend}") from error
    sizes = {file.rfilename: file.size or 0 for file in about.siblings or []}
    sizes = [n for name, n in sizes.items() if name.endswith(".safetensors") and not name.startswith(files.TWICE)]
    if not sizes:
        raise UserError(f"{where} has no .safetensors files on the hub; set reader.path to a model that has them")
    return sum(sizes)


def _memory(settings: schema.Config, stages: Collection[str], sets: Sequence[str]) -> str:
    """Compare the bytes of weights and longest document with the free memory of the GPU and the free main memory.

    The passes that read a document need further memory, which depends on the machine; each job checks that itself.
    """
    from utaca.readers.load import resolved

    reader = resolved(settings.reader)
    item = 2 if reader.dtype == "bfloat16" else 4
    tokens = _longest(settings, stages, sets)
    weights = _weights(reader, item)
    document = _sizes(reader).cache_bytes(tokens, item)
    host = reader.memory.storage == "host"
    places = {"main memory": (weights + document, machine.free_memory())}
    if reader.device == "cuda":
        # Weights pass through main memory on their way.
        places = {
            "the GPU": (weights + (0 if host else document), machine.free_gpu_memory()),
            "main memory": (max(weights, document if host else 0), machine.free_memory()),
        }
    parts = f"{gib(weights)} of weights and {gib(document)} for a document of {tokens:,} tokens"
    notes = []
    for place, (size, free) in places.items():
        if free is not None and size > free:
            ways = ["reader.memory.storage=host"] if place == "the GPU" and not host else []
            ways += ["reader.dtype=bfloat16"] if reader.dtype == "float32" else []
            raise UserError(
                f"reader {reader.name} needs {gib(size)} of {place} ({parts}), but {gib(free)} are free; take "
                f"{', or '.join([*ways, 'a smaller reader', 'shorter documents'])}."
            )
        notes.append(f"{gib(size)} of {place}" + ("" if free is None else f", {gib(free)} are free"))
    return f"{'; '.join(notes)} ({parts})"


def _weights(reader: schema.ReaderSettings, item: int) -> int:
    paths = files.weights(reader)
    if reader.weights == "packed":
        return _size(paths)
    return files.parameters(paths) * item if paths else _to_fetch(reader)


def _longest(settings: schema.Config, stages: Collection[str], sets: Sequence[str]) -> int:
    """Tokens of the longest document that the stages read; a set without a length says nothing of its prompts."""
    splits = {"trajectories": ("train", "validation", "test"), "generations": ("validation", "test")}
    splits["methods"] = splits["generations"]
    longest = [getattr(settings.scale, split).tokens[-1] for stage in stages for split in splits.get(stage, ())]
    return max([0, *(settings.tasks.sets[name].length for name in sets), *longest])


def _disk(settings: schema.Config, stages: Collection[str]) -> str:
    """Compare rough sizes of the biographies' results, and of weights to fetch, with the free disk space."""
    reader = settings.reader
    splits = {split: getattr(settings.scale, split) for split in FACTS}
    size = _TEXT_BYTES * sum(split.biographies * split.tokens[-1] for split in splits.values())
    if stages & _DECODING:
        points = [(split, len(settings.decoded(section))) for section, split in schema.SECTIONS.items()]
        answers = sum(splits[split].biographies * FACTS[split] * number for split, number in points)
        trajectories = sum(split.trajectories * FACTS[name] for name, split in splits.items())
        embedding = _EMBEDDING_BYTES * _sizes(reader).hidden * len(settings.trajectories.sites)
        size += reader.max_new_tokens * (answers * _ANSWER_BYTES + trajectories * (_ANSWER_BYTES + embedding))
    check_room(Path("results"), size, "results take about", "free some, or run where there is more")
    if stages & _DECODING and not Path(reader.path).is_dir() and not files.weights(reader):
        from huggingface_hub.constants import HF_HUB_CACHE

        check_room(Path(HF_HUB_CACHE), _to_fetch(reader), "weights take", "set HF_HOME to a larger disk")
    return f"about {gib(size)} for results, {gib(free_disk(Path('results')))} are free"


def _sizes(reader: schema.ReaderSettings) -> Sizes:
    config = files.config_file(reader)
    if config is None:
        raise UserError(f"reader {reader.name!r} (reader.path={reader.path}) has no config.json here")
    return Sizes.of(files.check_config(config))


def _size(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def overrides(configfiles: Sequence[Path], entries: Sequence[str]) -> dict[str, Any]:
    """The config that Snakemake makes of ``--configfile`` and ``--config``."""
    from snakemake.cli import parse_config
    from snakemake.exceptions import WorkflowError
    from snakemake.settings.types import ConfigSettings

    from utaca.runs.command_line import check_config

    try:
        settings = ConfigSettings(config=parse_config(entries), configfiles=configfiles, config_args="")
    except (AssertionError, OSError, ValueError, WorkflowError) as error:
        cause = str(error) or "a value is missing"
        raise UserError(f"--config KEY=VALUE or --configfile FILE: {cause.splitlines()[0]}") from error
    check_config(entries)
    return settings.overwrite_config


def report(configfiles: Sequence[Path], entries: Sequence[str]) -> int:
    """Print the result of each check of a run, one per line; return 1 if something is missing, else 0."""
    from snakemake.common.configfile import load_configfile

    from utaca.data_files import root
    from utaca.runs import record as runs
    from utaca.runs.compose import compose
    from utaca.runs.config_files import check as check_file
    from utaca.settings.checks import load

    try:
        check_paths([root()])
        for path in configfiles:
            check_file(path)
        config = compose(overrides(configfiles, entries), root(), map(load_configfile, configfiles))
        runs.check(config, Path("results") / config["run"])
    except UserError as error:
        print(f"fault  config: {error}")
        return 1
    print(f"ok     config: run {config['run']}")
    missing = 0
    for done in findings(load(config), STAGES):
        missing += bool(done.fault)
        print(f"fault  {done.fault}" if done.fault else f"ok     {done.name}: {done.note}", flush=True)
    return int(missing > 0)
