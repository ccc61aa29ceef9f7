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
from utaca.stages import STAGES

_MEASURED = ["s", "cpu_time", "max_rss"]
"""Columns of a benchmark file: seconds, processor seconds, MiB."""
_LARGEST = ("longest_s", "peak_gib")
"""Columns whose total is the largest value, not the sum."""
_USAGE = {"write_biographies": "writer_usage", "label": "labeller_usage", "score": "judge_usage"}
"""The rules that ask an endpoint, and the name of the files that say what each asked."""
_RULES = [rule for stage in STAGES for rule in stage.rules]
"""Rules in the order of the pipeline; other rules follow them in the table, by name."""


def decoded(trajectories: Sequence[str], documents: Mapping[str, str]) -> tuple[int, int]:
    """Count the tokens that were read, and the tokens that were generated, for files of trajectories.

    ``documents`` has the file of documents of each split; a file of trajectories lies in a folder named like its split.
    A document is read once for all its budgets, under each condition of its evidence; it counts at its whole length. A
    token that was also decoded under the expanded budget counts twice.
    """
    n_read = 0
    n_generated = 0
    for path in trajectories:
        steps = read(path, "trajectories", ["document", "expanded_token"])
        lengths = read(documents[Path(path).parent.name], "documents", ["id", "n_tokens"]).to_pandas().set_index("id")
        n_read += sum(lengths["n_tokens"][original(name)] for name in steps["document"].unique().to_pylist())
        n_expanded = len(steps) - steps["expanded_token"].null_count
        n_generated += len(steps) + n_expanded
    return n_read, n_generated


def answered(answers: Sequence[str | Path], traces: Sequence[str | Path]) -> tuple[int, int]:
    """Count the tokens that were read and those that were generated for a split's points.

    A document is read once for all points, and a point is decoded once. Each row of a pass generates a token, whether
    the answer has it or not: rows that were rolled back, second passes and guesses count too.
    """
    data = read(answers, "answers", ["document", "n_context"]).to_pandas()
    n_read = data.drop_duplicates("document")["n_context"].sum()
    n_generated = read(traces, "traces", ["rows"]).to_pandas()["rows"].sum()
    return int(n_read), int(n_generated)


def resources(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of time, memory, tokens and requests by stage (rule of the workflow), with a row of totals."""
    frame = _measured(Path("results") / config.run / "benchmarks")
    counts = pd.DataFrame.from_dict(_tokens(files), orient="index", columns=["tokens_read", "tokens_generated"])
    requests = {}
    for rule, usage in _USAGE.items():
        if files[usage]:
            requests[rule] = len(read(files[usage], "usage", ["answers"]))
    # A rule may have files of one kind only, such as tokens without benchmark files; it has a row all the same.
    frame = frame.join(counts, how="outer").join(pd.Series(requests, name="n_requests", dtype=float), how="outer")
    known = [rule for rule in _RULES if rule in frame.index]
    others = sorted(set(frame.index) - set(_RULES))
    frame = frame.loc[[*known, *others]]
    frame.loc["all"] = frame.agg(_total)
    frame["n_jobs"] = frame["n_jobs"].fillna(0).astype(int)
    return framed(frame.rename_axis("stage").reset_index())


def _measured(folder: Path) -> pd.DataFrame:
    """What Snakemake measured of a run's jobs: a row for each rule, from the benchmark files in ``folder``."""
    parts = [pd.DataFrame(columns=["stage", "job", *_MEASURED])]
    # A benchmark file is empty while its job is just ending, or if the job was killed.
    written = [path for path in folder.rglob("*.tsv") if path.stat().st_size]
    for path in sorted(written):
        # The rule's name: a rule has a folder with a file for each job, or the file RULE.tsv for its only job.
        stage = path.relative_to(folder).parts[0].removesuffix(".tsv")
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
    frame["peak_gib"] /= 2**10  # from MiB
    return frame


def _tokens(files: Files) -> dict[str, tuple[int, int]]:
    """The numbers of tokens read and generated by the rules that decode, by name of the rule."""
    documents = {Path(path).stem: path for path in files["documents"]}
    tokens = {"decode_trajectories": decoded(files["trajectories"], documents)}
    splits = [split for split in ("validation", "test") if files[f"{split}_answers"]]
    if splits:
        by_split = [answered(files[f"{split}_answers"], files[f"{split}_traces"]) for split in splits]
        tokens["generate"] = sum(n_read for n_read, _ in by_split), sum(n_generated for _, n_generated in by_split)
    return tokens


def _total(column: pd.Series) -> float:
    """The total of a column over all stages: the sum, or for columns of :data:`_LARGEST` the largest value.

    The sum of a column without any figure is NaN, and not 0.
    """
    return column.max() if column.name in _LARGEST else column.sum(min_count=1)
