"""Where a run's time goes: wall clock, processor, memory, tokens and requests by stage, as Snakemake measured its jobs.

A job's measurement is the benchmark file that Snakemake leaves when it ends well: of a job that was killed and went on
from its journal, it is the last part. These figures alone differ between two runs of one config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow.compute as pc

from utaca.records import read
from utaca.reporting.registry import Files
from utaca.reporting.table import framed
from utaca.settings import schema

TOTAL = "all"
_MEASURED = ["s", "cpu_time", "max_rss"]
"""Of a measurement: seconds, processor seconds, MiB."""
_LARGEST = ("longest_s", "peak_gib")
"""Columns of which a whole has the largest, not the sum."""
_USAGE = {"write_biographies": "writer_usage", "label": "labeller_usage", "score": "judge_usage"}
# In the order of the pipeline; others follow.
_STAGES = (
    "draw_biographies", "write_biographies", "corpus", "pad", "decode_trajectories", "label", "correct_labels",
    "train_detector", "detect", "generate", "label_traces", "score",
)  # fmt: skip


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


def answered(answers: Sequence[str | Path], traces: Sequence[str | Path]) -> tuple[int, int]:
    """Tokens read and generated for a split's points, passes included whose token was not accepted.

    Each document is read once for all points, and a point is decoded once. Token agreement runs a
    second pass of every token below K_max, whether it changes the token or not, and its witness one of every token of
    another budget, rolled back or not.
    """
    point = ["document", "method", "budget", "policy", "detector", "seed"]
    data = read(answers, "answers", [*point, "split", "point", "n_context", "n_generated", "rollbacks"]).to_pandas()
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
    return int(once), int(generated)


def resources(files: Files, config: schema.Config) -> pd.DataFrame:
    """Time, memory, tokens and requests by stage."""
    root = Path("results") / config.run / "benchmarks"
    parts = [pd.DataFrame(columns=["stage", "job", *_MEASURED])]
    for path in sorted(root.rglob("*.tsv")):
        stage = path.relative_to(root).parts[0].removesuffix(".tsv")
        # Short jobs end before their processes are looked at.
        figures = pd.read_csv(path, sep="\t")[_MEASURED].apply(pd.to_numeric, errors="coerce")
        parts.append(figures.assign(stage=stage, job=str(path)))
    jobs = pd.concat(parts).astype(dict.fromkeys(_MEASURED, float)).groupby("stage")
    frame = jobs.agg(
        n_jobs=("job", "nunique"),
        wall_s=("s", "sum"),
        longest_s=("s", "max"),
        cpu_s=("cpu_time", "sum"),
        peak_gib=("max_rss", "max"),
    )
    frame["peak_gib"] /= 2**10
    tokens = pd.DataFrame.from_dict(_tokens(files), orient="index", columns=["tokens_read", "tokens_generated"])
    requests = {rule: len(read(files[usage], "usage", ["answers"])) for rule, usage in _USAGE.items() if files[usage]}
    frame = frame.join(tokens, how="outer").join(pd.Series(requests, name="n_requests", dtype=float), how="outer")
    frame = frame.loc[sorted(frame.index, key=_order)]
    frame.loc[TOTAL] = frame.agg(lambda column: column.max() if column.name in _LARGEST else column.sum(min_count=1))
    frame["n_jobs"] = frame["n_jobs"].fillna(0).astype(int)
    return framed(frame.rename_axis("stage").reset_index())


def _tokens(files: Mapping[str, Sequence[str]]) -> dict[str, tuple[int, int]]:
    """Tokens read and generated by the stages that decode."""
    by_split: dict[str, list[str]] = {}
    for path in files["trajectories"]:
        by_split.setdefault(Path(path).parent.name, []).append(path)
    tokens = {"decode_trajectories": decoded(by_split, {Path(path).stem: path for path in files["documents"]})}
    counted = [
        answered(files[f"{split}_answers"], files[f"{split}_traces"])
        for split in ("validation", "test")
        if files[f"{split}_answers"]
    ]
    if counted:
        tokens["generate"] = sum(one[0] for one in counted), sum(one[1] for one in counted)
    return tokens


def _order(stage: str) -> tuple[int, str]:
    return (_STAGES.index(stage) if stage in _STAGES else len(_STAGES)), stage
