"""What a run consists of, from its config: the files that its stages leave, and what its jobs depend on.

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

    ``config`` is the composed config, ``root`` the folder of the checkout.
    """

    def __init__(self, config: Mapping[str, Any], root: Path) -> None:
        """Raises :class:`UserError` for a faulty config."""
        self.config = config
        self.root = root
        self.settings = load(config)
        self.identity = identity(self.settings)
        """The config without transport: what rules depend on."""
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
        # Single decisions turned, and answers decoded by themselves.
        self.replays = f"{self.out}/generations/test/replays.parquet"
        self.replay_scores = f"{self.scores}/test/replays.parquet"
        self.timed_answers = f"{self.out}/generations/test/timed.parquet"

    # Parts of the config that jobs depend on

    @cached_property
    def caption(self) -> dict[str, list[Any]]:
        """What captions say of a run; the role that decided is added to it."""
        settings = self.settings
        return {
            "reader": [settings.reader.name, settings.reader.path],
            "corpus": [settings.corpus.name, settings.corpus.source],
            "scale": [settings.scale.name, settings.scale.bootstrap],
            "seeds": [settings.seed, settings.scale.detector_seeds],
        }

    @cached_property
    def readers(self) -> dict[str, dict[str, Any]]:
        """The reader's settings that decoding of each kind depends on."""
        shared = {k: v for k, v in self.identity["reader"].items() if k not in ("positions", "methods")}
        # Decoding from block memory does not heed the reader's positions.
        return {"blocks": shared, "methods": shared | {"positions": self.settings.reader.positions}}

    @property
    def reader(self) -> dict[str, Any]:
        """The reader's settings that decoding from block memory depends on."""
        return self.readers["blocks"]

    def size(self, split: str) -> schema.SplitSettings:
        """How much is made of a split."""
        return getattr(self.settings.scale, split)

    # Files that are there before the run; of missing ones the checks before the first job say so

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
        """The files of LLMLingua-2's classifier, for points of which one has the method; none if it is no folder."""
        classifier = self.settings.settings_of("llmlingua2").get("model")
        return _model_files(classifier) if classifier and "llmlingua2" in self.methods_of(points) else []

    @cached_property
    def inputs(self) -> list[str]:
        """Every file that the run takes from outside, but those of benchmarks and of detectors that are taken."""
        classifier = self.classifier_files(self.settings.operating.values())
        return [*self.reader_files, *self.corpus_files, *self.people_files, *classifier, *there(*SHEETS.values())]

    def outside(self) -> list[str]:
        """Every file that the run takes from outside, those of benchmarks and of taken detectors among them."""
        learned = (name for detector in self.settings.detectors.values() for name in detector.sets)
        sets = dict.fromkeys([*self.settings.asked, *learned])
        benchmarks = [path for name in sets for path in self.task_files(name)]
        detectors = [path for name in self.taken for path in self.detectors[name]]
        return [*self.inputs, *benchmarks, *detectors]

    def check_there(self) -> None:
        """Refuse a path that a run is made from and that does not exist; a dry run looks at nothing else."""
        paths = {"corpus.path": self.settings.corpus.path, "scale.test.people": self.settings.scale.test.people}
        for key, path in paths.items():
            if path and not os.path.exists(path):
                raise UserError(f"{key} {path} does not exist; correct it")

    # Operating points

    @cached_property
    def points(self) -> dict[tuple[str, str], list[schema.OperatingPoint]]:
        """The points of each split and kind, each once; without a split or kind that has none."""
        found = {}
        for split in ("validation", "test"):
            sections = self.settings.sections(split)
            points = {point.label: point for name in sections for point in self.settings.decoded(name)}
            for kind in KINDS:
                found[split, kind] = [point for point in points.values() if point.in_blocks == (kind == "blocks")]
        return {key: points for key, points in found.items() if points}

    @cached_property
    def replayed(self) -> list[schema.OperatingPoint]:
        """The point whose single decisions are turned, if the config asks for it."""
        point = self.settings.main_point
        return [point] if point and self.settings.scale.replays else []

    def methods_of(self, points: Iterable[schema.OperatingPoint]) -> dict[str, dict[str, Any]]:
        """Settings of the methods of those points that are not decoded from block memory."""
        names = [point.base or point.method for point in points if not point.in_blocks]
        return {name: self.settings.settings_of(name) for name in names}

    def triggers(self, points: Iterable[schema.OperatingPoint]) -> dict[str, list[Any]]:
        """Variant, seed and file of the detector of every point that has one, by label."""
        found = {}
        for point in points:
            if point.detected:
                name = point.detector or self.settings.detector
                found[point.label] = [name, point.seed, self.detectors[name][point.seed]]
        return found

    def trigger_files(self, points: Iterable[schema.OperatingPoint]) -> list[str]:
        """The files of the detectors of points."""
        return sorted({path for _, _, path in self.triggers(points).values()})

    def taken_by(self, points: Iterable[schema.OperatingPoint]) -> dict[str, Any]:
        """Settings of the detectors of points that are taken from elsewhere, by variant."""
        named = {name for name, _, _ in self.triggers(points).values()}
        return {name: settings for name, settings in self.taken.items() if name in named}

    # Files of stages

    def shards(self, pattern: str, split: str) -> list[str]:
        """The files of a pattern, a shard of the split each."""
        return [pattern.format(split=split, shard=shard) for shard in range(self.size(split).shards)]

    def usage(self, path: str) -> str:
        """The file that records what an endpoint was asked for the file ``path``."""
        return path.replace(self.out, f"{self.out}/usage", 1)

    def generations(self, what: str, split: str, kind: str) -> list[str]:
        """Files of "answers" or "traces", a shard each; none where the split has no such points."""
        pattern = f"{self.out}/generations/{{split}}/{kind}/{what}-{{shard}}.parquet"
        return self.shards(pattern, split) if (split, kind) in self.points else []

    def judged(self, *splits: str, kinds: Sequence[str] = KINDS) -> list[str]:
        """Scores of splits."""
        wanted = [(split, kind) for split in splits for kind in kinds]
        return [f"{self.scores}/{split}/{kind}.parquet" for split, kind in wanted if (split, kind) in self.points]

    def labelled(self, split: str) -> list[str]:
        """Labels of the tokens along UT-ACA's answers."""
        return [f"{self.labels}/traces/{split}.parquet"] if self.settings.tried(split) else []

    # Detectors

    @cached_property
    def detector_seeds(self) -> range:
        """The seeds of each variant."""
        return range(self.settings.scale.detector_seeds)

    @cached_property
    def detectors(self) -> dict[str, list[str]]:
        """Every seed of each variant; of one that is taken, where it is taken from."""
        found = {}
        for name, about in self.settings.detectors.items():
            folder = about.taken or f"{self.out}/detectors/{name}"
            found[name] = [f"{folder}/seed{n}/model.safetensors" for n in self.detector_seeds]
        return found

    @cached_property
    def taken(self) -> dict[str, Any]:
        """Settings of the detectors that are taken from elsewhere, by variant."""
        return {name: self.identity["detectors"][name] for name, x in self.settings.detectors.items() if x.taken}

    def lessons(self, variant: str) -> dict[str, list[str]]:
        """What a variant is trained on, by the names under which its training knows them.

        That is the trajectories of the biographies and of sets of tasks, the examples that the latter answer, labels
        unless the variant learns from the expanded pass, and the detectors, one a seed, that its training starts from.
        """
        detector = self.settings.detectors[variant]
        judged_ones = detector.label == "judged"
        splits = ("train", "validation") if detector.mixed or not detector.sets else ()
        sets = detector.sets
        return {
            **{split: self.shards(self.trajectories, split) for split in splits},
            **{f"{split}_labels": [f"{self.labels}/{split}.parquet"] for split in splits if judged_ones},
            "tasks": [f"{self.out}/tasks/{name}/trajectories.parquet" for name in sets],
            "examples": [f"{self.out}/tasks/{name}/examples.parquet" for name in sets],
            "task_labels": [f"{self.labels}/tasks/{name}.parquet" for name in sets if judged_ones],
            "start": self.detectors[detector.start] if detector.start else [],
        }

    # Sets of tasks

    def task(self, name: str) -> dict[str, Any]:
        """What the rows of a set depend on of its settings."""
        about = self.identity["tasks"]["sets"][name]
        return {key: value for key, value in about.items() if key not in ("block_size", "budgets")}

    def declared(self, name: str) -> Any:
        """What the list of tasks (rows.yaml) has of a set's task; the code of the other tasks says everything."""
        return DECLARED.get(self.settings.tasks.sets[name].task, {})

    def task_files(self, name: str) -> list[str]:
        """The files that a set is made from, those that are there."""
        return there(*map(str, paths_of(self.settings.tasks.sets[name], self.settings.tasks.path).values()))

    def task_corpus(self, name: str) -> list[str]:
        """The corpus where a set's documents are padded with it."""
        about = self.settings.tasks.sets[name]
        return [f"{self.out}/corpus.parquet"] if about.length and TASKS[about.task].padded else []

    def task_reader(self, name: str) -> dict[str, Any]:
        """The reader's settings for a set."""
        block = self.settings.tasks.sets[name].block_size
        reader = self.readers["methods"]
        return reader | ({"memory": reader["memory"] | {"block_size": block}} if block else {})

    def task_outputs(self, what: str) -> list[str]:
        """A file of every set that is asked."""
        return [f"{self.out}/tasks/{name}/{what}.parquet" for name in self.settings.asked]


def there(*paths: str) -> list[str]:
    """Those of the paths that exist."""
    return [path for path in paths if os.path.exists(path)]


def _model_files(path: str) -> list[str]:
    """A model's weights, config and tokenizer, if they are local or a job fetches them."""
    if gguf.is_gguf(path):
        return [path] if os.path.isfile(path) or public.is_made(path) else []
    return [str(x) for x in sorted(Path(path).glob("*")) if x.suffix in {".json", ".jinja", ".safetensors"}]
