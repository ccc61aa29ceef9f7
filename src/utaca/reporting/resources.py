"""Where a run's time goes: wall clock, processor, memory, tokens and requests by stage, as Snakemake measured its jobs.

A job's measurement is the benchmark file that Snakemake leaves when it ends well: of a job that was killed and went on
from its journal, it is the last part. These figures alone differ between two runs of one config.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from utaca.records import read
from utaca.reporting.tables import NAN, Table, build_table
from utaca.settings import schema

TOTAL = "all"
_USAGE = {"write_biographies": "writer_usage", "label": "labeller_usage", "score": "judge_usage"}
# In the order of the pipeline; others follow.
_STAGES = (
    "draw_biographies", "write_biographies", "corpus", "pad", "decode_trajectories", "label", "correct_labels",
    "train_detector", "fit_baselines", "detect", "generate", "label_traces", "score", "score_replays",
)  # fmt: skip


@dataclass
class Stage:
    """What the jobs of a stage took: seconds, bytes of the largest, tokens, requests."""

    jobs: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    peak: float = NAN
    requests: int | None = None
    tokens: tuple[int, int] | None = None
    longest: float = 0.0

    def add(self, benchmark: Path) -> None:
        """Count a job in by its benchmark file."""
        self.jobs += 1
        with benchmark.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                seconds = _number(row["s"])
                self.wall += seconds
                self.longest = max(self.longest, seconds)
                # Short jobs end before their processes are looked at.
                cpu, peak = _number(row["cpu_time"]), _number(row["max_rss"]) * 2**20
                self.cpu += 0 if cpu != cpu else cpu
                self.peak = peak if self.peak != self.peak else max(self.peak, peak if peak == peak else 0)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return NAN


def decoded(trajectories: Mapping[str, Sequence[str]], documents: Mapping[str, str]) -> tuple[int, int]:
    """Tokens read and generated for the trajectories, by split; those tried under an expanded budget too count twice.

    Each document is read once for all its budgets.
    """
    read_, generated = 0, 0
    for split, paths in trajectories.items():
        read_ += pc.sum(read(documents[split], "documents", ["n_tokens"])["n_tokens"]).as_py() or 0
        for path in paths:
            tried = read(path, "trajectories", ["expanded_token"])["expanded_token"]
            generated += 2 * len(tried) - tried.null_count
    return read_, generated


def answered(
    answers: Sequence[str | Path], traces: Sequence[str | Path], replays: Sequence[str | Path] = ()
) -> tuple[int, int]:
    """Tokens read and generated for a split's suites and replays, passes included whose token was not accepted.

    Each document is read once for all points, and a point that suites share is decoded once. Token agreement runs a
    second pass of every token below K_max, whether it changes the token or not, and its witness one of every token of
    another budget, rolled back or not.
    """
    point = ["document", "method", "budget", "policy", "detector", "seed"]
    data = read(answers, "answers", [*point, "suite", "point", "n_context", "n_generated", "rollbacks"]).to_pandas()
    data = data.drop_duplicates(point)
    once = data.drop_duplicates("document")["n_context"].sum()
    generated = data["n_generated"].sum() + data["rollbacks"].sum()
    compared = data[data["method"].str.startswith("agreement")].drop_duplicates(["document", "point"])
    if len(compared):
        tried = read(traces, "traces", ["document", "point", "step", "k", "rolled_back"]).to_pandas()
        tried = tried.drop_duplicates(["document", "point", "step"]).merge(compared, on=["document", "point"])
        witness = tried["detector"].str.extract(r"witness (\d+)", expand=False).fillna("0").astype(int)
        generated += ((tried["k"] < tried["budget"]) & (tried["k"] != witness) & ~tried["rolled_back"]).sum()
        generated += (tried["rolled_back"] & (witness > 0)).sum()
    if replays:
        turned = read(replays, "replays", ["n_generated", "rollbacks"])
        generated += sum(pc.sum(turned[name]).as_py() or 0 for name in turned.column_names)
    return int(once), int(generated)


def resources(measured: str | Path, files: Mapping[str, Sequence[str]], config: schema.Config) -> Table:
    """What each stage took.

    ``measured`` is the folder of Snakemake's measurements, a folder or file a rule; ``files`` are documents,
    trajectories, answers, traces, replays and usage, as :attr:`utaca.plan.Plan.named` has them.
    """
    root = Path(measured)
    stages: dict[str, Stage] = {}
    for path in sorted(root.rglob("*.tsv")):
        stages.setdefault(path.relative_to(root).parts[0].removesuffix(".tsv"), Stage()).add(path)
    for rule, counted in _tokens(files).items():
        stages.setdefault(rule, Stage()).tokens = counted
    for rule, usage in _USAGE.items():
        if files[usage]:
            stages.setdefault(rule, Stage()).requests = len(read(files[usage], "usage", ["answers"]))
    rows = [_row(name, stages[name]) for name in sorted(stages, key=_order)]
    rows.append(_row(TOTAL, _total(list(stages.values()))))
    return build_table("resources", rows, config)


def _tokens(files: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, int]]:
    """Tokens read and generated by the stages that decode."""
    by_split: dict[str, list[str]] = {}
    for path in files["trajectories"]:
        by_split.setdefault(Path(path).parent.name, []).append(path)
    found = {"decode_trajectories": decoded(by_split, {Path(path).stem: path for path in files["documents"]})}
    replays = {"test": files["replays"]}
    counted = [
        answered(files[f"{split}_answers"], files[f"{split}_traces"], replays.get(split, ()))
        for split in ("validation", "test")
        if files[f"{split}_answers"]
    ]
    if counted:
        found["generate"] = sum(one[0] for one in counted), sum(one[1] for one in counted)
    return found


def _order(stage: str) -> tuple[int, str]:
    return (_STAGES.index(stage) if stage in _STAGES else len(_STAGES)), stage


def _total(stages: Sequence[Stage]) -> Stage:
    def known(values: Sequence[int | None]) -> int | None:
        given = [value for value in values if value is not None]
        return sum(given) if given else None

    tokens = [stage.tokens for stage in stages if stage.tokens]
    return Stage(
        jobs=sum(stage.jobs for stage in stages),
        wall=sum(stage.wall for stage in stages),
        cpu=sum(stage.cpu for stage in stages),
        peak=max((stage.peak for stage in stages if stage.peak == stage.peak), default=NAN),
        requests=known([stage.requests for stage in stages]),
        tokens=(sum(t[0] for t in tokens), sum(t[1] for t in tokens)) if tokens else None,
        longest=max((stage.longest for stage in stages), default=0.0),
    )


def _row(name: str, stage: Stage) -> dict[str, Any]:
    known = stage.jobs > 0
    return {
        "stage": name,
        "n_jobs": stage.jobs,
        "wall_s": stage.wall if known else NAN,
        "longest_s": stage.longest if known else NAN,
        "cpu_s": stage.cpu if known else NAN,
        "peak_gib": stage.peak / 2**30,
        "tokens_read": stage.tokens[0] if stage.tokens else NAN,
        "tokens_generated": stage.tokens[1] if stage.tokens else NAN,
        "n_requests": NAN if stage.requests is None else stage.requests,
    }


MAKERS = {
    "resources": lambda files, config: resources(Path("results") / config.run / "benchmarks", files, config),
}
