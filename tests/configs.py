"""Configs and operating points for tests, and a run as the workflow plans it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from utaca.errors import UserError
from utaca.runs.code_digest import code
from utaca.runs.compose import compose
from utaca.settings import schema


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
    method: str, budget: int = 0, policy: str = "", trigger: str = "", base: str = "", seeds: int = 1, **about: Any
) -> schema.OperatingPoint:
    """An operating point as it is decoded, named after its settings unless ``about`` says otherwise, as those of
    ``config`` are: ``infllm-K8``, ``utaca-K64-sub16-two_way``, ``agreement-K8-sub2``, ``no_detector-K8-sub2-every40``,
    ``snapkv-512``.
    """
    settings = schema.PointSettings(method, budget, policy, trigger, base, seeds)
    blocks = f"K{budget}" if settings.in_blocks else str(budget or "")
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


def planned(root: Path, *, here: bool = True, **overrides: Any) -> Any:
    """The names of ``workflow/rules/common.smk`` under a config, as the Snakefile includes it.

    Its jobs run ``here`` or on a cluster's machines. Skips the test where Snakemake is not installed.
    """
    expand = pytest.importorskip("snakemake.io", reason="the extra pipeline is not installed").expand
    names = {"config": compose(overrides, root), "ROOT": root, "SOURCE": root / "src", "HERE": here}
    names |= {"Path": Path, "os": os, "UserError": UserError, "code": code, "expand": expand}
    plan = SimpleNamespace(**names)
    path = root / "workflow" / "rules" / "common.smk"
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), vars(plan))
    return plan


def run_files(plan: Any) -> set[str]:
    """Every file of a run as planned, those that its tables are made from among them."""
    each = ("biographies", "documents")
    files = {f"{plan.OUT}/{stage}/{split}.parquet" for stage in each for split in plan.SPLITS}
    files |= {f"{plan.OUT}/corpus.parquet", plan.REPORT}
    files |= {*plan.RESULTS, *plan.LINKS.values(), *plan.judged("validation", "test"), *plan.task_outputs("scores")}
    files |= {path for split in plan.SPLITS for path in plan.shards(plan.TRAJECTORIES, split)}
    files |= {path for paths in plan.DETECTORS.values() for path in paths}
    files |= {path for split, kind in plan.POINTS if kind == "blocks" for path in plan.labelled(split)}
    files |= {path for split, kind in plan.POINTS for path in plan.generations("answers", split, kind)}
    return files | {path for name in plan.TABLES for paths in plan.made_from(name).values() for path in paths}
