"""Configs and operating points for tests, and a run as the workflow plans it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from utaca.runs.compose import compose
from utaca.settings import schema
from utaca.settings.checks import SPLITS

if TYPE_CHECKING:
    from workflow.plan import Plan
    from workflow.reporting import Reporting


def reference_config(scale: Mapping[str, Any] | None = None, **other: Any) -> schema.Config:
    """The smallest config of a run for which tables are made, the reference endpoint in every role; keys of ``scale``
    and ``other`` ones on top."""
    endpoint = {"name": "reference", "kind": "reference", "model": "utaca-reference"}
    size = {"biographies": 3, "tokens": [10, 20], "budgets": [1, 2]}
    sizes = {"name": "smoke", "train": size, "validation": size, "test": size, "detector_steps": 1, "bootstrap": 200}
    about: dict[str, Any] = {
        "scale": sizes | (scale or {}),
        "reader": {"name": "tiny", "path": "data/readers/tiny"},
        "corpus": {"name": "embedded", "source": "embedded"},
        **dict.fromkeys(("writer", "labeller", "judge"), endpoint),
    }
    return schema.Config(**about | other)


def point(
    method: str,
    budget: int | str = 0,
    policy: str = "",
    trigger: str = "",
    base: str = "",
    seeds: int = 1,
    **about: Any,
) -> schema.OperatingPoint:
    """An operating point as it is decoded, named after its settings unless ``about`` says otherwise, as those of
    ``config`` are: ``infllm-K8``, ``utaca-K64-sub16-two_way``, ``agreement-K8-sub2``, ``no_detector-K8-sub2-every40``,
    ``snapkv-512``. In a name a share of 5% is ``K5pct``.
    """
    settings = schema.PointSettings(method, budget, policy, trigger, base, seeds)
    blocks = f"K{budget}".replace("%", "pct") if settings.in_blocks else str(budget or "")
    trigger_name = settings.detector
    if settings.adaptive and not settings.detected and settings.trigger.value is not None:
        kind = settings.trigger.kind.replace("agreement", "witness")
        trigger_name = f"{kind}{settings.trigger.value}"
    name = "-".join(filter(None, [settings.family, settings.base, blocks, policy.replace(".", ""), trigger_name]))
    return schema.OperatingPoint(**vars(settings), **{"name": name, "seed": 0} | about)


def decoding(**sections: Sequence[schema.OperatingPoint]) -> dict[str, Any]:
    """The keys of a config that decodes these points, by section."""
    keys = [key.name for key in fields(schema.PointSettings)]
    every = [point for points in sections.values() for point in points]
    return {
        "points": {point.name: schema.PointSettings(**{key: getattr(point, key) for key in keys}) for point in every},
        "decode": {name: list(dict.fromkeys(x.name for x in points)) for name, points in sections.items()},
    }


def planned(root: Path, **overrides: Any) -> Plan:
    """A run under a config, as the Snakefile plans it.

    Skips the test where Hydra is not installed, which composes the config.
    """
    pytest.importorskip("hydra", reason="the extra pipeline is not installed")
    from workflow.plan import Plan

    return Plan(compose(overrides, root), root)


def run_files(reporting: Reporting) -> set[str]:
    """Every file of a run as planned, those that its tables are made from among them."""
    plan = reporting.plan
    files = {f"{plan.out}/{stage}/{split}.parquet" for stage in ("biographies", "documents") for split in SPLITS}
    files |= {f"{plan.out}/corpus.parquet", plan.report}
    files |= {*reporting.results, *reporting.links.values()}
    files |= {*plan.judged("validation", "test"), *plan.task_outputs("scores")}
    files |= {path for split in SPLITS for path in plan.shards(plan.trajectories, split)}
    files |= {path for paths in plan.detectors.values() for path in paths}
    files |= {path for split, kind in plan.points if kind == "blocks" for path in plan.labelled(split)}
    files |= {path for split, kind in plan.points for path in plan.generations("answers", split, kind)}
    return files | {path for name in reporting.tables for paths in reporting.made_from(name).values() for path in paths}
