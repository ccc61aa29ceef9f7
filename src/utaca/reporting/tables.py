"""The tables of results, each as CSV (all figures, unrounded), Markdown and LaTeX, beside the paper's figures.

In the CSV files ``*_pct`` are percentages, ``*_low`` and ``*_high`` the limits of the 95 % interval, ``*_sd`` the
standard deviation over detector seeds, ``paper_*`` the paper's figures; tokens, seconds and GiB as named.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from utaca.errors import UserError
from utaca.records import atomic_path, read
from utaca.reporting import paper, render, statistics
from utaca.reporting.statistics import Estimate
from utaca.settings import schema

METHODS = {"infllm": "InfLLM", "utaca": "UT-ACA"}
NOT_RUN = "not run"
NAN = float("nan")

Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """A column for people: its header and how a row of the frame is shown in it."""

    header: str
    show: Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True)
class Table:
    """A table: ``frame`` holds the figures, ``columns`` what people are shown of them."""

    name: str
    title: str
    caption: str
    frame: pd.DataFrame
    columns: tuple[Column, ...]

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows as text."""
        rows = self.frame.to_dict("records")
        return [column.header for column in self.columns], [[c.show(row) for c in self.columns] for row in rows]


def save(table: Table, directory: str | Path) -> list[Path]:
    """Write ``{name}.csv``, ``.md`` and ``.tex`` into a folder."""
    header, rows = table.cells()
    texts = {
        "csv": _csv(table.frame),
        "md": render.markdown(table.title, table.caption, header, rows),
        "tex": render.latex(table.name, table.caption, header, rows),
    }
    paths = [Path(directory) / f"{table.name}.{extension}" for extension in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        _write(path, text)
    return paths


def save_frame(frame: pd.DataFrame, path: str | Path) -> None:
    """Write figures that no table is made of as CSV."""
    _write(Path(path), _csv(frame))


def _csv(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


# What a run is made of, in words


def corpus_in_words(config: schema.Config) -> str:
    """The padding corpus, said to be synthetic where it is."""
    return f"{config.corpus.name} (synthetic prose)" if config.corpus.source == "embedded" else config.corpus.name


def endpoint_in_words(endpoint: schema.Endpoint) -> str:
    """An endpoint, said to be no language model where it is the reference."""
    if endpoint.kind == "reference":
        return f"{endpoint.name} (built-in rules, not GPT-OSS-120B nor any language model)"
    return f"{endpoint.name} ({endpoint.model})"


def what_is_synthetic(config: schema.Config) -> str:
    """What in a run is made up or stands in for something else, and where the paper's figures come from."""
    synthetic = ["All people and facts are fictitious and drawn by the pipeline."]
    if config.corpus.source == "embedded":
        synthetic.append("The padding is synthetic prose that ships with the project, not natural text.")
    built_in = [role for role in ("writer", "labeller", "judge") if getattr(config, role).kind == "reference"]
    if built_in:
        synthetic.append(
            f"The built-in reference endpoint, rules and no language model, stands in as {' and '.join(built_in)}."
        )
    if config.reader.path.startswith("data/readers/"):
        synthetic.append("The reader is a small model that ships with the project, trained on this task.")
    synthetic.append("The paper's figures stand beside as reference; they come from its own models and data.")
    return " ".join(synthetic)


def caption_in_words(what: str, config: schema.Config, role: str, n_documents: int, seeds: str, reference: str) -> str:
    endpoint: schema.Endpoint = getattr(config, role)
    same = "same reader model, other data" if reference == config.reader.name else "other model and data"
    return (
        f"{what} Reader {config.reader.name}; padding corpus {corpus_in_words(config)}; {role} "
        f"{endpoint_in_words(endpoint)}; scale {config.scale.name}; {seeds}; {n_documents} documents; brackets: "
        f"{statistics.LEVEL:.0%} bootstrap over documents ({config.scale.bootstrap} resamples). "
        f"Reference columns = the paper's figure with {paper.NAMES[reference]}, {same}."
    )


# Generation


@dataclass(frozen=True)
class _Point:
    """The answers of an operating point: per document, in the order of the ids, sums over its tokens or attributes."""

    key: paper.Point
    documents: tuple[str, ...]
    sums: dict[str, np.ndarray]

    @property
    def method(self) -> str:
        return METHODS.get(self.key[0], self.key[0])

    @property
    def setting(self) -> str:
        _, budget, policy = self.key
        return f"Kmax={budget}, {policy.capitalize()}" if policy else f"K={budget}"

    def pair(self, above: str, below: str) -> tuple[np.ndarray, np.ndarray]:
        return self.sums[above], self.sums[below]

    @property
    def n_failed(self) -> int:
        """Judgements that failed."""
        return int((self.sums["attributes"] - self.sums["judged"]).sum())

    @property
    def cas(self) -> tuple[np.ndarray, np.ndarray]:
        return self.pair("cas", "judged")

    @property
    def mtokens(self) -> tuple[np.ndarray, np.ndarray]:
        return self.pair("selected", "n_generated")


_MEANS = ("selected", "attended", "selected_with_tentative", "attended_with_tentative")
_TOTALS = ("n_generated", "rollbacks", "prefill_seconds", "decode_seconds", "peak_bytes")


def _points(answers: Sequence[str | Path], scores: Sequence[str | Path]) -> list[_Point]:
    """Operating points in the order of the answer files; the same documents in all of them, and in the scores."""
    answered = read(answers, "answers").to_pandas()
    scored = read(scores, "scores").to_pandas()
    if answered.empty:
        raise UserError(f"{answers[0]} holds no answers; make it again with at least one document")
    points: list[_Point] = []
    for name, own in answered.groupby("point", sort=False):
        own = own.sort_values("document", kind="stable")
        documents = tuple(own["document"])
        judged = scored[scored["point"] == name]
        if len(set(documents)) < len(documents) or set(judged["document"]) != set(documents):
            raise UserError(
                f"the scores of operating point {name} cover other documents than its answers; score it again"
            )
        if points and points[0].documents != documents:
            raise UserError(f"operating point {name} answers other documents than the first; decode the suite again")
        generated = own["n_generated"].to_numpy(dtype=np.float64)
        sums = {c: own[c].to_numpy(dtype=np.float64, na_value=np.nan) for c in _TOTALS}
        # A mean over no token is undefined but weighs nothing.
        sums |= {c: np.where(generated > 0, own[c].to_numpy(dtype=np.float64) * generated, 0.0) for c in _MEANS}
        by_document = judged.groupby("document", sort=True)
        sums |= {
            "documents": np.ones(len(documents)),
            "cas": by_document["cas"].sum().to_numpy(dtype=np.float64),
            "judged": by_document["cas"].count().to_numpy(dtype=np.float64),
            "string_match": by_document["string_match"].sum().to_numpy(dtype=np.float64),
            "attributes": by_document.size().to_numpy(dtype=np.float64),
        }
        policy = own["policy"].iloc[0] or ""
        points.append(_Point((own["method"].iloc[0], int(own["budget"].iloc[0]), policy), documents, sums))
    if missing := sorted(set(scored["point"]) - set(answered["point"])):
        raise UserError(f"operating point {missing[0]} has scores but no answers; decode the suite again")
    return points


def _spread(row: Row, column: str, estimate: Estimate, factor: float = 1) -> None:
    row[column] = factor * estimate.value
    row[f"{column}_low"], row[f"{column}_high"] = factor * estimate.low, factor * estimate.high


def _generation_row(point: _Point, counts: np.ndarray, reference: paper.Generation | None) -> Row:
    def mean(above: str, below: str) -> float:
        return float(statistics.ratio(*point.pair(above, below)))

    row: Row = {"method": point.method, "setting": point.setting, "n_documents": len(point.documents)}
    _spread(row, "mtokens", statistics.ratio_interval(*point.mtokens, counts))
    row |= {
        "attended": mean("attended", "n_generated"),
        "mtokens_with_tentative": mean("selected_with_tentative", "n_generated"),
        "attended_with_tentative": mean("attended_with_tentative", "n_generated"),
    }
    _spread(row, "cas_pct", statistics.ratio_interval(*point.cas, counts), 100)
    _spread(row, "string_match_pct", statistics.ratio_interval(*point.pair("string_match", "attributes"), counts), 100)
    row |= {
        "rollbacks_pct": 100 * mean("rollbacks", "n_generated"),
        "n_judgements": int(point.sums["attributes"].sum()),
        "n_failed_judgements": point.n_failed,
        "seconds_per_token": mean("decode_seconds", "n_generated"),
        "paper_mtokens": reference.mtokens if reference else NAN,
        "paper_cas_pct": reference.cas if reference else NAN,
    }
    return row


def _generation_columns(reference: str) -> tuple[Column, ...]:
    return (
        Column("Method", lambda row: row["method"]),
        Column("Setting", lambda row: row["setting"]),
        Column("Documents", lambda row: str(row["n_documents"])),
        Column("mTokens", lambda row: render.number(row["mtokens"], 1)),
        Column("Attended", lambda row: render.number(row["attended"], 1)),
        Column("CAS %", lambda row: render.bracketed(row["cas_pct"], row["cas_pct_low"], row["cas_pct_high"], 2)),
        Column("String match %", lambda row: render.number(row["string_match_pct"], 2)),
        Column("Rollbacks a token %", lambda row: render.number(row["rollbacks_pct"], 1)),
        Column("Failed judgements", lambda row: str(row["n_failed_judgements"])),
        Column("Time a token s", lambda row: render.number(row["seconds_per_token"], 4)),
        Column(f"paper mTokens ({paper.NAMES[reference]})", lambda row: render.number(row["paper_mtokens"], 0)),
        Column(f"paper CAS % ({paper.NAMES[reference]})", lambda row: render.number(row["paper_cas_pct"], 2)),
    )


_GENERATION = (
    "mTokens is the mean of tokens selected by retrieval a generated token, attended all keys attended, both of the "
    "accepted pass; CAS is the judge's conceptual accuracy over attributes, failed judgements left out; string match "
    "is token F1."
)


def _seeds(config: schema.Config) -> str:
    return f"config seed {config.seed}, detector seed {config.detector_seed}"


def validation(answers: Sequence[str | Path], scores: Sequence[str | Path], config: schema.Config) -> Table:
    """Generation on the validation split (paper, table of the same name)."""
    points = _points(answers, scores)
    reference = paper.reference_reader(paper.VALIDATION, config.reader.name)
    counts = statistics.resamples(len(points[0].documents), config.scale.bootstrap, config.seed, "validation")
    rows = [_generation_row(point, counts, paper.VALIDATION[reference].get(point.key)) for point in points]
    caption = caption_in_words(
        f"Generation on the validation split. {_GENERATION}",
        config,
        "judge",
        len(points[0].documents),
        _seeds(config),
        reference,
    )
    return Table(
        "validation", "Generation, validation set", caption, pd.DataFrame(rows), _generation_columns(reference)
    )


def test(answers: Sequence[str | Path], scores: Sequence[str | Path], config: schema.Config) -> Table:
    """Generation on the long-context test split (paper, table of the same name), each UT-ACA point held against InfLLM.

    ``difference_pct`` is its CAS minus that of the InfLLM point nearest in mTokens; ``gain_pct`` its CAS minus InfLLM's
    at the same mTokens, interpolated linearly in log2 mTokens and clipped to the measured range. Both intervals come
    from resampling documents for all points at once.
    """
    points = _points(answers, scores)
    reference = paper.reference_reader(paper.TEST, config.reader.name)
    counts = statistics.resamples(len(points[0].documents), config.scale.bootstrap, config.seed, "test")
    fixed = sorted((p for p in points if p.key[0] == "infllm"), key=lambda point: point.key[1])
    rows = []
    for point in points:
        row = _generation_row(point, counts, paper.TEST[reference].get(point.key))
        rows.append(row | _comparison(point, fixed if point.key[0] != "infllm" else [], counts))

    def difference(column: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: render.bracketed(row[column], row[f"{column}_low"], row[f"{column}_high"], 2)

    columns = (
        *_generation_columns(reference),
        Column("Nearest InfLLM", lambda row: row["nearest_infllm"] or render.MISSING),
        Column("CAS difference", difference("difference_pct")),
        Column("InfLLM CAS % at equal mTokens", lambda row: render.number(row["infllm_cas_pct"], 2)),
        Column("CAS gain", difference("gain_pct")),
        Column("Note", lambda row: row["note"]),
    )
    what = (
        f"Generation on the long-context test split. {_GENERATION} CAS difference: to the InfLLM point nearest in "
        "mTokens; CAS gain: to InfLLM's CAS at equal mTokens, interpolated in log2 mTokens and clipped to the measured "
        "range; both paired by document."
    )
    caption = caption_in_words(what, config, "judge", len(points[0].documents), _seeds(config), reference)
    return Table("test", "Generation, long-context test set", caption, pd.DataFrame(rows), columns)


def _comparison(point: _Point, fixed: Sequence[_Point], counts: np.ndarray) -> Row:
    """A point against the fixed budgets; empty columns where there are none."""
    row: Row = {"nearest_infllm": "", "note": "", "infllm_cas_pct": NAN}
    if not fixed:
        for column in ("difference_pct", "gain_pct"):
            _spread(row, column, Estimate(NAN))
        return row
    own = float(statistics.ratio(*point.mtokens))
    tokens = np.array([float(statistics.ratio(*other.mtokens)) for other in fixed])
    nearest = fixed[int(np.abs(tokens - own).argmin())]
    row["nearest_infllm"] = nearest.setting
    _spread(row, "difference_pct", statistics.paired_difference(point.cas, nearest.cas, counts), 100)

    cas = np.array([float(statistics.ratio(*other.cas)) for other in fixed])
    at_equal = float(_interpolate(np.array([own]), tokens[:, None], cas[:, None])[0])
    resampled = _interpolate(
        statistics.ratio(*point.mtokens, counts),
        np.stack([statistics.ratio(*other.mtokens, counts) for other in fixed]),
        np.stack([statistics.ratio(*other.cas, counts) for other in fixed]),
    )
    gain = float(statistics.ratio(*point.cas)) - at_equal
    row["infllm_cas_pct"] = 100 * at_equal
    _spread(row, "gain_pct", statistics.interval(gain, statistics.ratio(*point.cas, counts) - resampled), 100)
    if own < tokens.min():
        row["note"] = f"below InfLLM's range, clipped to {fixed[int(tokens.argmin())].setting}"
    elif own > tokens.max():
        row["note"] = f"above InfLLM's range, clipped to {fixed[int(tokens.argmax())].setting}"
    return row


def _interpolate(at: np.ndarray, tokens: np.ndarray, cas: np.ndarray) -> np.ndarray:
    """CAS [n] at ``at`` [n] tokens from points with ``tokens`` and ``cas`` [points, n], column by column."""
    x, at = np.log2(np.maximum(tokens, 1)), np.log2(np.maximum(at, 1))
    order = np.argsort(x, axis=0, kind="stable")
    x, cas = np.take_along_axis(x, order, 0), np.take_along_axis(cas, order, 0)
    return np.array([np.interp(at[i], x[:, i], cas[:, i]) for i in range(len(at))])


def tradeoff(answers: Sequence[str | Path], scores: Sequence[str | Path], config: schema.Config) -> Table:
    """Quality, latency and memory on the test split (paper, section "Quality-Latency-Memory Trade-off").

    End-to-end time is prefill and decoding of a document, its mean over documents; memory the highest peak.
    """
    points = _points(answers, scores)
    reference = paper.reference_reader(paper.TRADEOFF, config.reader.name)
    counts = statistics.resamples(len(points[0].documents), config.scale.bootstrap, config.seed, "test")
    rows: list[Row] = []
    for point in points:
        prefill, decode = point.sums["prefill_seconds"], point.sums["decode_seconds"]
        ones = point.sums["documents"]
        known = paper.TRADEOFF[reference].get(point.key)
        row: Row = {"method": point.method, "setting": point.setting, "n_documents": len(point.documents)}
        _spread(row, "cas_pct", statistics.ratio_interval(*point.cas, counts), 100)
        row["n_failed_judgements"] = point.n_failed
        row["mtokens"] = float(statistics.ratio(*point.mtokens))
        _spread(row, "end_to_end_s", statistics.ratio_interval(prefill + decode, ones, counts))
        _spread(row, "prefill_s", statistics.ratio_interval(prefill, ones, counts))
        _spread(row, "seconds_per_token", statistics.ratio_interval(decode, point.sums["n_generated"], counts))
        peak = point.sums["peak_bytes"]
        row["peak_gib"] = float(np.nanmax(peak)) / 2**30 if not np.isnan(peak).all() else NAN
        row |= {
            "paper_cas_pct": known.cas if known else NAN,
            "paper_mtokens": known.mtokens if known else NAN,
            "paper_end_to_end_s": known.end_to_end if known else NAN,
            "paper_peak_gib": known.memory if known else NAN,
        }
        rows.append(row)

    def figure(column: str, digits: int) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: render.bracketed(row[column], row.get(f"{column}_low"), row.get(f"{column}_high"), digits)

    columns = (
        Column("Method", lambda row: row["method"]),
        Column("Setting", lambda row: row["setting"]),
        Column("Documents", lambda row: str(row["n_documents"])),
        Column("CAS %", figure("cas_pct", 2)),
        Column("Failed judgements", lambda row: str(row["n_failed_judgements"])),
        Column("mTok.", figure("mtokens", 1)),
        Column("E2E s", figure("end_to_end_s", 3)),
        Column("Prefill s", figure("prefill_s", 3)),
        Column("Decoding s/token", figure("seconds_per_token", 4)),
        Column("Peak memory GiB", figure("peak_gib", 2)),
        Column(f"paper CAS % ({paper.NAMES[reference]})", figure("paper_cas_pct", 2)),
        Column("paper mTok.", figure("paper_mtokens", 0)),
        Column("paper E2E s", figure("paper_end_to_end_s", 2)),
        Column("paper GPU GiB", figure("paper_peak_gib", 2)),
    )
    what = (
        "Quality, latency and memory on the long-context test split. E2E is prefill and decoding of a document; the "
        "operating points share one prefill a document; times depend on the machine."
    )
    caption = caption_in_words(what, config, "judge", len(points[0].documents), _seeds(config), reference)
    return Table("tradeoff", "Quality, latency, memory", caption, pd.DataFrame(rows), columns)


# Endpoints


def endpoints(usage: Mapping[str, str | Path | Sequence[str | Path]], config: schema.Config) -> Table:
    """What each endpoint was needed for, by role: from files of schema "usage".

    Answers are counted once however many items share them, and whether they were sent for in this run or came from the
    answer store: the table is the same either way. The cost is theirs, at the prices in the config.
    """
    rows: list[Row] = []
    for role, paths in usage.items():
        endpoint: schema.Endpoint = getattr(config, role)
        items = read(paths, "usage").to_pylist()
        answers = {answer["request"]: answer for item in items for answer in item["answers"]}
        again = {answer["request"] for item in items for answer in item["answers"][1:]}
        kinds = Counter(item["failure"] for item in items if item["failure"] is not None)
        tokens = [sum(answer[f"{part}_tokens"] for answer in answers.values()) for part in ("prompt", "completion")]
        rows.append(
            {
                "role": role,
                "endpoint": endpoint.name,
                "model": endpoint.model,
                "n_items": len(items),
                "n_answers": len(answers),
                "n_asked_again": len(again),
                "n_failed": kinds.total(),
                "failures": ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
                "prompt_tokens": tokens[0],
                "completion_tokens": tokens[1],
                "cost_usd": endpoint.cost(*tokens),
            }
        )
    columns = (
        Column("Role", lambda row: row["role"]),
        Column("Endpoint", lambda row: endpoint_in_words(getattr(config, row["role"]))),
        Column("Items", lambda row: str(row["n_items"])),
        Column("Answers needed", lambda row: str(row["n_answers"])),
        Column("Asked again", lambda row: str(row["n_asked_again"])),
        Column("Failed", lambda row: f"{row['n_failed']} ({row['failures']})" if row["n_failed"] else "0"),
        Column("Prompt tokens", lambda row: str(row["prompt_tokens"])),
        Column("Completion tokens", lambda row: str(row["completion_tokens"])),
        Column("Cost USD", lambda row: render.number(row["cost_usd"], 2)),
    )
    caption = (
        f"What the endpoints were needed for. Reader {config.reader.name}; scale {config.scale.name}. An item is a "
        "biography, a stated fact to label or an attribute to score; items that ask the same share an answer. Asked "
        "again: answers sent for because the one before could not be used. Answers count the same whether they were "
        "sent for or found in the answer store; the cost is theirs, at the prices in the config (0: none given)."
    )
    return Table("endpoints", "Endpoints", caption, pd.DataFrame(rows), columns)


# The page that collects them


def index(files: Sequence[str | Path], directory: str | Path, config: schema.Config) -> Path:
    """Copy tables and figures of a reader into ``directory``, prefixed with its name, and write ``index.md`` there.

    The page tells what the run is made of, shows the Markdown tables and PNG figures and links every file.
    """
    directory = Path(directory)
    stems: dict[str, list[Path]] = {}
    for file in map(Path, files):
        if not file.is_file():
            raise UserError(f"{file} does not exist; make it with its target: snakemake --cores all {file}")
        copy = directory / f"{config.reader.name}-{file.name}"
        with atomic_path(copy) as scratch:
            shutil.copyfile(file, scratch)
        stems.setdefault(copy.stem, []).append(copy)
    page = ["# Results", "", *_identity(config), ""]
    for stem, copies in stems.items():
        by_extension = {copy.suffix: copy for copy in copies}
        if ".md" in by_extension:
            page += [by_extension[".md"].read_text(encoding="utf-8").rstrip(), ""]
        elif ".png" in by_extension:
            name = stem.removeprefix(f"{config.reader.name}-")
            page += [f"## {name.capitalize()}", "", f"![{name}]({by_extension['.png'].name})", ""]
        page += ["Files: " + ", ".join(f"[{copy.name}]({copy.name})" for copy in copies), ""]
    path = directory / "index.md"
    _write(path, "\n".join(page))
    return path


def _identity(config: schema.Config) -> list[str]:
    return [
        f"- Reader: {config.reader.name} (`{config.reader.path}`)",
        f"- Corpus: {corpus_in_words(config)}",
        f"- Writer: {endpoint_in_words(config.writer)}",
        f"- Labeller: {endpoint_in_words(config.labeller)}",
        f"- Judge: {endpoint_in_words(config.judge)}",
        f"- Scale: {config.scale.name}; config seed {config.seed}; {config.scale.detector_seeds} detector seeds",
        "",
        what_is_synthetic(config),
    ]
