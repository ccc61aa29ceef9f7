"""Plan the tables, figures and pages of a run: which there are, and what each is made from and depends on."""

from dataclasses import asdict
from functools import cached_property
from typing import Any

from utaca.errors import UserError
from utaca.reporting.registry import ENDINGS, ENTRIES, THEMES, WHEN, TableEntry
from utaca.runs.compose import groups, points_of
from utaca.settings.checks import ROLES, SPLITS
from workflow.plan import SHEETS, Plan, there

SHOWN = {"table": "csv", "figure": "svg"}
"""Which file of a table or figure Snakemake's own report (``snakemake --report``) holds."""
OF_RUN = "Run"
"""Category of that report for what the run is, besides its tables and figures."""


class Reporting:
    """The tables, figures and pages of a run: their paths, the files that they are made from, and their settings."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tables: dict[str, TableEntry] = {
            name: entry for name, entry in ENTRIES.items() if entry.holds(plan.settings)
        }
        """The tables and figures that the config makes, by name."""

    @cached_property
    def results(self) -> list[str]:
        """Every file of the tables and figures."""
        paths = []
        for name, entry in self.tables.items():
            for ending in ENDINGS[entry.kind]:
                paths.append(f"{self.plan.out}/{entry.kind}s/{name}.{ending}")
        return paths

    @cached_property
    def views(self) -> dict[str, str]:
        """The page that shows answers token by token, by split; only splits with points in block memory have one."""
        splits = [split for split in ("test", "validation") if (split, "blocks") in self.plan.points]
        return {split: f"{self.plan.out}/traces/{split}.html" for split in splits}

    @cached_property
    def links(self) -> dict[str, str]:
        """The paths of all pages that the report links, by their titles."""
        pages = {f"Answers of the {split} split, token by token": path for split, path in self.views.items()}
        pages["Labels, to review"] = f"{self.plan.labels}/review.html"
        if self.plan.judged("test"):
            pages["Answers, to score"] = f"{self.plan.scores}/review.html"
        return pages

    def option(self, name: str) -> str:
        """The command-line options to add so that a run makes a table; "" if no group of points has what it needs."""
        known = groups(self.plan.root)["points"]
        return WHEN[ENTRIES[name].when].option(points_of(self.plan.settings.reader.name, self.plan.root), known)

    @cached_property
    def left_out(self) -> dict[str, str]:
        """How to make each table that the run does not make, in Markdown, by the table's title."""
        sentences = {}
        for name, entry in ENTRIES.items():
            if name in self.tables or entry.kind != "table":
                continue
            option = self.option(name)
            target = f"{self.plan.out}/tables/{name}.md --configfile {self.plan.out}/run.yaml"
            how = f"`snakemake --cores all {target} --config {option}`" if option else "name them under `decode`"
            sentences[entry.title] = f"it needs {WHEN[entry.when].needs}: {how}."
        return sentences

    def shown(self, name: str) -> dict[str, Any]:
        """What a table or figure depends on in addition to files and code: its entry and a part of the config."""
        plan = self.plan
        entry = ENTRIES[name]
        theme = entry.theme
        keys_of_themes = {
            "detection": ("labeller", "detectors", "detector"),
            "data": ("writer", "detectors", "detector"),
            "judging": ROLES,
            "resources": (),
        }
        keys = keys_of_themes.get(theme, ("judge", "detector", "points", "decode", "plan"))
        shows_points = {"test_answers", "judged", "trace_labels"} & {*entry.files}
        if theme in ("detection", "judging") and shows_points:
            # They decide which points the table shows, and what these are called.
            keys = (*keys, "detector", "points", "decode")
        settings = {key: plan.identity[key] for key in keys}
        if theme == "judging":
            # Prices are transport keys, which the identity lacks; the table of endpoints shows costs.
            endpoints = [getattr(plan.settings, role) for role in ROLES]
            settings["prices"] = [[endpoint.prompt_price, endpoint.completion_price] for endpoint in endpoints]
        if entry.when == "bars":
            settings["bars"] = [asdict(bar) for bar in plan.settings.reader.bars]
        return plan.caption | settings | {"entry": asdict(entry)}

    def theme(self, wildcards: Any) -> str:
        """Category of a table or figure in Snakemake's own report: the title of its theme."""
        return THEMES[ENTRIES[wildcards.entry].theme]

    def labels(self, wildcards: Any) -> dict[str, str]:
        """How Snakemake's own report lists a table or figure."""
        entry = ENTRIES[wildcards.entry]
        return {"shows": entry.title, "as": f"{entry.kind}, {SHOWN[entry.kind].upper()}"}

    def groups(self) -> dict[str, list[str]]:
        """All files that tables may be made from, by the names that ``files`` of a table's declaration may have."""
        plan = self.plan
        splits = [split for split in ("validation", "test") if (split, "blocks") in plan.points]
        trace_labels = [path for split in splits for path in plan.labelled(split)]
        uncorrected = [path for split in SPLITS for path in plan.shards(plan.uncorrected, split)]
        # Several variants may learn from one set.
        task_labels: dict[str, None] = {}
        for variant in plan.settings.detectors:
            task_labels.update(dict.fromkeys(plan.lessons(variant)["task_labels"]))
        detectors = [path for paths in plan.detectors.values() for path in paths]
        replay_scores = [plan.replay_scores] if plan.replayed else []
        curve = "sweep" if "sweep" in self.tables else "test"
        return {
            **{f"{split}_answers": plan.generations("answers", split, "blocks") for split in splits},
            **{f"{split}_traces": plan.generations("traces", split, "blocks") for split in splits},
            **{f"{split}_scores": plan.judged(split, kinds=["blocks"]) for split in splits},
            **{f"{split}_uncorrected": plan.shards(plan.uncorrected, split) for split in SPLITS},
            "replays": [plan.replays] if plan.replayed else [],
            "replay_scores": replay_scores,
            "timed_answers": [plan.timed_answers] if plan.settings.timed else [],
            "trace_labels": plan.labelled("test") if ("test", "blocks") in plan.points else [],
            "verdict_table": [f"{plan.out}/tables/verdict.csv"],
            "cost_table": [f"{plan.out}/tables/tradeoff.csv"],
            "curve_table": [f"{plan.out}/tables/{curve}.csv"],
            "method_answers": plan.generations("answers", "test", "methods"),
            "method_scores": plan.judged("test", kinds=["methods"]),
            "judged": plan.judged("test"),
            "detections": [f"{plan.out}/detections/test.parquet"],
            "detectors": detectors,
            # In the order in which the file of detections names its sources.
            "detected_from": [
                *plan.shards(plan.trajectories, "test"),
                f"{plan.labels}/test.parquet",
                *detectors,
                *plan.shards(plan.trajectories, "validation"),
                f"{plan.labels}/validation.parquet",
            ],
            "task_examples": plan.task_outputs("examples"),
            "task_answers": plan.task_outputs("answers"),
            "task_scores": plan.task_outputs("scores"),
            "biographies": [f"{plan.out}/biographies/{split}.parquet" for split in SPLITS],
            "documents": [f"{plan.out}/documents/{split}.parquet" for split in SPLITS],
            "corpus": [f"{plan.out}/corpus.parquet"],
            "main_detectors": plan.detectors[plan.settings.detector],
            "test_documents": [f"{plan.out}/documents/test.parquet"],
            "tokenizer": plan.tokenizer_files,
            "trajectories": [path for split in SPLITS for path in plan.shards(plan.trajectories, split)],
            "labels": [f"{plan.labels}/{split}.parquet" for split in SPLITS],
            "label_sheet": there(SHEETS["labels"]),
            "score_sheet": there(SHEETS["scores"]),
            "writer_usage": [plan.usage(f"{plan.out}/biographies/test.parquet")],
            "labeller_usage": [plan.usage(path) for path in (*uncorrected, *trace_labels, *task_labels)],
            "judge_usage": [plan.usage(path) for path in (*plan.judged(*splits), *replay_scores)],
        }

    def made_from(self, table: str) -> dict[str, list[str]]:
        """The files that a table is made from, by the names in its declaration; an empty list if the run has none."""
        groups = self.groups()
        return {name: groups.get(name, []) for name in ENTRIES[table].files}

    def check_tables(self) -> None:
        """Raise :class:`UserError` if a table is declared with a name of files that no config knows."""
        # A run without points on a split does not have that split's names among its groups.
        splits = {f"{split}_{what}" for split in ("validation", "test") for what in ("answers", "traces", "scores")}
        names = splits | self.groups().keys()
        for table, entry in self.tables.items():
            if unknown := {*entry.files} - names:
                known = ", ".join(sorted(names))
                raise UserError(
                    f"table {table} needs the files {min(unknown)}, which do not exist; choose from {known}"
                )
