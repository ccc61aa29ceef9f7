"""Digest the code that jobs run.

Rules have the digests among their params, so that an edit reruns what depends on it.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from utaca.reporting.registry import ENDINGS, ENTRIES
from utaca.runs.code_digest import code
from utaca.settings import schema
from workflow.plan import Plan


class Digests:
    """Digests the modules that scripts of ``workflow/scripts`` run; ``source`` is the folder that holds the package."""

    def __init__(self, plan: Plan, source: Path) -> None:
        self.plan = plan
        self.source = source
        settings = plan.settings
        self.loaded: dict[str, Callable[[Any], list[str]]] = {
            "decode_trajectories": lambda wildcards: _signals(settings.recorded),
            "task_trajectories": lambda wildcards: _signals(settings.recorded),
            "replay": lambda wildcards: self.decoded_by(plan.replayed),
            "time_answers": lambda wildcards: self.decoded_by(settings.timed),
            "task_answers": lambda wildcards: self.decoded_by(settings.decoded(wildcards.task)),
            **dict.fromkeys(ENDINGS, lambda wildcards: _modules(wildcards.entry)),
        }
        """By rule, a function that lists the modules which the rule's script loads by name, from a job's wildcards.

        No import shows these modules. They are only those that the config names for the job, so that a file that is
        added to a folder of methods, signals or tables changes no other job.
        """

    def of(self, rule: str, script: str = "") -> str | Callable[[Any], str]:
        """The digest of the modules that a rule's script runs; by default the script is called like the rule.

        If the modules differ between the rule's jobs, it is a function that computes it from a job's wildcards.
        """
        path = self._script(script or f"{rule}.py")
        if rule not in self.loaded:
            return code(path, self.source)
        return lambda wildcards: code(path, self.source, *self.loaded[rule](wildcards))

    def of_points(self, script: str, points: Iterable[schema.OperatingPoint]) -> dict[str, str]:
        """The digest of the modules that a script runs at each point, by the point's label."""
        path = self._script(script)
        return {point.label: code(path, self.source, *self.decoded_by([point])) for point in points}

    def decoded_by(self, points: Iterable[schema.OperatingPoint]) -> list[str]:
        """The modules of the points' methods, and of the signals that their detectors read."""
        points = list(points)
        methods = {name for point in points for name in (point.method, point.base) if name}
        # Every token's margin is recorded.
        signals = {"margin"}
        for variant, _, _ in self.plan.triggers(points).values():
            signals.update(self.plan.settings.detectors[variant].signals)
        return [*(f"utaca.methods.{name}" for name in sorted(methods)), *_signals(sorted(signals))]

    def _script(self, name: str) -> Path:
        """The path of a script of the workflow."""
        return self.plan.root / "workflow" / "scripts" / name


def _modules(entry: str) -> list[str]:
    """The modules that make a table or figure."""
    return [f"utaca.reporting.{module}" for module in ENTRIES[entry].modules]


def _signals(names: Iterable[str]) -> list[str]:
    """The modules of the signals of these names."""
    return [f"utaca.detection.signals.{name}" for name in names]
