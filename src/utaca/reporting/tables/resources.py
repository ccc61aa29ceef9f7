"""The table of resources: wall clock, processor, memory, tokens and requests by stage, as Snakemake measured its jobs.

Snakemake writes a benchmark file when a job ends well; if a job was killed and resumed from its journal, the file
covers only the part after the last resumption. Of all figures, only these differ between two runs of one config.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from utaca.biographies.evidence import original
from utaca.records import read
from utaca.reporting.registry import Files
from utaca.reporting.table import framed
from utaca.settings import schema
from utaca.settings.triggers import TriggerSetting, parse
from utaca.stages import STAGES

_MEASURED = ["s", "cpu_time", "max_rss"]
"""Columns of a benchmark file: seconds, processor seconds, MiB."""
_LARGEST = ("longest_s", "peak_gib")
"""Columns whose total is the largest value, not the sum."""
_USAGE = {"write_biographies": "writer_usage", "label": "labeller_usage", "score": "judge_usage"}
# In the order of the pipeline; other rules follow by name.
_RULES = [rule for stage in STAGES for rule in stage.rules]


def decoded(trajectories: Sequence[str], documents: Mapping[str, str]) -> tuple[int, int]:
    """Numbers of tokens read and generated for trajectories; ``documents`` maps a split to its file of documents.

    A document is read once for all its budgets, under each condition of its evidence; it counts at its whole length. A
    token that was also decoded under the expanded budget counts twice.
    """
    tokens = generated = 0
    for path in trajectories:
        steps = read(path, "trajectories", ["document", "expanded_token"])
        lengths = read(documents[Path(path).parent.name], "documents", ["id", "n_tokens"]).to_pandas().set_index("id")
        tokens += sum(lengths["n_tokens"][original(name)] for name in steps["document"].unique().to_pylist())
        generated += 2 * len(steps) - steps["expanded_token"].null_count
    return tokens, generated


def answered(answers: Sequence[str | Path], traces: Sequence[str | Path]) -> tuple[int, int]:
    """Numbers of tokens read and generated for a split's operating points, including rejected passes.

    A document is read once for all points, and a point is decoded once. The agreement oracle decodes every token below
    K_max a second time, even if the token does not change. If the second pass has a budget of its own
    (``agreement.N``), a token of that budget has no second pass and a rolled-back token has a third one.
    """
    columns = ["document", "point", "budget", "trigger", "n_context", "n_generated", "rollbacks"]
    data = read(answers, "answers", columns).to_pandas()
    tokens = data.drop_duplicates("document")["n_context"].sum()
    generated = data["n_generated"].sum() + data["rollbacks"].sum()
    triggers = data["trigger"].map(lambda text: parse(text) if text else TriggerSetting())
    compared = data[triggers.map(lambda trigger: trigger.kind == "agreement")]
    if len(compared):
        steps = read(traces, "traces", ["document", "point", "step", "k", "rolled_back"]).to_pandas()
        second = triggers[compared.index].map(lambda trigger: trigger.value or 0)
        steps = steps.merge(compared.assign(second=second), on=["document", "point"])
        generated += ((steps["k"] < steps["budget"]) & (steps["k"] != steps["second"]) & ~steps["rolled_back"]).sum()
        generated += (steps["rolled_back"] & (steps["second"] > 0)).sum()
    return int(tokens), int(generated)


def resources(files: Files, config: schema.Config) -> pd.DataFrame:
    """Time, memory, tokens and requests by stage."""
    root = Path("results") / config.run / "benchmarks"
    parts = [pd.DataFrame(columns=["stage", "job", *_MEASURED])]
    # The file of a job that ends just now, or that was killed, may be empty.
    written = [path for path in root.rglob("*.tsv") if path.stat().st_size]
    for path in sorted(written):
        stage = path.relative_to(root).parts[0].removesuffix(".tsv")
        # Short jobs end before Snakemake measures their processes.
        figures = pd.read_csv(path, sep="\t").reindex(columns=_MEASURED).apply(pd.to_numeric, errors="coerce")
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
    documents = {Path(path).stem: path for path in files["documents"]}
    tokens = {"decode_trajectories": decoded(files["trajectories"], documents)}
    splits = [split for split in ("validation", "test") if files[f"{split}_answers"]]
    if splits:
        n_read = 0
        n_generated = 0
        for split in splits:
            read_here, generated_here = answered(files[f"{split}_answers"], files[f"{split}_traces"])
            n_read += read_here
            n_generated += generated_here
        tokens["generate"] = n_read, n_generated
    counts = pd.DataFrame.from_dict(tokens, orient="index", columns=["tokens_read", "tokens_generated"])
    requests = {}
    for rule, usage in _USAGE.items():
        if files[usage]:
            requests[rule] = len(read(files[usage], "usage", ["answers"]))
    frame = frame.join(counts, how="outer").join(pd.Series(requests, name="n_requests", dtype=float), how="outer")
    known = [rule for rule in _RULES if rule in frame.index]
    others = sorted(set(frame.index) - set(_RULES))
    frame = frame.loc[[*known, *others]]
    frame.loc["all"] = frame.agg(_total)
    frame["n_jobs"] = frame["n_jobs"].fillna(0).astype(int)
    return framed(frame.rename_axis("stage").reset_index())


def _total(column: pd.Series) -> float:
    """The total of a column over all stages: the sum, or the largest value where a sum means nothing."""
    return column.max() if column.name in _LARGEST else column.sum(min_count=1)
