"""Check the targets of a command: stages, files and tables; any other target is refused."""

import atexit
import difflib
import os
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from utaca.errors import UserError
from utaca.reporting.registry import ENTRIES, WHEN
from utaca.settings.checks import SHARED_FOLDERS, SPLITS
from workflow.reporting import Reporting


class Targets:
    """The targets that a command may name for a run."""

    def __init__(self, reporting: Reporting) -> None:
        self.reporting = reporting
        self.plan = plan = reporting.plan
        trajectories = [path for split in SPLITS for path in plan.shards(plan.trajectories, split)]
        answers = [path for split, kind in plan.points for path in plan.generations("answers", split, kind)]
        self.stages: dict[str, list[str]] = {
            "biographies": [f"{plan.out}/biographies/{split}.parquet" for split in SPLITS],
            "documents": [f"{plan.out}/documents/{split}.parquet" for split in SPLITS],
            "trajectories": trajectories,
            "labels": [f"{plan.labels}/{split}.parquet" for split in SPLITS],
            "detectors": [path for paths in plan.detectors.values() for path in paths],
            "detections": [f"{plan.out}/detections/test.parquet"],
            "generations": answers,
            "scores": plan.judged("validation", "test"),
            "traces": list(reporting.views.values()),
            "tasks": plan.task_outputs("scores"),
            "results/tables": [plan.report],
            "results/tables/": [plan.report],
        }
        """The files that each name of a stage, or ``results/tables``, stands for."""

    def check_names(self, targets: Iterable[str], rules: Collection[str]) -> None:
        """Raise :class:`UserError` if a target is neither a file nor one of the ``rules``; it lists the stages."""
        for target in targets:
            is_file = re.search(r"[/.]", target)
            if target not in rules and not is_file:
                stages = {name for name in self.stages if "/" not in name}
                known = sorted(stages | {"corpus", "readers", "tables"})
                near = difflib.get_close_matches(target, known, n=1)
                targets_here = f"targets are {', '.join(known)}, and files in {self.plan.out}."
                hint = f"did you mean {near[0]}?" if near else targets_here
                raise UserError(f"there is no target {target}; {hint}")

    def check(self, targets: Iterable[str]) -> None:
        """Raise :class:`UserError` if a target is a table that the config does not make, or is of another run."""
        for target in targets:
            self._check_table(target)
            self._check_run(target)

    def _check_table(self, target: str) -> None:
        """Raise :class:`UserError` if a target is a table or figure of the run that the config does not make."""
        match = re.match(rf"{re.escape(self.plan.out)}/(?:tables|figures)/([^/.]+)\.\w+", target)
        if not match:
            return
        name = match[1]
        if name not in ENTRIES:
            near = difflib.get_close_matches(name, ENTRIES, n=1)
            hint = f"did you mean {near[0]}?" if near else f"tables are {', '.join(sorted(ENTRIES))}."
            raise UserError(f"{target} is not a table of this project; {hint}")
        if name not in self.reporting.tables:
            when = WHEN[ENTRIES[name].when]
            option = self.reporting.option(name)
            command = f"snakemake --cores all {target} --config {option}"
            raise UserError(f"{target} needs {when.needs}: {command if option else 'name them under decode'}")

    def _check_run(self, target: str) -> None:
        """Raise :class:`UserError` if a target is a file of another run, by its path."""
        match = re.match(r"results/(?:tables/([^/{]+)\.html|([^/{]+)/)", target)
        if not match:
            return
        run = match[1] or match[2]
        own_run = self.plan.settings.run
        if run not in (own_run, *SHARED_FOLDERS):
            saved = f"results/{run}/run.yaml"
            add = f"add --configfile {saved}" if Path(saved).is_file() else "correct one of them (--config run=NAME)"
            raise UserError(f"{target} belongs to run {run}, but the config is that of run {own_run}; {add}")

    def say_where(self, targets: Sequence[str], of_run: str = "") -> None:
        """Have the command end with a line on where its files are: ``of_run``, or :meth:`where` the targets are."""
        if line := of_run or self.where(targets):
            atexit.register(print, line, file=sys.stderr, flush=True)

    def where(self, targets: Sequence[str]) -> str:
        """A sentence on where the files of the targets are; "" if none of them exists."""
        files: list[str] = []
        for target in targets:
            files += [path for path in self.stages.get(target, [target]) if os.path.isfile(path)]
        if not files:
            return ""
        more = f" and {len(files) - 1} more in {os.path.commonpath(files)}" if len(files) > 1 else ""
        return f"Done: {files[0]}{more}."
