"""Check before the first job of a run what its stages need; all missing things are reported together.

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
"""Stages of a run that need something. "methods" are the points that do not decode from block memory."""
_OF_RULES = {rule: stage.name for stage in PIPELINE for rule in stage.checked}
"""The stage of each rule that needs something; in rules of sets of tasks, the wildcard ``task`` names the set."""
_DECODING = {"trajectories", "generations", "methods", "tasks"}
"""Stages that decode answers."""
# Rough sizes on disk: a token of a document as text, one of an answer with its trace, a number of an embedding.
_TEXT_BYTES = 5
_ANSWER_BYTES = 200
_EMBEDDING_BYTES = 4
_ROLES = {"biographies": "writer", "labels": "labeller", "scores": "judge"}
"""The role of the endpoint that each of these stages asks."""


def check(
    settings: schema.Config, stages: Collection[str], *, here: bool = True, sets: Collection[str] | None = None
) -> dict[str, str]:
    """Check that all is there that the ``stages`` need; return a note on each check, by the check's name.

    ``stages`` are those that still have work: names of :data:`STAGES`, or ``detections``; other stages need nothing.
    ``here``: jobs run on this machine; a cluster's machines have another memory and other GPUs. ``sets`` are the sets
    of tasks to make; None means all sets that the stages ask or learn from.

    Raises:
        UserError: a sentence for every fault: what is missing, where it was looked for and what to set.
    """
    results = list(findings(settings, stages, here=here, sets=sets))
    refuse((result.fault for result in results if result.fault), "{} things are missing:")
    return {result.name: result.note for result in results}


def check_jobs(settings: schema.Config, jobs: Iterable[Any], *, here: bool) -> dict[str, str]:
    """Check what Snakemake's ``jobs`` need, as :func:`check` does for their stages and sets of tasks."""
    stages = set()
    sets = set()
    for job in jobs:
        # "" for a rule that needs nothing.
        stages.add(_OF_RULES.get(job.rule.name, ""))
        # Answers of points that do not decode from block memory are files of their own kind.
        if job.wildcards_dict.get("kind") == "methods":
            stages.add("methods")
        if "task" in job.wildcards_dict:
            sets.add(job.wildcards_dict["task"])
    return check(settings, stages, here=here, sets=[name for name in settings.tasks.sets if name in sets])


def check_files(jobs: Sequence[Any], folder: Path) -> None:
    """Raise :class:`UserError` if a file that Snakemake's ``jobs`` read, and none of them makes, is cut off or damaged.

    Files of the run in ``folder`` and detectors are checked. Snakemake itself looks only at the times of files.
    """
    from utaca.detection.about import settings_of
    from utaca.records.tables import check_whole

    made = {str(path) for job in jobs for path in job.output}
    only_read = {str(path) for job in jobs for path in job.input} - made
    faults = []
    for path in sorted(path for path in only_read if Path(path).exists()):
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
    """Do each check that the stages need, and yield its result; arguments are those of :func:`check`."""
    wanted = set(stages)
    set_names = _sets(settings, wanted) if sets is None else list(sets)
    # Decoding the rows of a set counts as a stage, whichever stage it is for.
    wanted = wanted | {"tasks"} if set_names else wanted - {"tasks"}
    decoding = wanted & _DECODING
    reading = wanted & {"documents", *_DECODING}
    people = settings.scale.test.people
    taken = {name: detector.taken for name, detector in settings.detectors.items() if detector.taken}
    roles = [role for stage, role in _ROLES.items() if stage in wanted and not (people and role == "writer")]
    is_remote = any(getattr(settings, role).kind == "remote" for role in roles)
    # Name of each check, whether it is needed (if it is truthy), and its function, which returns a note.
    checks: list[tuple[str, Any, Callable[[], str]]] = [
        ("people", people and wanted & {"biographies", "documents"}, lambda: _people(settings.scale.test)),
        ("corpus", "corpus" in wanted, lambda: _corpus(settings)),
        (WINDOW, wanted & {"documents", "trajectories", "generations"}, lambda: _window(settings)),
        ("reader", reading, lambda: _reader(settings.reader, bool(decoding), here)),
        ("tasks", set_names, lambda: _tasks(settings.tasks, set_names)),
        ("methods", wanted & {"generations", "methods", "tasks"}, lambda: _methods(settings)),
        ("detectors", taken and wanted & {"detections", "generations", "tasks"}, lambda: _detectors(settings, taken)),
        ("memory", decoding and here, lambda: _memory(settings, wanted, set_names)),
        # The built-in rules keep no answers.
        ("answers", is_remote, lambda: _answers(settings.answers)),
    ]
    for role, all_roles in _roles_by_endpoint(settings, roles).items():
        name = " and ".join(all_roles)
        checks.append((name, True, partial(_endpoint, getattr(settings, role), name)))
    checks.append(("disk", reading, lambda: _disk(settings, wanted)))
    # The checks of memory and disk read the reader's model, which may be missing.
    reader_is_missing = gguf.is_gguf(settings.reader.path) and files.folder_of(settings.reader) is None
    for name, is_needed, work in checks:
        if not is_needed or (reader_is_missing and name in ("memory", "disk")):
            continue
        try:
            yield Finding(name, note=work())
        except UserError as error:
            if name == "reader":
                # It comes before the checks of memory and disk, which are then left out.
                reader_is_missing = True
            yield Finding(name, fault=str(error))


def _roles_by_endpoint(settings: schema.Config, roles: Sequence[str]) -> dict[str, list[str]]:
    """The roles of each endpoint, by the first of them: one request is enough for an endpoint in several roles."""
    by_endpoint: dict[str, list[str]] = {}
    for role in roles:
        first = next(other for other in roles if getattr(settings, other) == getattr(settings, role))
        by_endpoint.setdefault(first, []).append(role)
    return by_endpoint


def _people(size: schema.SplitSettings) -> str:
    """Check that the file of handwritten biographies (``size.people``) holds as many as the split needs."""
    from utaca.biographies.handwritten import handwritten

    return f"{len(list(handwritten(size.people, size.biographies)))} biographies of {size.people}"


def _corpus(settings: schema.Config) -> str:
    """Check that the user's own prose, if it is the corpus, can be read."""
    from utaca.biographies.corpora import folder

    if settings.corpus.source == "folder":
        folder.articles(settings.corpus.path)
    check_paths(prose_files(settings.corpus.path))
    return settings.corpus.path or settings.corpus.name


def _window(settings: schema.Config) -> str:
    """The share of each split's facts that only retrieval reaches; a config in which one is too small was refused."""
    shares = ", ".join(f"{split} {share:.0%}" for split, share in outside(settings).items())
    return f"facts outside of the reader's initial tokens and window: {shares}"


def _sets(settings: schema.Config, stages: Collection[str]) -> list[str]:
    """The sets of tasks that the stages ask or learn from."""
    found = {name for name in settings.tasks.sets if "tasks" in stages and settings.decode.get(name)}
    if "detectors" in stages:
        found |= {name for detector in settings.detectors.values() for name in detector.sets}
    return [name for name in settings.tasks.sets if name in found]


def _tasks(tasks: schema.TasksSettings, names: Sequence[str]) -> str:
    """Check the sets of these names: their settings, the packages of their metrics, and their files.

    All faults are raised together.
    """
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
    """Check that an endpoint answers; ``role`` names it in messages."""
    from utaca.endpoints.chat import check as check_endpoint

    check_endpoint(endpoint, role)
    place = endpoint.base_url if endpoint.kind == "remote" else "the embedded reference"
    return f"{place} answers as {endpoint.model}"


def _answers(place: str) -> str:
    """Check that the answer store can be opened and written to."""
    from utaca.endpoints.store import check as check_store

    return check_store(place)


def _methods(settings: schema.Config) -> str:
    """Check the methods of points that do not decode from block memory, and those that the config sets keys of.

    They are built with their settings, and at each point with the point's values; all faults are raised together.
    """
    # Imported for its errors: a file of the user's in that folder may not load.
    from utaca.detection.signals import SIGNALS  # noqa: F401
    from utaca.methods import build, method_of

    others = [point for point in settings.operating.values() if not point.in_blocks]
    used = [*settings.reader.methods, *settings.methods, *(point.base or point.method for point in others)]
    settings_by_name = {name: settings.settings_of(name) for name in used}
    makers: list[Callable[[], Any]] = [partial(build, name, about) for name, about in settings_by_name.items()]
    makers += [partial(method_of, point, settings_by_name) for point in others]
    faults = []
    for make in makers:
        try:
            make()
        except UserError as error:
            faults += getattr(error, "faults", [str(error)])
    refuse(faults)
    return f"{len({(point.family, point.base) for point in others})} next to block memory"


def _detectors(settings: schema.Config, taken: Mapping[str, str]) -> str:
    """Check the detectors that are taken from folders and not trained: their files exist and are as the config says.

    ``taken`` has the folder of each, by its variant.
    """
    from utaca.detection.about import check_alike, settings_of

    for name, folder in taken.items():
        for seed in range(settings.scale.detector_seeds):
            path = Path(folder, f"seed{seed}", "model.safetensors")
            if not path.exists():
                raise UserError(
                    f"detectors.{name}.taken is {folder}, but {path} does not exist; first make the detectors of the "
                    "run that trains them, or set scale.detector_seeds to the number of seeds in that folder"
                )
            check_alike(path, settings_of(path), settings.detectors[name])
    return f"{len(taken)} taken"


def _reader(reader: schema.ReaderSettings, weights: bool, here: bool) -> str:
    """Check a reader's settings and its model's config, tokenizer and family.

    ``weights``: also check that its weights are on this machine or can be fetched. If jobs do not run ``here``, the
    reader's device is not checked.
    """
    from utaca.readers.checks import check as check_reader
    from utaca.readers.checks import check_settings

    reader = reader if here else replace(reader, device="auto")
    # A job of the run fetches the file of a reader of the catalogue.
    is_awaited = public.is_made(reader.path) and not Path(reader.path).is_file()
    if is_awaited and (entry := public.entry(reader.path)) is not None:
        check_settings(reader)
        public.check_fetch(Path(reader.path), entry)
        public.check_index(entry)
        return f"{reader.path}, {gib(entry.size)} to be fetched"
    check_reader(reader)
    paths = files.weights(reader)
    if Path(reader.path).exists():
        return f"{reader.path}, {gib(_size(paths or [Path(reader.path)]))} of weights"
    if not weights:
        return reader.path
    if paths:
        return f"{reader.path}, {gib(_size(paths))} of weights in the cache"
    return f"{reader.path}, {gib(_to_fetch(reader))} of weights to be fetched"


def _to_fetch(reader: schema.ReaderSettings) -> int:
    """Ask the hub for the bytes of a model's weights; :class:`UserError` if it does not answer or has no weights."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    where = files.where(reader)
    advice = f"fetch them first: hf download {reader.path}"
    try:
        with hub.asked_once(reader.path, reader.revision):
            about = HfApi().model_info(reader.path, revision=reader.revision or None, files_metadata=True, timeout=20)
    except (HTTPError, OSError, ValueError) as error:
        raise UserError(f"{where} has no weights in the cache, and the hub cannot be reached; {advice}") from error
    sizes = []
    for file in about.siblings or []:
        if file.rfilename.endswith(".safetensors") and not file.rfilename.startswith(files.TWICE):
            sizes.append(file.size or 0)
    if not sizes:
        raise UserError(f"{where} has no .safetensors files on the hub; set reader.path to a model that has them")
    return sum(sizes)


def _memory(settings: schema.Config, stages: Collection[str], sets: Sequence[str]) -> str:
    """Check that the weights and the longest document that the stages read fit into the free memory, GPU and main.

    ``sets`` are names of sets of tasks that are decoded. The passes that read a document need further memory, which
    depends on the machine; each job checks that itself.
    """
    from utaca.readers.load import resolved

    reader = resolved(settings.reader)
    bytes_per_number = 2 if reader.dtype == "bfloat16" else 4
    tokens = _longest(settings, stages, sets)
    weights = _weights(reader, bytes_per_number)
    document = _sizes(reader).cache_bytes(tokens, bytes_per_number)
    document_in_host = reader.memory.storage == "host"
    # The bytes that are needed, and the bytes that are free (None: not known), by place.
    places = {"main memory": (weights + document, machine.free_memory())}
    if reader.device == "cuda":
        on_gpu = weights if document_in_host else weights + document
        # Weights pass through main memory on their way to the GPU, before a document is read.
        in_main_memory = max(weights, document) if document_in_host else weights
        places = {
            "the GPU": (on_gpu, machine.free_gpu_memory()),
            "main memory": (in_main_memory, machine.free_memory()),
        }
    parts = f"{gib(weights)} of weights and {gib(document)} for a document of {tokens:,} tokens"
    notes = []
    for place, (size, free) in places.items():
        if free is not None and size > free:
            ways = []
            if place == "the GPU" and not document_in_host:
                ways.append("reader.memory.storage=host")
            if reader.dtype == "float32":
                ways.append("reader.dtype=bfloat16")
            raise UserError(
                f"reader {reader.name} needs {gib(size)} of {place} ({parts}), but only {gib(free)} are free; use "
                f"{', or '.join([*ways, 'a smaller reader', 'shorter documents'])}."
            )
        notes.append(f"{gib(size)} of {place}" + ("" if free is None else f", {gib(free)} are free"))
    return f"{'; '.join(notes)} ({parts})"


def _weights(reader: schema.ReaderSettings, bytes_per_number: int) -> int:
    """Bytes of a reader's weights in memory or, if they are not on this machine, as the hub has them."""
    paths = files.weights(reader)
    if reader.weights == "packed":
        return _size(paths)
    return files.parameters(paths) * bytes_per_number if paths else _to_fetch(reader)


def _longest(settings: schema.Config, stages: Collection[str], sets: Sequence[str]) -> int:
    """Tokens of the longest document that the stages read, and of the longest text of the ``sets`` of tasks.

    A set without a length (0) says nothing of its prompts.
    """
    splits_of = {"trajectories": ("train", "validation", "test"), "generations": ("validation", "test")}
    splits_of["methods"] = splits_of["generations"]
    lengths = [0]
    for stage in stages:
        lengths += [getattr(settings.scale, split).tokens[-1] for split in splits_of.get(stage, ())]
    lengths += [settings.tasks.sets[name].length for name in sets]
    return max(lengths)


def _disk(settings: schema.Config, stages: Collection[str]) -> str:
    """Check that the biographies' results, and weights to fetch, fit on the disks, by their rough sizes."""
    reader = settings.reader
    splits = {name: getattr(settings.scale, name) for name in FACTS}
    size = _TEXT_BYTES * sum(split.biographies * split.tokens[-1] for split in splits.values())
    if stages & _DECODING:
        # FACTS has the facts of a biography, by split; for each, an answer has up to `max_new_tokens` tokens.
        answered_facts = 0
        for section, name in schema.SECTIONS.items():
            n_points = len(settings.decoded(section))
            answered_facts += splits[name].biographies * FACTS[name] * n_points
        trajectory_facts = sum(split.trajectories * FACTS[name] for name, split in splits.items())
        embedding = _EMBEDDING_BYTES * _sizes(reader).hidden * len(settings.trajectories.sites)
        bytes_per_token = answered_facts * _ANSWER_BYTES + trajectory_facts * (_ANSWER_BYTES + embedding)
        size += reader.max_new_tokens * bytes_per_token
    check_room(Path("results"), size, "results take about", "free some, or run on a disk that has more")
    if stages & _DECODING and not Path(reader.path).is_dir() and not files.weights(reader):
        from huggingface_hub.constants import HF_HUB_CACHE

        check_room(Path(HF_HUB_CACHE), _to_fetch(reader), "weights take", "set HF_HOME to a larger disk")
    return f"about {gib(size)} for results, {gib(free_disk(Path('results')))} are free"


def _sizes(reader: schema.ReaderSettings) -> Sizes:
    """The sizes of a reader's model, by its config file."""
    config = files.config_file(reader)
    if config is None:
        raise UserError(
            f"reader {reader.name!r} (reader.path={reader.path}) has no config.json here; fetch the reader first: "
            "snakemake --cores 1 readers"
        )
    return Sizes.of(files.check_config(config))


def _size(paths: Sequence[Path]) -> int:
    """Bytes of these files together."""
    return sum(path.stat().st_size for path in paths)


def overrides(configfiles: Sequence[Path], entries: Sequence[str]) -> dict[str, Any]:
    """The config that Snakemake makes of the files of ``--configfile`` and the entries of ``--config``.

    Raises :class:`UserError` if they cannot be read.
    """
    from snakemake.cli import parse_config
    from snakemake.exceptions import WorkflowError
    from snakemake.settings.types import ConfigSettings

    from utaca.runs.command_line import check_config

    try:
        settings = ConfigSettings(config=parse_config(entries), configfiles=configfiles, config_args="")
    except (AssertionError, OSError, ValueError, WorkflowError) as error:
        cause = str(error) or "a value is missing"
        raise UserError(f"--config or --configfile cannot be read: {cause.splitlines()[0]}") from error
    check_config(entries)
    return settings.overwrite_config


def report(configfiles: Sequence[Path], entries: Sequence[str]) -> int:
    """Check a whole run, given by its command line, and print the result of each check, one per line.

    Returns the exit status: 1 if something is missing, else 0.
    """
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
    status = 0
    for finding in findings(load(config), STAGES):
        if finding.fault:
            status = 1
            print(f"fault  {finding.fault}", flush=True)
        else:
            print(f"ok     {finding.name}: {finding.note}", flush=True)
    return status
