"""What a run consists of: every file of every stage, what each is made from, and the tables that its config makes.

The workflow's rules read paths and parameters off a :class:`Plan`; nothing here touches a file but to look whether it
is there. A run's files lie in ``results/{run}``, one folder a stage.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from utaca.errors import UserError
from utaca.readers import files, gguf, public
from utaca.reporting.registry import ENDINGS, ENTRIES, WHEN, Entry
from utaca.settings import schema
from utaca.settings.checks import ROLES, identity, load
from utaca.settings.machine import gpus, prose_files
from utaca.settings.modules import code
from utaca.sizes import FACTS, Model, Work, shown_bytes
from utaca.tasks.registry import TASKS, paths_of

SPLITS = ("train", "validation", "test")
KINDS = ("blocks", "methods")
"""How answers are decoded: from block memory, or by another context-management method."""

SHEETS = {"labels": "data/annotations/label_corrections.csv", "scores": "data/annotations/cas_scores.csv"}
"""What people filled in on the review pages."""

STAGES = (
    "biographies", "corpus", "documents", "trajectories", "labels", "detectors", "detections", "generations", "scores",
    "traces", "tasks", "tables",
)  # fmt: skip
"""Stages. Each is a target, and a folder or file of the run's folder."""

_TABLE = re.compile(r"results/[^/]+/(?:tables|figures)/([^/.]+)\.\w+")


@dataclass(frozen=True)
class Plan:
    """A run, from its config (:func:`utaca.settings.compose.compose`); ``source`` is the folder of the package.

    Its jobs run ``here``, on the machine that plans, or on a cluster's.
    """

    config: Mapping[str, Any]
    source: Path
    here: bool = True

    # The run

    @cached_property
    def settings(self) -> schema.Config:
        return load(self.config)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """The config without transport: what rules depend on (:func:`utaca.settings.checks.identity`)."""
        return identity(self.settings)

    @property
    def folder(self) -> str:
        return f"results/{self.settings.run}"

    @property
    def logs(self) -> str:
        return f"logs/{self.settings.run}"

    @property
    def measured(self) -> str:
        """Where Snakemake's measurements of the run's jobs lie: a folder a rule."""
        return f"{self.folder}/benchmarks"

    @property
    def reader(self) -> dict[str, Any]:
        """What decoding from block memory depends on of the reader's settings."""
        return {k: v for k, v in self.identity["reader"].items() if k not in ("positions", "methods")}

    @property
    def caption(self) -> dict[str, list[Any]]:
        """What captions say of a run, beside the role that decided."""
        settings = self.settings
        return {
            "reader": [settings.reader.name, settings.reader.path],
            "corpus": [settings.corpus.name, settings.corpus.source, self.identity["documents"]],
            "scale": [settings.scale.name, settings.scale.bootstrap],
            "seeds": [settings.seed, settings.scale.detector_seeds],
        }

    @cached_property
    def model(self) -> Model:
        """What a cluster's jobs are asked for by; raises :class:`UserError` where the reader is not fetched yet."""
        return files.model(self.settings.reader)

    @property
    def gpu(self) -> int:
        """GPUs that a job needs which decodes: on a cluster by the reader alone, whatever this machine has."""
        device = self.settings.reader.device
        if not self.here:
            return int(self.model.device == "cuda")
        return int(device == "cuda" or (device == "auto" and gpus() > 0))

    def decodes(self, work: Callable[[Any], Work] | None = None) -> dict[str, Any]:
        """Resources of a rule that decodes what ``work`` makes of its wildcards: GPUs; and, on a cluster, memory (MB)
        and time (minutes), more of both in every further try."""
        if self.here:
            return {"gpu": self.gpu}
        # Not before a job asks: other rules need no reader.
        asked: dict[str, Any] = {"gpu": lambda wildcards: self.gpu}
        if work is None:
            return asked

        def of(wildcards: Any) -> tuple[Work, schema.Memory]:
            found = work(wildcards)
            name, memory = getattr(wildcards, "task", ""), self.settings.reader.memory
            size = self.settings.tasks.sets[name].block_size if name else 0
            return found, replace(memory, block_size=size or memory.block_size)

        return asked | {
            "mem_mb": lambda wildcards, attempt: attempt * self.model.memory_bytes(*of(wildcards)) // 10**6,
            "runtime": lambda wildcards, attempt: attempt * self.model.minutes(*of(wildcards)),
        }

    def learns(self, *splits: str) -> dict[str, Any]:
        """Resources of a rule that reads the embeddings of these splits' trajectories: on a cluster, memory (MB)."""
        if self.here:
            return {}
        tokens = sum(self.size(split).trajectories for split in splits) * self.settings.reader.max_new_tokens
        return {"mem_mb": lambda wildcards, attempt: attempt * shown_bytes(tokens, self.model.sizes.hidden) // 10**6}

    def trajectory_work(self, split: str) -> Work:
        """A shard of a split's trajectories, whose budgets go on side by side."""
        size = self.size(split)
        documents = _shard(size) * len(size.evidence)
        return Work(documents, size.tokens[-1], self._answer_tokens(split), len(size.budgets))

    def answer_work(self, split: str, kind: str) -> Work:
        """A shard of a split's answers."""
        size, points = self.size(split), self.points(split, kind)
        return self._asked_work(_shard(size), size.tokens[-1], self._answer_tokens(split), points)

    def _answer_tokens(self, split: str) -> int:
        return FACTS[split] * self.settings.reader.max_new_tokens

    def task_work(self, name: str) -> Work:
        """The answers to a set of tasks, or the trajectories of these."""
        about, task = self.settings.tasks.sets[name], TASKS[self.settings.tasks.sets[name].task]
        rows = (about.examples or task.rows) * len(about.evidence)
        points = self.settings.decoded(name) or [schema.Point(method="infllm", budget=k) for k in about.budgets]
        return self._asked_work(rows, about.length or self.model.positions, task.new_tokens, points)

    def _asked_work(self, documents: int, length: int, tokens: int, points: Sequence[schema.Point]) -> Work:
        whole = len({point.base or point.method for point in points if not point.in_blocks})
        return Work(documents, length, tokens, max(1, len(points)), whole)

    def retries(self, role: str) -> int:
        """How often a stage is tried again: twice where a network may have failed; the reference endpoint has none."""
        return 2 if getattr(self.settings, role).kind == "remote" else 0

    def code(self, script: Path, table: str = "") -> str:
        """Digest of the package's modules that a script runs, and of the one that makes a table."""
        return code(script, self.source, *([f"utaca.reporting.{ENTRIES[table].module}"] if table else []))

    # Files that are there before the run

    @cached_property
    def reader_files(self) -> list[str]:
        """The reader's weights, config and tokenizer, where it is a local folder, and its adapter's files."""
        reader = self.settings.reader
        if gguf.is_gguf(reader.path):
            # Of a file that is not here the checks before the first job say so.
            own = [reader.path] if Path(reader.path).is_file() or public.is_made(reader.path) else []
        else:
            own = _model_files(reader.path)
        return [*own, *(_model_files(reader.adapter) if reader.adapter else [])]

    @property
    def tokenizer_files(self) -> list[str]:
        return [path for path in self.reader_files if "token" in Path(path).name or gguf.is_gguf(path)]

    @cached_property
    def corpus_files(self) -> list[str]:
        return prose_files(self.settings.corpus.path)

    @property
    def people_files(self) -> list[str]:
        """The biographies of the test split, where people wrote them; of a missing file the checks say so."""
        return [path for path in [self.size("test").people] if os.path.exists(path)]

    def sheet(self, kind: str) -> list[str]:
        """The sheet of "labels" or "scores" that people filled in, if any."""
        return [path for path in [SHEETS[kind]] if os.path.exists(path)]

    @property
    def inputs(self) -> list[str]:
        """Every file that the run takes from outside."""
        sheets = [*self.sheet("labels"), *self.sheet("scores")]
        return [*self.reader_files, *self.corpus_files, *self.people_files, *self.classifier("methods"), *sheets]

    # Files of the stages

    def size(self, split: str) -> schema.SplitSize:
        return getattr(self.settings.scale, split)

    def biographies(self, split: str) -> str:
        return f"{self.folder}/biographies/{split}.parquet"

    @property
    def corpus(self) -> str:
        return f"{self.folder}/corpus.parquet"

    def documents(self, split: str) -> str:
        return f"{self.folder}/documents/{split}.parquet"

    def trajectories(self, split: str) -> list[str]:
        return [f"{self.folder}/trajectories/{split}/part-{n}.parquet" for n in range(self.size(split).shards)]

    @property
    def labels(self) -> str:
        """Folder of the labels, one a labeller."""
        return f"{self.folder}/labels/{self.settings.labeller.name}"

    def uncorrected(self, split: str) -> list[str]:
        """The labels of a split's trajectories as the labeller gave them, a file for each of theirs."""
        return [f"{self.labels}/uncorrected/{split}/part-{n}.parquet" for n in range(self.size(split).shards)]

    @property
    def scores(self) -> str:
        """Folder of the scores, one a judge."""
        return f"{self.folder}/scores/{self.settings.judge.name}"

    def usage(self, path: str) -> str:
        """Beside a file that an endpoint decided: what was asked of it."""
        return path.replace(self.folder, f"{self.folder}/usage", 1)

    def seeds(self, variant: str, file: str) -> list[str]:
        """A file of every seed of a variant, or of a pattern that stands for variants."""
        return [f"{self.folder}/detectors/{variant}/seed{n}/{file}" for n in range(self.settings.scale.detector_seeds)]

    @property
    def detectors(self) -> dict[str, list[str]]:
        """Every seed of every variant; of one that is taken, the files that are where it is taken from.

        Of a file that is not there, here as of benchmarks, the checks before the first job say so.
        """
        own = {variant: self.seeds(variant, "model.safetensors") for variant in self.settings.detectors}
        return own | {
            variant: [path for path in detector.taken_files(self.settings.scale.detector_seeds) if os.path.exists(path)]
            for variant, detector in self.settings.detectors.items()
            if detector.taken
        }

    @property
    def taken(self) -> dict[str, Any]:
        """Settings of the variants that are taken, by name: their files must agree with them."""
        return {name: self.identity["detectors"][name] for name, own in self.settings.detectors.items() if own.taken}

    @property
    def baselines(self) -> str:
        return f"{self.folder}/detectors/baselines/model.json"

    @property
    def detected(self) -> tuple[str, ...]:
        """The splits on whose trajectories detectors are measured."""
        wanted = any("validation_detections" in entry.files for entry in self.tables.values())
        return ("validation", "test") if wanted else ("test",)

    def detections(self, split: str) -> str:
        """The verdicts on a split's trajectories."""
        return f"{self.folder}/detections/{split}.parquet"

    def detected_from(self, split: str) -> list[str]:
        """What the verdicts on a split's trajectories are made from, in the order of their record."""
        models = [path for seeds in self.detectors.values() for path in seeds]
        return [*self.trajectories(split), f"{self.labels}/{split}.parquet", *models, self.baselines]

    def shown_to(self, variant: str, split: str) -> list[str]:
        """The trajectories of a split that a variant learns from; none where it learns from benchmarks alone."""
        detector = self.settings.detectors[variant]
        return self.trajectories(split) if detector.mixed or not detector.sets else []

    def training_labels(self, variant: str, split: str) -> list[str]:
        """The labels of these; none where it learns from the expanded pass."""
        judged = self.settings.detectors[variant].label == "judged"
        return [f"{self.labels}/{split}.parquet"] if judged and self.shown_to(variant, split) else []

    def shown_tasks(self, variant: str, what: str) -> list[str]:
        """The "trajectories" of benchmarks that a variant learns from, or the "examples" that these answer."""
        return [f"{self.tasks}/{name}/{what}.parquet" for name in self.settings.detectors[variant].sets]

    def task_labels(self, variant: str) -> list[str]:
        """The labels of these; none where it learns from the expanded pass."""
        detector = self.settings.detectors[variant]
        return [f"{self.labels}/tasks/{name}.parquet" for name in detector.sets if detector.label == "judged"]

    def start(self, variant: str) -> list[str]:
        """The detectors, one a seed, that a variant's training starts from; none where it starts from random ones."""
        start = self.settings.detectors[variant].start
        return self.detectors[start] if start else []

    # Operating points

    @cached_property
    def _points(self) -> dict[tuple[str, str], dict[str, schema.Operating]]:
        """Points by split and kind, then by label."""
        points: dict[tuple[str, str], dict[str, schema.Operating]] = {}
        for split in (schema.VALIDATION, schema.TEST):
            for point in (x for section in self.settings.sections(split) for x in self.settings.decoded(section)):
                kind = KINDS[0] if point.in_blocks else KINDS[1]
                points.setdefault((split, kind), {}).setdefault(point.label, point)
        return points

    @property
    def decoded(self) -> list[tuple[str, str]]:
        """The splits and kinds that have points."""
        return sorted(self._points, reverse=True)

    def points(self, split: str, kind: str) -> list[schema.Operating]:
        return list(self._points.get((split, kind), {}).values())

    def methods(self, points: Sequence[schema.Operating]) -> dict[str, Any]:
        """Settings of the methods of those points that are not decoded from block memory."""
        names = [point.base or point.method for point in points if not point.in_blocks]
        return {name: self.settings.methods[name] for name in names}

    def decoding(self, kind: str) -> dict[str, Any]:
        """What decoding depends on of the reader's settings; methods heed its positions too."""
        return self.reader | ({"positions": self.settings.reader.positions} if kind == "methods" else {})

    def triggers(self, points: Sequence[schema.Operating]) -> dict[str, list[Any]]:
        """Variant, seed and file of the detector of every point that has one, by label."""
        detected = [(point, point.detector or self.settings.detector) for point in points if point.detected]
        return {point.label: [name, point.seed, self.detectors[name][point.seed]] for point, name in detected}

    def trigger_files(self, points: Sequence[schema.Operating]) -> list[str]:
        """The detectors of :meth:`triggers`, each once."""
        return sorted({path for _, _, path in self.triggers(points).values()})

    def replays(self, split: str, kind: str) -> list[Any]:
        """Point, number and seed of the decisions that are replayed; empty where none is."""
        decided = (split, kind) == ("test", "blocks") and self.settings.replays_of
        number = self.settings.scale.replays if decided else 0
        return [self.settings.replays_of, number, self.settings.seed] if number else []

    def classifier(self, kind: str) -> list[str]:
        """Files of LLMLingua-2's classifier, where a point has the method and the classifier is a folder."""
        used = any(p.method == "llmlingua2" for split in SPLITS for p in self.points(split, kind))
        return _model_files(self.settings.methods["llmlingua2"]["model"]) if used else []

    def generations(self, what: str, split: str, kind: str) -> list[str]:
        """Files of "answers", "traces" or "replays", a shard each; none where the split has no such points."""
        shards = self.size(split).shards if (split, kind) in self._points else 0
        return [f"{self.folder}/generations/{split}/{kind}/{what}-{shard}.parquet" for shard in range(shards)]

    def judged(self, split: str, kinds: Sequence[str] = KINDS) -> list[str]:
        """Scores of a split."""
        return [f"{self.scores}/{split}/{kind}.parquet" for kind in kinds if (split, kind) in self._points]

    # Benchmarks of other domains

    @property
    def tasks(self) -> str:
        return f"{self.folder}/tasks"

    @property
    def learned(self) -> list[str]:
        """The sets of tasks that detectors learn from."""
        found = {name for detector in self.settings.detectors.values() for name in detector.sets}
        return [name for name in self.settings.tasks.sets if name in found]

    def task(self, name: str) -> dict[str, Any]:
        """What the rows of a set depend on of its settings."""
        aside = ("block_size", "budgets")
        return {key: value for key, value in self.identity["tasks"]["sets"][name].items() if key not in aside}

    def task_files(self, name: str) -> list[str]:
        """The files that a set is made from, those that are there."""
        paths = paths_of(self.settings.tasks.sets[name], self.settings.tasks.path).values()
        return [str(path) for path in paths if path.is_file()]

    def task_corpus(self, name: str) -> list[str]:
        """The corpus where a set's documents are padded with it."""
        about = self.settings.tasks.sets[name]
        return [self.corpus] if about.length and TASKS[about.task].padded else []

    def task_reader(self, name: str) -> dict[str, Any]:
        """The reader's settings for a set."""
        size = self.settings.tasks.sets[name].block_size
        reader = self.decoding("methods")
        return reader | ({"memory": reader["memory"] | {"block_size": size}} if size else {})

    @property
    def scored(self) -> list[str]:
        return [f"{self.tasks}/{name}/scores.parquet" for name in self.settings.asked]

    # Tables

    @cached_property
    def tables(self) -> dict[str, Entry]:
        """The tables and figures that the config makes."""
        return {name: entry for name, entry in ENTRIES.items() if entry.holds(self.settings)}

    def names(self, kind: str) -> list[str]:
        """All tables or figures that there are."""
        return [name for name, entry in ENTRIES.items() if entry.kind == kind]

    def shown(self, name: str) -> dict[str, Any]:
        """What a table or figure depends on beside its files and code: its entry and a part of the config."""
        theme = ENTRIES[name].theme
        keys = {"detection": ("labeller", "detectors", "detector"), "judging": ROLES, "resources": ()}
        prices = [[e.prompt_price, e.completion_price] for e in (getattr(self.settings, role) for role in ROLES)]
        settings = {
            key: self.identity[key] for key in keys.get(theme, ("judge", "detector", "points", "decode", "plan"))
        }
        settings |= {"prices": prices} if theme == "judging" else {}
        return self.caption | settings | {"entry": asdict(ENTRIES[name])}

    def table(self, entry: Entry) -> list[str]:
        """Files of a table or figure."""
        return [f"{self.folder}/{entry.kind}s/{entry.name}.{ending}" for ending in ENDINGS[entry.kind]]

    def made_from(self, table: str) -> dict[str, list[str]]:
        """The files that a table is made from, by the names that its maker knows them by."""
        return {name: self.named[name] for name in ENTRIES[table].files}

    @cached_property
    def named(self) -> dict[str, list[str]]:
        """Every group of files that tables are made from."""
        splits = [split for split, kind in self.decoded if kind == "blocks"]
        traced = [path for split in splits for path in self.labelled(split)]
        replays = f"{self.scores}/replays.parquet"
        uncorrected = [path for split in SPLITS for path in self.uncorrected(split)]
        scored = [path for split in splits for path in self.judged(split)] + (
            [replays] if self.settings.scale.replays and self.settings.replays_of else []
        )
        both = ("validation", "test")
        return {
            **{f"{split}_answers": self.generations("answers", split, "blocks") for split in both},
            **{f"{split}_traces": self.generations("traces", split, "blocks") for split in both},
            **{f"{split}_scores": self.judged(split, ["blocks"]) for split in both},
            "method_answers": self.generations("answers", "test", "methods"),
            "method_scores": self.judged("test", ["methods"]),
            "judged": self.judged("test"),
            "replays": self.generations("replays", "test", "blocks"),
            "replay_scores": [replays],
            "detections": [self.detections("test")],
            "detected_from": self.detected_from("test"),
            "validation_detections": [self.detections("validation")],
            "validation_detected_from": self.detected_from("validation"),
            "trace_labels": traced,
            **{f"{split}_decoded": self.decoded_by(split) if self.labelled(split) else [] for split in both},
            "task_examples": [f"{self.tasks}/{name}/examples.parquet" for name in self.settings.asked],
            "task_answers": [f"{self.tasks}/{name}/answers.parquet" for name in self.settings.asked],
            "task_scores": self.scored,
            "documents": [self.documents(split) for split in SPLITS],
            "test_documents": [self.documents("test")],
            "tokenizer": self.tokenizer_files,
            "trajectories": [path for split in SPLITS for path in self.trajectories(split)],
            **{f"{table}_table": [f"{self.folder}/tables/{table}.csv"] for table in ("detection", "verdict")},
            "curve_table": [f"{self.folder}/tables/{'sweep' if 'sweep' in self.tables else 'test'}.csv"],
            **{f"{split}_uncorrected": self.uncorrected(split) for split in SPLITS},
            "labels": self.stage("labels"),
            "label_sheet": self.sheet("labels"),
            "score_sheet": self.sheet("scores"),
            "writer_usage": [self.usage(self.biographies("test"))],
            "labeller_usage": [self.usage(path) for path in [*uncorrected, *traced]],
            "judge_usage": [self.usage(path) for path in scored],
        }

    def decoded_by(self, split: str) -> list[str]:
        """What the labels of tokens along UT-ACA's answers are made from."""
        return [*self.generations("answers", split, "blocks"), *self.generations("traces", split, "blocks")]

    @property
    def results(self) -> list[str]:
        """Every table and figure of the run."""
        return [path for entry in self.tables.values() for path in self.table(entry)]

    def labelled(self, split: str) -> list[str]:
        """Labels of the tokens along UT-ACA's answers."""
        return [f"{self.labels}/traces/{split}.parquet"] if self.settings.tried(split) else []

    @property
    def views(self) -> dict[str, str]:
        """The page of each split that shows its answers token by token."""
        return {split: f"{self.folder}/traces/{split}.html" for split, kind in self.decoded if kind == "blocks"}

    @property
    def report(self) -> str:
        return f"results/tables/{self.settings.run}.html"

    @property
    def links(self) -> dict[str, str]:
        """Pages that the report links, by what they are."""
        return {
            **{f"Answers of the {split} split, token by token": path for split, path in self.views.items()},
            "Labels, to review": f"{self.labels}/review.html",
            **({"Answers, to score": f"{self.scores}/review.html"} if self.judged("test") else {}),
        }

    # What a command asks for

    def check_targets(self, targets: Sequence[str]) -> None:
        """Raise :class:`UserError` where a target is a table that the config does not make, or of another run."""
        for target in targets:
            if (found := _TABLE.match(target)) and target.startswith(f"{self.folder}/"):
                name = found[1]
                if name not in ENTRIES:
                    near = difflib.get_close_matches(name, ENTRIES, n=1)
                    hint = f"; did you mean {target.replace(name, near[0])}?" if near else "."
                    raise UserError(f"{target} is no table of this project{hint} Tables: {', '.join(sorted(ENTRIES))}.")
                if name not in self.tables:
                    raise UserError(
                        f"{target} needs {WHEN[ENTRIES[name].when].needs}: snakemake --cores all {target} "
                        f"--config {WHEN[ENTRIES[name].when].option(self.settings.reader.name)}"
                    )
            elif target.startswith("results/") and "{" not in target:
                run = Path(target).parts[1]
                known = {self.settings.run, "tables"}
                if run not in known and (Path("results") / run / "run.yaml").is_file():
                    raise UserError(
                        f"{target} belongs to run {run}, but the config is that of run {self.settings.run}; add "
                        f"--configfile results/{run}/run.yaml"
                    )

    def stage(self, stage: str) -> list[str]:
        """Files that a stage leaves."""
        decoded = [self.generations("answers", *one) for one in self.decoded]
        files: dict[str, list[str]] = {
            "biographies": [self.biographies(split) for split in SPLITS],
            "corpus": [self.corpus],
            "documents": [self.documents(split) for split in SPLITS],
            "trajectories": [path for split in SPLITS for path in self.trajectories(split)],
            "labels": [f"{self.labels}/{split}.parquet" for split in SPLITS],
            "detectors": [*(path for seeds in self.detectors.values() for path in seeds), self.baselines],
            "detections": [self.detections(split) for split in self.detected],
            "generations": [path for paths in decoded for path in paths],
            "scores": [path for split in ("validation", "test") for path in self.judged(split)],
            "traces": list(self.views.values()),
            "tasks": self.scored,
            "tables": [*self.results, self.report],
        }
        return files[stage]


def plain(points: Sequence[schema.Operating]) -> list[dict[str, Any]]:
    """Points as plain values."""
    return [asdict(point) for point in points]


def _shard(size: schema.SplitSize) -> int:
    """Documents of the largest shard."""
    return -(-size.biographies // size.shards)


def _model_files(folder: str) -> list[str]:
    paths = sorted(Path(folder).glob("*"))
    return [str(path) for path in paths if path.suffix in {".json", ".jinja", ".safetensors"}]
