"""What rules share: the run's folders, the files that its stages leave, and what its jobs depend on and need."""

import difflib
import re
from dataclasses import asdict

from utaca.readers import files, gguf, public
from utaca.reporting.registry import ENDINGS, ENTRIES, WHEN
from utaca.settings import schema
from utaca.settings.checks import ROLES, SHARED_FOLDERS, identity, load
from utaca.machine import gpus
from utaca.prose_files import prose_files
from utaca.runs.code_digest import code
from utaca.runs.compose import groups as option_groups
from utaca.runs.compose import points_of as points_of_reader
from utaca.settings.triggers import as_written
from utaca.sizes import FACTS, Work, shown_bytes
from utaca.tasks.registry import TASKS, paths_of
from utaca.tasks.rows import DECLARED

SETTINGS = load(config)
IDENTITY = identity(SETTINGS)  # the config without transport: what rules depend on
SPLITS = ("train", "validation", "test")
# How answers are decoded: from block memory, or by another context-management method.
KINDS = ("blocks", "methods")

OUT = f"results/{SETTINGS.run}"
LOGS = f"logs/{SETTINGS.run}"
BENCHMARKS = f"{OUT}/benchmarks"
LABELS = f"{OUT}/labels/{SETTINGS.labeller.name}"
SCORES = f"{OUT}/scores/{SETTINGS.judge.name}"
REPORT = f"results/tables/{SETTINGS.run}.html"
# What people filled in on the review pages.
SHEETS = {
    "labels": "data/annotations/label_corrections.csv",
    "scores": "data/annotations/cas_scores.csv",
}

# What captions say of a run, beside the role that decided.
CAPTION = {
    "reader": [SETTINGS.reader.name, SETTINGS.reader.path],
    "corpus": [SETTINGS.corpus.name, SETTINGS.corpus.source],
    "scale": [SETTINGS.scale.name, SETTINGS.scale.bootstrap],
    "seeds": [SETTINGS.seed, SETTINGS.scale.detector_seeds],
}
# What decoding from block memory depends on of the reader's settings; other methods heed its positions too.
READER = {k: v for k, v in IDENTITY["reader"].items() if k not in ("positions", "methods")}
READERS = {"blocks": READER, "methods": READER | {"positions": SETTINGS.reader.positions}}


# Files that are there before the run; of missing ones the checks before the first job say so.


def there(*paths):
    return [path for path in paths if os.path.exists(path)]


def model_files(path):
    """A model's weights, config and tokenizer, if they are local or a job fetches them."""
    if gguf.is_gguf(path):
        return [path] if os.path.isfile(path) or public.is_made(path) else []
    return [str(x) for x in sorted(Path(path).glob("*")) if x.suffix in {".json", ".jinja", ".safetensors"}]


READER_FILES = model_files(SETTINGS.reader.path)
TOKENIZER_FILES = [x for x in READER_FILES if "token" in Path(x).name or gguf.is_gguf(x)]
CORPUS_FILES = prose_files(SETTINGS.corpus.path)
PEOPLE_FILES = there(SETTINGS.scale.test.people)
# LLMLingua-2's classifier, where a point has the method and the classifier is a folder.
CLASSIFIER = SETTINGS.settings_of("llmlingua2").get("model")
COMPRESSED = any(point.method == "llmlingua2" for point in SETTINGS.operating.values())
CLASSIFIER_FILES = model_files(CLASSIFIER) if CLASSIFIER and COMPRESSED else []
# Every file that the run takes from outside, but those of benchmarks and of detectors that are taken.
INPUTS = [*READER_FILES, *CORPUS_FILES, *PEOPLE_FILES, *CLASSIFIER_FILES, *there(*SHEETS.values())]

# Operating points


def points_of(split, kind):
    """A split's points of a kind, each once."""
    points = {point.label: point for name in SETTINGS.sections(split) for point in SETTINGS.decoded(name)}
    return [point for point in points.values() if point.in_blocks == (kind == "blocks")]


POINTS = {
    (split, kind): found for split in ("validation", "test") for kind in KINDS if (found := points_of(split, kind))
}


def methods_of(points):
    """Settings of the methods of those points that are not decoded from block memory."""
    names = [point.base or point.method for point in points if not point.in_blocks]
    return {name: SETTINGS.settings_of(name) for name in names}


def classifier_files(points):
    """The files of LLMLingua-2's classifier, for points of which one has the method."""
    return CLASSIFIER_FILES if "llmlingua2" in methods_of(points) else []


# Files of stages


def size(split):
    return getattr(SETTINGS.scale, split)


def shards(pattern, split, **wildcards):
    """The files of a pattern, a shard of the split each."""
    return expand(pattern, split=split, shard=range(size(split).shards), **wildcards)


def usage(path):
    """Beside a file that an endpoint decided: what was asked of it."""
    return path.replace(OUT, f"{OUT}/usage", 1)


def generations(what, split, kind):
    """Files of "answers" or "traces", a shard each; none where the split has no such points."""
    pattern = f"{OUT}/generations/{{split}}/{{kind}}/{what}-{{shard}}.parquet"
    return shards(pattern, split, kind=kind) if (split, kind) in POINTS else []


def judged(*splits, kinds=KINDS):
    """Scores of splits."""
    wanted = [(split, kind) for split in splits for kind in kinds]
    return [f"{SCORES}/{split}/{kind}.parquet" for split, kind in wanted if (split, kind) in POINTS]


# Single decisions turned, and answers decoded by themselves.
REPLAYED = [point for point in [SETTINGS.main_point] if point and SETTINGS.scale.replays]
REPLAYS = f"{OUT}/generations/test/replays.parquet"
REPLAY_SCORES = f"{SCORES}/test/replays.parquet"
TIMED = f"{OUT}/generations/test/timed.parquet"
TRAJECTORIES = f"{OUT}/trajectories/{{split}}/part-{{shard}}.parquet"
# Labels as the labeller gave them.
UNCORRECTED = f"{LABELS}/uncorrected/{{split}}/part-{{shard}}.parquet"
SEED = f"{OUT}/detectors/{{variant}}/seed{{n}}/{{file}}"
SEEDS = range(SETTINGS.scale.detector_seeds)


# Every seed of each variant; of one that is taken, where it is taken from.
DETECTORS = {
    name: [f"{x.taken or f'{OUT}/detectors/{name}'}/seed{n}/model.safetensors" for n in SEEDS]
    for name, x in SETTINGS.detectors.items()
}
TAKEN = {name: IDENTITY["detectors"][name] for name, x in SETTINGS.detectors.items() if x.taken}


def triggers(points):
    """Variant, seed and file of the detector of every point that has one, by label."""
    named = [(point, point.detector or SETTINGS.detector) for point in points if point.detected]
    return {p.label: [name, p.seed, DETECTORS[name][p.seed]] for p, name in named}


def taken(points):
    """Settings of the detectors of points that are taken from elsewhere, by variant."""
    named = {name for name, _, _ in triggers(points).values()}
    return {name: TAKEN[name] for name in TAKEN if name in named}


def trigger_files(points):
    return sorted({path for _, _, path in triggers(points).values()})


def labelled(split):
    """Labels of the tokens along UT-ACA's answers."""
    return [f"{LABELS}/traces/{split}.parquet"] if SETTINGS.tried(split) else []


# What detectors learn from


def lessons(variant):
    """What a variant is trained on, by the names under which its training knows them.

    That is the trajectories of the biographies and of sets of tasks, the examples that the latter answer, labels unless
    the variant learns from the expanded pass, and the detectors, one a seed, that its training starts from.
    """
    detector = SETTINGS.detectors[variant]
    judged_ones = detector.label == "judged"
    splits = ("train", "validation") if detector.mixed or not detector.sets else ()
    sets = detector.sets
    return {
        **{split: shards(TRAJECTORIES, split) for split in splits},
        **{f"{split}_labels": [f"{LABELS}/{split}.parquet"] for split in splits if judged_ones},
        "tasks": [f"{OUT}/tasks/{name}/trajectories.parquet" for name in sets],
        "examples": [f"{OUT}/tasks/{name}/examples.parquet" for name in sets],
        "task_labels": [f"{LABELS}/tasks/{name}.parquet" for name in sets if judged_ones],
        "start": DETECTORS[detector.start] if detector.start else [],
    }


# Sets of tasks


def task(name):
    """What the rows of a set depend on of its settings."""
    about = IDENTITY["tasks"]["sets"][name]
    return {key: value for key, value in about.items() if key not in ("block_size", "budgets")}


def declared(name):
    """What the list of tasks (rows.yaml) has of a set's task; the code of the other tasks says everything."""
    return DECLARED.get(SETTINGS.tasks.sets[name].task, {})


def task_files(name):
    """The files that a set is made from, those that are there."""
    return there(*map(str, paths_of(SETTINGS.tasks.sets[name], SETTINGS.tasks.path).values()))


def outside():
    """Every file that the run takes from outside, those of benchmarks and of detectors that are taken among them."""
    asked = dict.fromkeys([*SETTINGS.asked, *(one for x in SETTINGS.detectors.values() for one in x.sets)])
    return [*INPUTS, *sum(map(task_files, asked), []), *sum((DETECTORS[name] for name in TAKEN), [])]


def task_reader(name):
    """The reader's settings for a set."""
    block = SETTINGS.tasks.sets[name].block_size
    reader = READERS["methods"]
    return reader | ({"memory": reader["memory"] | {"block_size": block}} if block else {})


def task_outputs(what):
    """A file of every set that is asked."""
    return [f"{OUT}/tasks/{name}/{what}.parquet" for name in SETTINGS.asked]


# What jobs need: of this machine GPUs alone; of a cluster memory and time, more of both in every further try


def model():
    return files.model(SETTINGS.reader)


def gpu():
    """GPUs that a job needs which decodes: on a cluster by the reader alone, whatever this machine has."""
    device = SETTINGS.reader.device if HERE else model().device
    return int(device == "cuda" or (device == "auto" and gpus() > 0))


def decodes(needs):
    """Resources of a rule that decodes the work which ``needs`` makes of its wildcards."""
    if HERE:
        return {"gpu": gpu()}
    # Not before a job asks: other rules need no reader.
    return {
        "gpu": lambda wildcards: gpu(),
        "mem_mb": lambda wildcards, attempt: attempt * model().memory_bytes(needs(wildcards)) // 10**6,
        "runtime": lambda wildcards, attempt: attempt * model().minutes(needs(wildcards)),
    }


def learns(*splits):
    """Resources of a rule that reads the embeddings of these splits' trajectories."""
    if HERE:
        return {}
    tokens = sum(size(split).trajectories for split in splits) * SETTINGS.reader.max_new_tokens
    return {"mem_mb": lambda wildcards, attempt: attempt * shown_bytes(tokens, model().sizes.hidden) // 10**6}


def split_work(split, points=None):
    """The largest shard of a split decoded at these points, without them the trajectories of it."""
    about = size(split)
    documents = -(-about.biographies // about.shards) * (len(about.evidence) if points is None else 1)
    points = compact(about) if points is None else points
    return work(documents, about.tokens[-1], FACTS[split] * SETTINGS.reader.max_new_tokens, points)


def task_work(name):
    """The answers to a set of tasks, or the trajectories of these."""
    about, kind = SETTINGS.tasks.sets[name], TASKS[SETTINGS.tasks.sets[name].task]
    rows = (about.examples or kind.rows) * len(about.evidence)
    points = SETTINGS.decoded(name) or compact(about)
    return work(rows, about.length or model().positions, kind.new_tokens, points)


def compact(about):
    """The points that the trajectories of a split or set are decoded at."""
    # A path is a budget a step, which decodes as a fixed one does.
    budgets = [*about.budgets, *(path.budget for path in getattr(about, "paths", ()))]
    return [schema.PointSettings(method="infllm", budget=budget) for budget in budgets]


def work(documents, length, tokens, points):
    whole = len({point.base or point.method for point in points if not point.in_blocks})
    budgets = tuple(point.budget for point in points if point.in_blocks)
    return Work(documents, length, tokens, max(1, len(points)), whole, budgets)


def retries(role):
    """How often a stage is tried again: twice where a network may have failed; rules have none."""
    return 2 if getattr(SETTINGS, role).kind == "remote" else 0


def task_corpus(name):
    """The corpus where a set's documents are padded with it."""
    about = SETTINGS.tasks.sets[name]
    return [f"{OUT}/corpus.parquet"] if about.length and TASKS[about.task].padded else []


# Tables and figures


# Those that the config makes.
TABLES = {name: entry for name, entry in ENTRIES.items() if entry.holds(SETTINGS)}
RESULTS = [f"{OUT}/{entry.kind}s/{name}.{ending}" for name, entry in TABLES.items() for ending in ENDINGS[entry.kind]]


def shown(name):
    """What a table or figure depends on beside its files and code: its entry and a part of the config."""
    theme = ENTRIES[name].theme
    keys = {
        "detection": ("labeller", "detectors", "detector"),
        "data": ("writer", "detectors", "detector"),
        "judging": ROLES,
        "resources": (),
    }
    parts = keys.get(theme, ("judge", "detector", "points", "decode", "plan"))
    # Which points such a table shows, and what they are called.
    if theme in ("detection", "judging") and {"test_answers", "judged", "trace_labels"} & {*ENTRIES[name].files}:
        parts = (*parts, "detector", "points", "decode")
    settings = {key: IDENTITY[key] for key in parts}
    if theme == "judging":
        roles = [getattr(SETTINGS, role) for role in ROLES]
        settings |= {"prices": [[x.prompt_price, x.completion_price] for x in roles]}
    if ENTRIES[name].when == "bars":
        settings |= {"bars": [asdict(bar) for bar in SETTINGS.reader.bars]}
    return CAPTION | settings | {"entry": asdict(ENTRIES[name])}


def groups():
    """The files that tables may be made from, by the names that their makers know them by."""
    splits = [split for split in ("validation", "test") if (split, "blocks") in POINTS]
    traced = [path for split in splits for path in labelled(split)]
    uncorrected = [path for split in SPLITS for path in shards(UNCORRECTED, split)]
    of_tasks = dict.fromkeys(path for variant in SETTINGS.detectors for path in lessons(variant)["task_labels"])
    curve = "sweep" if "sweep" in TABLES else "test"
    return {
        **{f"{x}_answers": generations("answers", x, "blocks") for x in splits},
        **{f"{x}_traces": generations("traces", x, "blocks") for x in splits},
        **{f"{x}_scores": judged(x, kinds=["blocks"]) for x in splits},
        **{f"{x}_uncorrected": shards(UNCORRECTED, x) for x in SPLITS},
        "replays": [REPLAYS] if REPLAYED else [],
        "replay_scores": [REPLAY_SCORES] if REPLAYED else [],
        "timed_answers": [TIMED] if SETTINGS.timed else [],
        "trace_labels": labelled("test") if ("test", "blocks") in POINTS else [],
        "verdict_table": [f"{OUT}/tables/verdict.csv"],
        "curve_table": [f"{OUT}/tables/{curve}.csv"],
        "method_answers": generations("answers", "test", "methods"),
        "method_scores": judged("test", kinds=["methods"]),
        "judged": judged("test"),
        "detections": [f"{OUT}/detections/test.parquet"],
        "detectors": sum(DETECTORS.values(), []),
        # In the order of their record.
        "detected_from": [
            *shards(TRAJECTORIES, "test"),
            f"{LABELS}/test.parquet",
            *sum(DETECTORS.values(), []),
            *shards(TRAJECTORIES, "validation"),
            f"{LABELS}/validation.parquet",
        ],
        "task_examples": task_outputs("examples"),
        "task_answers": task_outputs("answers"),
        "task_scores": task_outputs("scores"),
        "biographies": [f"{OUT}/biographies/{split}.parquet" for split in SPLITS],
        "documents": [f"{OUT}/documents/{split}.parquet" for split in SPLITS],
        "corpus": [f"{OUT}/corpus.parquet"],
        "main_detectors": DETECTORS[SETTINGS.detector],
        "test_documents": [f"{OUT}/documents/test.parquet"],
        "tokenizer": TOKENIZER_FILES,
        "trajectories": [path for split in SPLITS for path in shards(TRAJECTORIES, split)],
        "labels": [f"{LABELS}/{split}.parquet" for split in SPLITS],
        "label_sheet": there(SHEETS["labels"]),
        "score_sheet": there(SHEETS["scores"]),
        "writer_usage": [usage(f"{OUT}/biographies/test.parquet")],
        "labeller_usage": list(map(usage, [*uncorrected, *traced, *of_tasks])),
        "judge_usage": list(map(usage, [*judged(*splits), *([REPLAY_SCORES] if REPLAYED else [])])),
    }


def made_from(table):
    """The files that a table is made from, by name; none under a name that the run has no such files for."""
    there = groups()
    return {name: there.get(name, []) for name in ENTRIES[table].files}


# The page of each split that shows its answers token by token, and all pages that the report links.
VIEWS = {x: f"{OUT}/traces/{x}.html" for x in ("test", "validation") if (x, "blocks") in POINTS}
LINKS = {f"Answers of the {x} split, token by token": path for x, path in VIEWS.items()} | {
    "Labels, to review": f"{LABELS}/review.html",
    **({"Answers, to score": f"{SCORES}/review.html"} if judged("test") else {}),
}


# Of every rule


def measures(signals):
    """The modules of signals."""
    return [f"utaca.detection.signals.{name}" for name in signals]


def decoded_by(points):
    """The modules of the methods of points, and of the signals that their detectors read."""
    methods = {name for point in points for name in (point.method, point.base) if name}
    detectors = [SETTINGS.detectors[name] for name, _, _ in triggers(points).values()]
    signals = {"margin", *(name for detector in detectors for name in detector.signals)}
    return [*(f"utaca.methods.{name}" for name in sorted(methods)), *measures(sorted(signals))]


# Modules that scripts load by name, so that no import shows them: only those that the config names for the job. A file
# that is added to a folder of methods, signals or tables changes no other job.
LOADED = {
    "decode_trajectories": lambda wildcards: measures(SETTINGS.recorded),
    "task_trajectories": lambda wildcards: measures(SETTINGS.recorded),
    "replay": lambda wildcards: decoded_by(REPLAYED),
    "time_answers": lambda wildcards: decoded_by(SETTINGS.timed),
    "task_answers": lambda wildcards: decoded_by(SETTINGS.decoded(wildcards.task)),
    **dict.fromkeys(ENDINGS, lambda wildcards: [f"utaca.reporting.{ENTRIES[wildcards.entry].module}"]),
}


def codes(script, points):
    """Digest of the modules that a script runs at each point, by label."""
    return {point.label: code(ROOT / "workflow" / "scripts" / script, SOURCE, *decoded_by([point])) for point in points}


def code_of(rule, script=None):
    """Digest of the modules that a rule's script runs; by default the script is called as the rule is."""
    path = ROOT / "workflow" / "scripts" / (script or f"{rule}.py")
    loaded = LOADED.get(rule)
    if loaded is None:
        return code(path, SOURCE)
    return lambda wildcards: code(path, SOURCE, *loaded(wildcards))


STAGES = {
    "biographies": expand(f"{OUT}/biographies/{{split}}.parquet", split=SPLITS),
    "documents": expand(f"{OUT}/documents/{{split}}.parquet", split=SPLITS),
    "trajectories": [shards(TRAJECTORIES, split) for split in SPLITS],
    "labels": expand(f"{LABELS}/{{split}}.parquet", split=SPLITS),
    "detectors": list(DETECTORS.values()),
    "detections": [f"{OUT}/detections/test.parquet"],
    "generations": [generations("answers", split, kind) for split, kind in POINTS],
    "scores": judged("validation", "test"),
    "traces": list(VIEWS.values()),
    "tasks": task_outputs("scores"),
    **dict.fromkeys(("results/tables", "results/tables/"), REPORT),
}


def check_tables():
    """Refuse a table that is declared with files which there are none of under any config."""
    splits = {f"{split}_{what}" for split in ("validation", "test") for what in ("answers", "traces", "scores")}
    names = splits | groups().keys()
    for table in TABLES:
        if unknown := {*ENTRIES[table].files} - names:
            raise UserError(
                f"table {table} is declared with files {min(unknown)}; there are {', '.join(sorted(names))}"
            )


def check_there():
    """Refuse a path that a run is made from and that does not exist; a dry run looks at nothing else."""
    for key, path in (("corpus.path", SETTINGS.corpus.path), ("scale.test.people", SETTINGS.scale.test.people)):
        if path and not os.path.exists(path):
            raise UserError(f"{key} {path} does not exist; correct it")


def check_names(targets, rules):
    """Refuse a target that is neither the name of a rule, nor a file, with the names of stages."""
    for target in targets:
        if target not in rules and not re.search(r"[/.]", target):
            known = sorted({*STAGES} - {"results/tables", "results/tables/"} | {"corpus", "readers", "tables"})
            near = difflib.get_close_matches(target, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"targets are {', '.join(known)}, and files in {OUT}."
            raise UserError(f"there is no target {target}; {hint}")


def where(targets):
    """Where the files of targets are, in a sentence; "" if no target names a file that is made."""
    files = [str(path) for target in targets for path in flat(STAGES.get(target, target)) if os.path.isfile(path)]
    if not files:
        return ""
    more = f" and {len(files) - 1} more in {os.path.commonpath(files)}" if len(files) > 1 else ""
    return f"Done: {files[0]}{more}."


def flat(paths):
    return [each for path in paths for each in flat(path)] if isinstance(paths, list) else [paths]


def check_targets(targets):
    """Refuse a target that is a table which the config does not make, or that is of another run."""
    for target in targets:
        name = re.match(rf"{re.escape(OUT)}/(?:tables|figures)/([^/.]+)\.\w+", target)
        if name and name[1] not in ENTRIES:
            near = difflib.get_close_matches(name[1], ENTRIES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"tables are {', '.join(sorted(ENTRIES))}."
            raise UserError(f"{target} is no table of this project; {hint}")
        if name and name[1] not in TABLES:
            when = WHEN[ENTRIES[name[1]].when]
            option = when.option(points_of_reader(SETTINGS.reader.name, ROOT), option_groups(ROOT)["points"])
            command = f"snakemake --cores all {target} --config {option}"
            raise UserError(f"{target} needs {when.needs}: {command if option else 'name them under decode'}")
        found = re.match(r"results/(?:tables/([^/{]+)\.html|([^/{]+)/)", target)
        run = found and (found[1] or found[2])
        if run and run not in (SETTINGS.run, *SHARED_FOLDERS):
            saved = f"results/{run}/run.yaml"
            add = f"add --configfile {saved}" if Path(saved).is_file() else "correct one of them (--config run=NAME)"
            raise UserError(f"{target} belongs to run {run}, but the config is that of run {SETTINGS.run}; {add}")
