"""Every table and figure of a run: what it is made from, what makes it, and what a config must hold for it.

A maker gets the files by name (:attr:`utaca.plan.Plan.named`), the config and the folder of its output. It imports
what it needs itself, so that an edit repeats the tables that use the edited module and no others
(:func:`utaca.settings.modules.code`). A table is returned, and saved as CSV, Markdown and LaTeX. A figure is drawn by
its maker, which leaves the numbers as CSV beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from utaca.settings import schema

if TYPE_CHECKING:
    from utaca.reporting.tables import Table

Files = Mapping[str, Sequence[str]]
Maker = Callable[[Files, schema.Config, Path], "Table | None"]

ENDINGS = {"table": ("csv", "md", "tex"), "figure": ("csv", "png", "svg")}

VALIDATION = ("validation_answers", "validation_scores")
TEST = ("test_answers", "test_scores")
BESIDE = ("method_answers", "method_scores")
DETECTIONS = ("detections", "detected_from")
UNCORRECTED = ("train_uncorrected", "validation_uncorrected", "test_uncorrected")
USAGE = ("writer_usage", "labeller_usage", "judge_usage")
TRIED = ("trace_labels", "validation_decoded", "test_decoded")
REPLAYS = (*TEST, "replays", "replay_scores")
ASKED = ("task_examples", "task_answers", "task_scores")
RETRIEVED = ("test_documents", *TEST, "test_traces", "tokenizer")


@dataclass(frozen=True)
class When:
    """What a config must hold for a table: as a test, in words, and what to add to a command that lacks it."""

    holds: Callable[[schema.Config], bool]
    needs: str = ""
    add: str = ""

    def option(self, reader: str) -> str:
        """What to add, with the options of suites that are the reader's."""
        own = {"tiny": "tiny", "qwen2_7b": "qwen"}.get(reader, "llama")
        methods = "methods" if own == "llama" else f"methods_{own}"
        return self.add.replace("{plain}", own).replace("{full}", f"{own}_full").replace("{methods}", methods)


def _suite(*purposes: str, split: str = "test") -> Callable[[schema.Config], bool]:
    """Whether a config has a suite for one of these purposes (:class:`schema.Suite`) on a split."""
    return lambda config: any(s.split == split and s.table in purposes for s in config.suites.values())


ALWAYS = When(lambda config: True)
ON_TEST = When(_suite("generation"), "a suite of the test split", "suites={plain}")
ON_VALIDATION = When(_suite("generation", split="validation"), "a suite of the validation split", "suites={plain}")
SWEEP = When(_suite("sweep"), "a suite with table: sweep", "suites={full}")
SEEDS = When(_suite("seeds"), "a suite with table: seeds", "suites={full}")
METHODS = When(_suite("methods"), "a suite with table: methods", "suites={methods}")
BUDGETS = When(_suite("budgets"), "a suite with table: budgets", "suites={methods}")
FIXED = When(lambda config: any(p.method == "infllm" and p.in_blocks for s in config.suites.values()
                                if s.split == "test" and s.table != "seeds" for p in s.points),
             "fixed budgets on the test split", "suites={plain}")  # fmt: skip
OWN = When(lambda config: any(map(config.tried, ("validation", "test"))), "points of method utaca", "suites={plain}")
TRIED_ON_TEST = When(lambda config: bool(config.tried("test")), "points of method utaca on the test split",
                     "suites={plain}")  # fmt: skip
EXPANDED = When(lambda config: config.trajectories.expanded > 0, "trajectories that try every token expanded",
                "detectors=paper")  # fmt: skip
OOD = When(lambda config: any(map(config.asked_of, config.tasks.sets)), "benchmarks that suites ask",
           "tasks=paper suites=ood")  # fmt: skip
CALIBRATED = When(lambda config: OOD.holds(config) and any(d.sets for d in config.detectors.values()),
                  "detectors that learn from benchmarks", "tasks=paper suites=ood detectors=calibrated")  # fmt: skip
REPLAYED = When(
    lambda config: config.scale.replays > 0 and bool(config.replays_of),
    "decisions that are replayed",
    "'scale={replays: 12}'",
)
JUDGED = When(lambda config: any(s.split == "test" for s in config.suites.values()), ON_TEST.needs, ON_TEST.add)


@dataclass(frozen=True)
class Entry:
    """A table or figure, and what a config must hold for it."""

    name: str
    kind: str
    theme: str
    title: str
    files: tuple[str, ...]
    make: Maker
    when: When


ENTRIES: dict[str, Entry] = {}
"""By name; a figure's name is no table's."""


def entry(title: str, theme: str, *files: str, kind: str = "table", when: When = ALWAYS) -> Callable[[Maker], Maker]:
    """Register the maker of a table or figure under the function's name."""

    def register(make: Maker) -> Maker:
        ENTRIES[make.__name__] = Entry(make.__name__, kind, theme, title, files, make, when)
        return make

    return register


# Generation: the verdict, then the paper's tables


@entry("UT-ACA against InfLLM at equal tokens", "generation", *TEST, when=ON_TEST)
def verdict(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting.verdict import verdict

    return verdict(*(files[name] for name in TEST), config, only=config.shown("test", "generation"))


@entry("CAS less InfLLM's at equal tokens", "generation", *TEST, kind="figure", when=ON_TEST)
def differences(files: Files, config: schema.Config, folder: Path) -> None:
    from utaca.reporting.figures import differences
    from utaca.reporting.tables import save_frame
    from utaca.reporting.verdict import verdict

    table = verdict(*(files[name] for name in TEST), config, only=config.shown("test", "generation"))
    save_frame(table.frame, folder / "differences.csv")
    differences(table.frame, folder, config)


@entry("Generation, long-context test set", "generation", *TEST, when=ON_TEST)
def test(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting.generation import generation

    return generation("test", *(files[name] for name in TEST), config, only=config.shown("test", "generation"))


@entry("Generation, validation set", "generation", *VALIDATION, when=ON_VALIDATION)
def validation(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting.generation import generation

    shown = config.shown("validation", "generation")
    return generation("validation", *(files[name] for name in VALIDATION), config, only=shown)


@entry("Quality, latency, memory", "generation", *TEST, when=ON_TEST)
def tradeoff(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import generation

    return generation.tradeoff(*(files[name] for name in TEST), config, only=config.shown("test", "generation"))


@entry("Area between the curves", "generation", *TEST, when=ON_TEST)
def pareto(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import generation

    return generation.pareto(*(files[name] for name in TEST), config, only=config.shown("test", "generation", "sweep"))


@entry("Generation, sweep of budgets", "generation", *TEST, when=SWEEP)
def sweep(files: Files, config: schema.Config, folder: Path) -> Table:
    from dataclasses import replace

    from utaca.reporting.generation import generation

    shown = config.shown("test", "generation", "sweep")
    table = generation("test", *(files[name] for name in TEST), config, only=shown)
    return replace(table, name="sweep", title=ENTRIES["sweep"].title)


@entry("Generation, spread over detector seeds", "generation", *TEST, when=SEEDS)
def seeds(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import generation

    return generation.seeds(*(files[name] for name in TEST), config, only=config.shown("test", "generation", "seeds"))


@entry("CAS over selected tokens", "generation", *TEST, kind="figure", when=ON_TEST)
def curves(files: Files, config: schema.Config, folder: Path) -> None:
    from utaca.reporting import figures
    from utaca.reporting.generation import generation
    from utaca.reporting.tables import save_frame

    shown = config.shown("test", "generation", "sweep")
    table = generation("test", *(files[name] for name in TEST), config, only=shown)
    save_frame(table.frame, folder / "curves.csv")
    figures.pareto(table.frame, folder, config)


@entry("Budget over the steps", "generation", "test_traces", kind="figure", when=ON_TEST)
def budget(files: Files, config: schema.Config, folder: Path) -> None:
    from utaca.reporting import budget

    budget.draw(budget.budget(files["test_traces"], config, only=config.shown("test", "generation")), folder, config)


@entry("Recall of the gold block", "generation", *RETRIEVED, when=FIXED)
def retrieval(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import retrieval

    found = retrieval.facts(retrieval.Files(*_located(files)), retrieval.prompts(config), config)
    return retrieval.retrieval(found, config)


@entry("Recall by layer, CAS given recall", "generation", *RETRIEVED, kind="figure", when=FIXED)
def recall(files: Files, config: schema.Config, folder: Path) -> None:
    from utaca.reporting import retrieval, retrieval_figure
    from utaca.reporting.tables import save_frame

    found = retrieval.facts(retrieval.Files(*_located(files)), retrieval.prompts(config), config)
    frame = retrieval.by_layer(found, config)
    save_frame(frame, folder / "recall.csv")
    retrieval_figure.draw(frame, folder, config)


def _located(files: Files) -> list[Sequence[str]]:
    return [files[name] for name in RETRIEVED if name != "tokenizer"]


# Detection


@entry("Uncertainty detection", "detection", *DETECTIONS)
def detection(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import detection

    return detection.detection(detection.load_checked(files["detections"][0], files["detected_from"]), config)


@entry("Component ablation", "detection", *DETECTIONS, *TEST)
def ablation(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import detection
    from utaca.reporting.points import points

    data = detection.load_checked(files["detections"][0], files["detected_from"])
    answers, scores = (files[name] for name in TEST)
    found = points(answers, scores, config.shown("test", "generation")) if answers else []
    return detection.ablation(data, config, found)


@entry("Detectors as triggers", "detection", *DETECTIONS, when=EXPANDED)
def triggers(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import detection

    return detection.triggers(detection.load_checked(files["detections"][0], files["detected_from"]), config)


@entry("Detectors as triggers, validation set", "detection", "validation_detections", "validation_detected_from",
       when=EXPANDED)  # fmt: skip
def triggers_validation(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import detection

    (path,) = files["validation_detections"]
    return detection.triggers(detection.load_checked(path, files["validation_detected_from"]), config, "validation")


@entry("Uncertainty detection, own trajectories", "detection", *DETECTIONS, *TRIED, when=OWN)
def detection_own(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.records import check_source
    from utaca.reporting import detection, detection_own

    for path in files["trace_labels"]:
        check_source(path, files[f"{Path(path).stem}_decoded"])
    fixed = detection.load_checked(files["detections"][0], files["detected_from"])
    return detection_own.detection_own(files["trace_labels"], fixed, config)


@entry("Expansions by step", "detection", "test_traces", when=TRIED_ON_TEST)
def steps(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting.steps import steps

    return steps(files["test_traces"], config, config.shown("test", "generation"))


@entry("Reliability of p_N", "detection", *DETECTIONS, kind="figure")
def reliability(files: Files, config: schema.Config, folder: Path) -> None:
    from utaca.reporting import detection, detection_figures
    from utaca.reporting.tables import save_frame

    data = detection.load_checked(files["detections"][0], files["detected_from"])
    bins = detection.reliability_bins(data)
    save_frame(bins, folder / "reliability.csv")
    detection_figures.reliability(bins, folder, detection.run_in_words(data, config))


@entry("Logit margins by class", "detection", *DETECTIONS, kind="figure")
def margins(files: Files, config: schema.Config, folder: Path) -> None:
    from utaca.reporting import detection, detection_figures
    from utaca.reporting.tables import save_frame

    data = detection.load_checked(files["detections"][0], files["detected_from"])
    histogram = detection.margin_histogram(data)
    save_frame(histogram, folder / "margins.csv")
    detection_figures.margins(histogram, folder, detection.run_in_words(data, config))


@entry("Detectors side by side", "detection", "detection_table", kind="figure")
def detectors(files: Files, config: schema.Config, folder: Path) -> None:
    from utaca.records import atomic_path
    from utaca.reporting.spread import spread

    (table,) = files["detection_table"]
    with atomic_path(folder / "detectors.csv") as scratch:
        scratch.write_bytes(Path(table).read_bytes())
    spread(table, folder)


# Other methods


@entry("Context-management methods", "methods", *TEST, *BESIDE, when=METHODS)
def methods(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.methods import METHODS
    from utaca.reporting import methods

    return methods.methods(*methods.split(files, ["methods"], config), METHODS, config)


@entry("Methods at equal budgets", "methods", *TEST, *BESIDE, when=BUDGETS)
def equal_budgets(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import methods

    return methods.equal_budgets(*methods.split(files, ["budgets"], config), config)


@entry("Methods over attended keys and time", "methods", *TEST, *BESIDE, kind="figure", when=METHODS)
def compared(files: Files, config: schema.Config, folder: Path) -> None:
    from utaca.reporting import methods, methods_figure

    methods_figure.draw(*methods.split(files, ["methods", "budgets"], config), folder, config)


# Benchmarks of other domains


@entry("Benchmarks of other domains", "methods", *ASKED, when=OOD)
def ood(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import tasks

    return tasks.ood(tasks.Files(*(files[name] for name in ASKED)), config)


@entry("Calibration on benchmarks", "methods", *ASKED, *DETECTIONS, when=CALIBRATED)
def calibration(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import detection, tasks

    verdicts = detection.load_checked(files["detections"][0], files["detected_from"])
    return tasks.calibration(tasks.Files(*(files[name] for name in ASKED)), verdicts, config)


# Single decisions


@entry("Decisions replayed", "decisions", *REPLAYS, when=REPLAYED)
def replay(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import replays

    return replays.replay(replays.Files(*_replayed(files), config.replays_of), config)


@entry("What one better decision is worth", "decisions", *REPLAYS, when=REPLAYED)
def bound(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import replays

    return replays.bound(replays.Files(*_replayed(files), config.replays_of), config)


@entry("Failures", "decisions", *REPLAYS, when=REPLAYED)
def failures(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import replays

    return replays.failures(replays.Files(*_replayed(files), config.replays_of), config)


@entry("Expansions that changed an answer", "decisions", *REPLAYS, when=REPLAYED)
def cases(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import replays

    tested = [point for suite in config.suites.values() if suite.split == "test" for point in suite.points]
    compact = min((p for p in tested if p.method == "infllm"), key=lambda point: point.budget, default=None)
    given = replays.Files(*_replayed(files), config.replays_of)
    return replays.cases(given, compact.label if compact else "", config)


def _replayed(files: Files) -> tuple[Sequence[str], str, Sequence[str], str]:
    return files["test_answers"], files["test_scores"][0], files["replays"], files["replay_scores"][0]


# Judging


@entry("CAS beside string match", "judging", "judged", when=JUDGED)
def scorers(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import scorers

    return scorers.scorers(files["judged"], config)


@entry("Where CAS and string match disagree", "judging", "judged", when=JUDGED)
def disagreements(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import scorers

    return scorers.disagreements(files["judged"], config)


@entry("CAS and human scores", "judging", "judged", "score_sheet", when=JUDGED)
def human(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.judging.sheets import read_scores
    from utaca.reporting import people

    sheet = next((read_scores(Path(path)) for path in files["score_sheet"]), None)
    return people.human(files["judged"], sheet, config)


@entry("Labels and their verification", "judging", *UNCORRECTED, "labels", "label_sheet")
def labels(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.judging.sheets import SPLITS, read_corrections
    from utaca.records.tables import read
    from utaca.reporting import people

    uncorrected = {split: read(files[name], "labels") for split, name in zip(SPLITS, UNCORRECTED, strict=True)}
    corrected = {split: read(path, "labels") for split, path in zip(SPLITS, files["labels"], strict=True)}
    sheet = next((read_corrections(Path(path)) for path in files["label_sheet"]), None)
    return people.labels(uncorrected, corrected, sheet, config)


@entry("Endpoints", "judging", *USAGE)
def endpoints(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import tables

    return tables.endpoints({role: files[f"{role}_usage"] for role in ("writer", "labeller", "judge")}, config)


# Time


@entry("Time, memory, tokens by stage", "resources", "documents", "trajectories", *VALIDATION, *TEST,
       "validation_traces", "test_traces", "replays", "detections", *USAGE)  # fmt: skip
def resources(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting import resources

    return resources.resources(folder.parent / "benchmarks", files, config)


# The paper itself


@entry("What the paper's figures imply", "paper")
def implied(files: Files, config: schema.Config, folder: Path) -> Table:
    from utaca.reporting.implied import implied

    return implied()
