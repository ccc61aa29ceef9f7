"""Plan a run from its config: the files that its stages read and leave, and what its jobs depend on.

The Snakefile makes one :class:`Plan`, and the rules ask it. The modules next to this one have what jobs need of a
machine (``needs.py``), the digests of the code that they run (``digests.py``), what tables are made from
(``reporting.py``) and the targets that a command may name (``targets.py``). None of them needs Snakemake. Paths
of files are relative to the working directory.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from utaca.errors import UserError
from utaca.prose_files import prose_files
from utaca.readers import gguf, public
from utaca.readers.questions import wordings
from utaca.settings import schema
from utaca.settings.checks import identity, load
from utaca.tasks.registry import TASKS, paths_of
from utaca.tasks.rows import DECLARED

KINDS = ("blocks", "methods")
"""How answers are decoded: from block memory, or by another context-management method."""
SHEETS = {
    "labels": "data/annotations/label_corrections.csv",
    "scores": "data/annotations/cas_scores.csv",
}
"""What people filled in on the review pages."""


class Plan:
    """The paths of a run, the files that each stage reads and leaves, and the part of the config that each depends on.

    ``config`` is the composed config, ``root`` the folder of the checkout. Raises :class:`UserError` for a faulty
    config.
    """

    def __init__(self, config: Mapping[str, Any], root: Path) -> None:
        self.config = config
        self.root = root
        self.settings = load(config)
        self.identity = identity(self.settings)
        """The config without transport keys: what rules depend on."""
        self.out = f"results/{self.settings.run}"
        self.logs = f"logs/{self.settings.run}"
        self.benchmarks = f"{self.out}/benchmarks"
        self.labels = f"{self.out}/labels/{self.settings.labeller.name}"
        self.scores = f"{self.out}/scores/{self.settings.judge.name}"
        self.report = f"results/tables/{self.settings.run}.html"
        # Patterns, with the wildcards of their rules.
        self.trajectories = f"{self.out}/trajectories/{{split}}/part-{{shard}}.parquet"
        self.uncorrected = f"{self.labels}/uncorrected/{{split}}/part-{{shard}}.parquet"
        """Labels as the labeller gave them."""
        self.detector_file = f"{self.out}/detectors/{{variant}}/seed{{n}}/{{file}}"
        # Single decisions reversed, and answers decoded one at a time.
        self.replays = f"{self.out}/generations/test/replays.parquet"
        self.replay_scores = f"{self.scores}/test/replays.parquet"
        self.timed_answers = f"{self.out}/generations/test/timed.parquet"

    # Parts of the config that jobs depend on

    @cached_property
    def caption(self) -> dict[str, list[Any]]:
        """The part of the config that every table's caption depends on; a table adds the endpoint that decided it."""
        settings = self.settings
        return {
            "reader": [settings.reader.name, settings.reader.path],
            "corpus": [settings.corpus.name, settings.corpus.source],
            "scale": [settings.scale.name, settings.scale.bootstrap],
            "seeds": [settings.seed, settings.scale.detector_seeds],
        }

    @cached_property
    def readers(self) -> dict[str, dict[str, Any]]:
        """The reader's settings that decoding of each kind (:data:`KINDS`) depends on."""
        shared = {key: value for key, value in self.identity["reader"].items() if key not in ("positions", "methods")}
        # The wording itself: its name stays the same if it is edited.
        shared["question"] = wordings()[self.settings.reader.prompt]
        # Decoding from block memory does not depend on the reader's positions.
        return {"blocks": shared, "methods": shared | {"positions": self.settings.reader.positions}}

    @property
    def reader(self) -> dict[str, Any]:
        """The reader's settings that decoding from block memory depends on."""
        return self.readers["blocks"]

    def size(self, split: str) -> schema.SplitSettings:
        """The scale's settings of a split: how much of it is made."""
        return getattr(self.settings.scale, split)

    # Files that exist before the run; the checks before the first job say which are missing

    @cached_property
    def reader_files(self) -> list[str]:
        """The reader's files, if they are local or a job fetches them."""
        return _model_files(self.settings.reader.path)

    @cached_property
    def tokenizer_files(self) -> list[str]:
        """Those of the reader's files that hold its tokenizer."""
        return [path for path in self.reader_files if "token" in Path(path).name or gguf.is_gguf(path)]

    @cached_property
    def corpus_files(self) -> list[str]:
        """The files of a corpus that the user names."""
        return prose_files(self.settings.corpus.path)

    @cached_property
    def people_files(self) -> list[str]:
        """The file of people that the user names."""
        return there(self.settings.scale.test.people)

    def classifier_files(self, points: Iterable[schema.OperatingPoint]) -> list[str]:
        """The files of LLMLingua-2's classifier, if one of the ``points`` uses it and it is a folder here."""
        classifier = self.settings.settings_of("llmlingua2").get("model")
        if not classifier or "llmlingua2" not in self.methods_of(points):
            return []
        return _model_files(classifier)

    @cached_property
    def inputs(self) -> list[str]:
        """The files that a run takes from outside: the reader's, corpus, people, a classifier, and people's sheets.

        Those of benchmarks, and of detectors that are taken, are not among them (:meth:`outside`).
        """
        classifier = self.classifier_files(self.settings.operating.values())
        return [*self.reader_files, *self.corpus_files, *self.people_files, *classifier, *there(*SHEETS.values())]

    def outside(self) -> list[str]:
        """Every file that the run takes from outside: :attr:`inputs`, benchmarks, and detectors that are taken."""
        sets = dict.fromkeys(self.settings.asked)
        for detector in self.settings.detectors.values():
            sets.update(dict.fromkeys(detector.sets))
        benchmarks = [path for name in sets for path in self.task_files(name)]
        detectors = [path for variant in self.taken for path in self.detectors[variant]]
        return [*self.inputs, *benchmarks, *detectors]

    def check_there(self) -> None:
        """Raise :class:`UserError` if a path that the user names for prose or people does not exist.

        A dry run checks no other file.
        """
        paths = {"corpus.path": self.settings.corpus.path, "scale.test.people": self.settings.scale.test.people}
        for key, path in paths.items():
            if path and not os.path.exists(path):
                raise UserError(f"{key} {path} does not exist; correct the path")

    # Operating points

    @cached_property
    def points(self) -> dict[tuple[str, str], list[schema.OperatingPoint]]:
        """The points by (split, kind), each point once; a split and kind (:data:`KINDS`) without points is left out."""
        found = {}
        for split in ("validation", "test"):
            # A point may stand in several sections of the split.
            points: dict[str, schema.OperatingPoint] = {}
            for section in self.settings.sections(split):
                points.update({point.label: point for point in self.settings.decoded(section)})
            of_kinds = {
                "blocks": [point for point in points.values() if point.in_blocks],
                "methods": [point for point in points.values() if not point.in_blocks],
            }
            for kind in KINDS:
                if of_kinds[kind]:
                    found[split, kind] = of_kinds[kind]
        return found

    @cached_property
    def replayed(self) -> list[schema.OperatingPoint]:
        """The point whose single decisions are reversed, in a list; empty unless the config asks for it."""
        point = self.settings.main_point
        return [point] if point and self.settings.scale.replays else []

    def methods_of(self, points: Iterable[schema.OperatingPoint]) -> dict[str, dict[str, Any]]:
        """The settings of the methods of those points that are not decoded from block memory, by method."""
        names = [point.base or point.method for point in points if not point.in_blocks]
        return {name: self.settings.settings_of(name) for name in names}

    def triggers(self, points: Iterable[schema.OperatingPoint]) -> dict[str, list[Any]]:
        """[Variant, seed, file] of the detector of every point that has one, by the point's label."""
        found = {}
        for point in points:
            if point.detected:
                variant = point.detector or self.settings.detector
                found[point.label] = [variant, point.seed, self.detectors[variant][point.seed]]
        return found

    def trigger_files(self, points: Iterable[schema.OperatingPoint]) -> list[str]:
        """The files of the points' detectors, each once."""
        return sorted({path for _, _, path in self.triggers(points).values()})

    def taken_by(self, points: Iterable[schema.OperatingPoint]) -> dict[str, Any]:
        """The settings of those detectors of the points that are taken from elsewhere, by variant."""
        used = {variant for variant, _, _ in self.triggers(points).values()}
        return {variant: settings for variant, settings in self.taken.items() if variant in used}

    # Files of stages

    def shards(self, pattern: str, split: str) -> list[str]:
        """The files of a ``pattern`` of paths, one for each shard of the split."""
        return [pattern.format(split=split, shard=shard) for shard in range(self.size(split).shards)]

    def usage(self, path: str) -> str:
        """The path of the file that records which requests to an endpoint the file ``path`` took."""
        return path.replace(self.out, f"{self.out}/usage", 1)

    def generations(self, what: str, split: str, kind: str) -> list[str]:
        """The files of a split's "answers" or "traces" (``what``), one for each shard.

        Empty if the split has no points of this kind (:data:`KINDS`).
        """
        pattern = f"{self.out}/generations/{{split}}/{kind}/{what}-{{shard}}.parquet"
        return self.shards(pattern, split) if (split, kind) in self.points else []

    def judged(self, *splits: str, kinds: Sequence[str] = KINDS) -> list[str]:
        """The files of the scores of these splits' answers, of these kinds."""
        wanted = [(split, kind) for split in splits for kind in kinds]
        return [f"{self.scores}/{split}/{kind}.parquet" for split, kind in wanted if (split, kind) in self.points]

    def labelled(self, split: str) -> list[str]:
        """The file of the labels of the tokens in UT-ACA's answers, in a list; empty if the split has none of these."""
        return [f"{self.labels}/traces/{split}.parquet"] if self.settings.tried(split) else []

    # Detectors

    @cached_property
    def detector_seeds(self) -> range:
        """The seeds of each variant."""
        return range(self.settings.scale.detector_seeds)

    @cached_property
    def detectors(self) -> dict[str, list[str]]:
        """The files of each variant of the detector, one for each seed; those of one that is taken lie elsewhere."""
        found = {}
        for variant, settings in self.settings.detectors.items():
            folder = settings.taken or f"{self.out}/detectors/{variant}"
            found[variant] = [f"{folder}/seed{n}/model.safetensors" for n in self.detector_seeds]
        return found

    @cached_property
    def taken(self) -> dict[str, Any]:
        """The settings of the detectors that are taken from elsewhere and not trained, by variant."""
        variants = [variant for variant, settings in self.settings.detectors.items() if settings.taken]
        return {variant: self.identity["detectors"][variant] for variant in variants}

    def lessons(self, variant: str) -> dict[str, list[str]]:
        """The files that a variant is trained on, by the names of the training's inputs.

        They are the trajectories of the biographies and of sets of tasks, the examples that the latter answer, labels
        unless the variant learns from the expanded pass, and the detectors, one a seed, that its training starts from.
        """
        detector = self.settings.detectors[variant]
        needs_labels = detector.label == "judged"
        splits = ("train", "validation") if detector.mixed or not detector.sets else ()
        sets = detector.sets
        return {
            **{split: self.shards(self.trajectories, split) for split in splits},
            **{f"{split}_labels": [f"{self.labels}/{split}.parquet"] for split in splits if needs_labels},
            "tasks": [f"{self.out}/tasks/{name}/trajectories.parquet" for name in sets],
            "examples": [f"{self.out}/tasks/{name}/examples.parquet" for name in sets],
            "task_labels": [f"{self.labels}/tasks/{name}.parquet" for name in sets if needs_labels],
            "start": self.detectors[detector.start] if detector.start else [],
        }

    # Sets of tasks

    def task(self, name: str) -> dict[str, Any]:
        """The settings of a set that its rows depend on."""
        settings = self.identity["tasks"]["sets"][name]
        return {key: value for key, value in settings.items() if key not in ("block_size", "budgets")}

    def declared(self, name: str) -> Any:
        """The entry of a set's task in the list of tasks (``rows.yaml``); empty for a task with code of its own."""
        return DECLARED.get(self.settings.tasks.sets[name].task, {})

    def task_files(self, name: str) -> list[str]:
        """Those of the files that a set is made from that exist."""
        return there(*map(str, paths_of(self.settings.tasks.sets[name], self.settings.tasks.path).values()))

    def task_corpus(self, name: str) -> list[str]:
        """The file of the run's corpus, in a list, if the documents of a set are padded with it; else empty."""
        settings = self.settings.tasks.sets[name]
        is_padded = settings.length and TASKS[settings.task].padded
        return [f"{self.out}/corpus.parquet"] if is_padded else []

    def task_reader(self, name: str) -> dict[str, Any]:
        """The reader's settings under which a set is answered; the set may have a block size of its own."""
        block_size = self.settings.tasks.sets[name].block_size
        reader = self.readers["methods"]
        if not block_size:
            return reader
        return reader | {"memory": reader["memory"] | {"block_size": block_size}}

    def task_outputs(self, what: str) -> list[str]:
        """The file called ``what`` (as "scores") of every set that is asked."""
        return [f"{self.out}/tasks/{name}/{what}.parquet" for name in self.settings.asked]


def there(*paths: str) -> list[str]:
    """Those of the paths that exist."""
    return [path for path in paths if os.path.exists(path)]


def _model_files(path: str) -> list[str]:
    """The files of a model's weights, config and tokenizer, if they are local or a job fetches them."""
    if gguf.is_gguf(path):
        return [path] if os.path.isfile(path) or public.is_made(path) else []
    return [str(file) for file in sorted(Path(path).glob("*")) if file.suffix in {".json", ".jinja", ".safetensors"}]
