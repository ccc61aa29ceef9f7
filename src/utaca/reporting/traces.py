"""The trace viewer: one HTML file with the answers of a split, token by token, and what each step retrieved.

A table above the answers shows where the operating points differ: CAS by attribute and by document. The template is
``traces.html``, filled by :mod:`utaca.pages`. The browser unpacks each document from a compressed string when the
document is chosen; of the text, the string has only the blocks of memory that some step selected.

The address of a token is ``traces/{split}.html#{document}/{point}/{step}`` (:func:`fragment`): the document's id, the
point's label in files, and the number of the step from 0, each percent-encoded. The step, or point and step, may be
omitted.
"""

from __future__ import annotations

import base64
import gzip
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from utaca.biographies.evidence import source
from utaca.errors import UserError
from utaca.judging.alignment import align
from utaca.layout import Layout
from utaca.pages import fill
from utaca.readers.prompts import Prompts
from utaca.readers.tokenizer import written
from utaca.records import SCHEMAS, read, rows
from utaca.records.schemas import CORRECT
from utaca.reporting import palette
from utaca.reporting.results import of_answer, setting_in_words
from utaca.reporting.words import run_in_words
from utaca.settings import schema

# Documents that would make the page larger (in bytes) are omitted, and the page says so.
MAX_BYTES = 16 * 2**20

# The scores of blocks would double the size of the page.
_COLUMNS = [name for name in SCHEMAS["traces"].names if name not in ("split", "scores")]

Row = Mapping[str, Any]


class TokenizedText(NamedTuple):
    """The tokens of a document's text.

    ``offsets`` are the character positions [start, end) of the tokens; tokens of the chat template before the text have
    negative positions. ``piece`` returns the text of a token id.
    """

    offsets: Sequence[tuple[int, int]]
    piece: Callable[[int], str]


def encoder(tokenizer: Any) -> Callable[[str], TokenizedText]:
    """Return a function that tokenizes a document after the opening of the tokenizer's chat template."""
    prompts = Prompts(tokenizer)
    return lambda text: TokenizedText(prompts.document_offsets(text), partial(written, tokenizer))


def fragment(document: str, point: str = "", step: int | None = None) -> str:
    """The part of an address from ``#`` on.

    Of a token by default, of an answer without ``step``, and of a document if only its id is given.
    """
    parts = [document]
    if point:
        parts.append(point)
        if step is not None:
            parts.append(str(step))
    return "#" + "/".join(quote(part, safe="") for part in parts)


def page(
    *,
    documents: Sequence[Row],
    answers: Sequence[str | Path],
    traces: Sequence[str | Path],
    scores: Sequence[str | Path],
    labels: Sequence[str | Path] = (),
    encode: Callable[[str], TokenizedText],
    config: schema.Config,
    max_bytes: int = MAX_BYTES,
) -> str:
    """The viewer of a split, as HTML.

    ``documents`` are rows of schema "documents"; the other arguments are files of schemas "answers", "traces",
    "scores" and "trace_labels" of the split, of points decoded from block memory. Documents are ordered by the
    difference UT-ACA - InfLLM in CAS, the largest gain first; if they do not all fit into ``max_bytes``, those with the
    largest absolute differences are shown.

    Raises:
        UserError: a document is missing, or was decoded with other tokens than those of ``encode``.
    """
    split = _read_split(documents, answers, scores, labels, config)
    table = pa.concat_tables([read(path, "traces", _COLUMNS) for path in traces])
    packed: dict[str, str] = {}
    starts: dict[tuple[str, str, str], int] = {}
    size = 0
    largest_first = sorted(split.documents, key=lambda name: (-abs(split.differences.get(name, 0)), name))
    for name in largest_first:
        steps: dict[str, list[Row]] = {}
        of_document = table.filter(pc.equal(table["document"], name)).sort_by("step")
        for row in of_document.to_pylist():
            steps.setdefault(row["point"], []).append(row)
        document = _document(split, name, steps, encode(split.documents[name]["text"]), config.reader.memory)
        block = _pack(document)
        size += len(block)
        if packed and size > max_bytes:
            break
        packed[name] = block
        for point in document["points"]:
            for value in point["values"]:
                if value["first"] is not None:
                    attribute = document["facts"][value["fact"]][0]
                    starts[name, point["label"], attribute] = value["first"]
    names = {}
    for label, row in split.points.items():
        operating_point = of_answer(row)
        setting = setting_in_words(operating_point, config)
        names[label] = Named(operating_point.name, setting, operating_point.family)
    order = "ordered by the difference UT-ACA \u2212 InfLLM (mean CAS over the points of each)"
    shown = f"All {len(packed)} documents, {order}."
    if len(packed) < len(split.documents):
        shown = (
            f"{len(packed)} of {len(split.documents)} documents, {order}: those with the largest differences, for the "
            "page would grow too large with more. The others are in the table above alone."
        )
    people = "" if config.scale.test.people else " All people and facts are fictitious."
    return _page(
        f"Answers of the {split.name} split, token by token",
        f"{shown} {run_in_words(config, 'judge')}.{people}",
        split,
        names,
        packed,
        _where(split, packed, starts),
    )


def answer_page(
    title: str,
    about: str,
    document: str,
    answer: Row,
    steps: Sequence[Row],
    text: TokenizedText,
    memory: schema.MemorySettings,
) -> str:
    """The viewer of a single answer about any document, without scores, as HTML.

    ``answer`` is a row of schema "answers", ``steps`` are rows of schema "traces", ``text`` has the tokens of the
    document for the reader, whose block memory is ``memory``.
    """
    name = answer["document"]
    label = answer["point"]
    document_row = {"text": document, "person": title, "facts": [], "spans": []}
    split = _Split("answers", {name: document_row}, {label: answer}, {label: "answers"}, {(name, label): answer})
    packed = _pack(_document(split, name, {label: steps}, text, memory))
    names = {label: Named(label, "", of_answer(answer).family)}
    return _page(title, about, split, names, {name: packed}, None)


class Named(NamedTuple):
    """What a page calls a point: its method, its budget, policy and trigger, and the family that has its colour."""

    method: str
    setting: str
    family: str


def _page(
    title: str,
    about: str,
    split: _Split,
    names: Mapping[str, Named],
    packed: Mapping[str, str],
    where: Mapping[str, Any] | None,
) -> str:
    """Fill the template; ``names`` are those of the points by label, ``packed`` the compressed documents."""
    points = [
        {
            "label": label,
            "name": " ".join(filter(None, [named.method, named.setting])),
            "method": named.method,
            "setting": named.setting,
            "family": palette.known(named.family),
            "section": split.sections[label],
        }
        for label, named in names.items()
    ]
    documents = [
        {
            "id": name,
            "person": document["person"],
            "difference": _rounded(split.differences.get(name)),
            "packed": packed.get(name),
        }
        for name, document in split.documents.items()
    ]
    families = dict.fromkeys(point["family"] for point in points)
    content = {
        "title": title,
        "about": about,
        "colours": {family: palette.MARKS[family].color for family in families},
        "points": points,
        "where": where,
        "labelled": bool(split.verdicts),
        "documents": documents,
    }
    return fill(__package__, "traces.html", content)


def _rounded(value: float | None) -> float | None:
    return None if value is None or np.isnan(value) else round(float(value), 4)


@dataclass(frozen=True)
class _Split:
    """The answers of a split.

    ``documents`` are by id, in the order of the page. ``points`` has one answer of each point and ``sections`` the
    section of ``decode`` that shows it, both by label. ``answers`` are by document and label, ``judged`` is the frame
    of all scores. ``verdicts`` are rows of schema "trace_labels" by document, label and step. ``differences`` are
    UT-ACA - InfLLM in CAS, for each document with both.
    """

    name: str
    documents: Mapping[str, Row]
    points: Mapping[str, Row]
    sections: Mapping[str, str]
    answers: Mapping[tuple[str, str], Row]
    judged: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=["document", "point"]))
    verdicts: Mapping[tuple[str, str, int], Row] = field(default_factory=dict)
    differences: Mapping[str, float] = field(default_factory=dict)


def _read_split(
    documents: Sequence[Row],
    answers: Sequence[str | Path],
    scores: Sequence[str | Path],
    labels: Sequence[str | Path],
    config: schema.Config,
) -> _Split:
    by_id = {document["id"]: document for document in documents}
    points: dict[str, Row] = {}
    by_answer: dict[tuple[str, str], Row] = {}
    for row in rows(answers, "answers"):
        if row["document"] not in by_id:
            raise UserError(
                f"document {row['document']!r} has answers but is not in the documents file; make both again"
            )
        points.setdefault(row["point"], row)
        by_answer[row["document"], row["point"]] = row
    if not by_answer:
        raise UserError(f"{answers[0]} holds no answers; make it again with at least one document")
    judged = read(scores, "scores").to_pandas().astype({"cas": float})
    methods = {label: of_answer(row).decoder for label, row in points.items()}
    method = judged["point"].map(methods).rename("method")
    # First the mean over the attributes of a point, then over the points of a method.
    by_point = judged.groupby(["document", method, "point"])["cas"].mean()
    means = by_point.groupby(["document", "method"]).mean()
    by_method = means.unstack("method").reindex(columns=["utaca", "infllm"])
    differences = (by_method["utaca"] - by_method["infllm"]).dropna().to_dict()
    answered = {name for name, _ in by_answer}
    ids = sorted(answered, key=lambda name: (-differences.get(name, -np.inf), name))
    split = by_id[ids[0]]["split"]
    # A point belongs to the first section that shows it; the section named like the split comes first.
    order = sorted(config.sections(split), key=lambda section: section != split)
    shown_by: dict[str, str] = {}
    for section in order:
        for point in config.decoded(section):
            shown_by.setdefault(point.label, section)
    places = [split, *order]
    labels_in_order = sorted(points, key=lambda label: places.index(shown_by.get(label, split)))
    verdicts = {}
    for row in rows(labels, "trace_labels") if labels else ():
        verdicts[row["document"], row["point"], row["step"]] = row
    return _Split(
        split,
        {name: by_id[name] for name in ids},
        {label: points[label] for label in labels_in_order},
        {label: shown_by.get(label, split) for label in labels_in_order},
        by_answer,
        judged,
        verdicts,
        differences,
    )


def _where(split: _Split, shown: Mapping[str, str], starts: Mapping[tuple[str, str, str], int]) -> dict[str, list[Any]]:
    """Mean CAS by point, by attribute and point, and by document and point, with addresses of the worst answers.

    ``starts`` has the step at which an answer begins to state an attribute, by document, point and attribute. A cell is
    a pair: mean CAS (None if nothing was judged) and the address of the value with the lowest CAS in the ``shown``
    documents (or "").
    """
    place = {name: number for number, name in enumerate(split.documents)}

    def cell(judged: pd.DataFrame | None) -> list[Any]:
        if judged is None:
            return [None, ""]
        mean = _rounded(judged["cas"].mean())
        on_page = judged[judged["document"].isin(list(shown))]
        if on_page.empty:
            return [mean, ""]
        on_page = on_page.assign(place=on_page["document"].map(place))
        # Failed judgements are sorted last.
        worst = on_page.sort_values(["cas", "place"], kind="stable").iloc[0]
        document, point, attribute = worst["document"], worst["point"], worst["attribute"]
        step = starts.get((document, point, attribute), 0)
        return [mean, fragment(document, point, step)]

    def lines(column: str, title: str, names: Sequence[str]) -> list[dict[str, Any]]:
        groups = dict(list(split.judged.groupby([column, "point"], sort=False)))
        result = []
        for name in names:
            cells = [cell(groups.get((name, point))) for point in split.points]
            result.append({title: name, "cells": cells})
        return result

    means = []
    for point in split.points:
        of_point = split.judged.loc[split.judged["point"] == point, "cas"]
        means.append(_rounded(of_point.mean()))
    return {
        "mean": means,
        "attributes": lines("attribute", "name", list(dict.fromkeys(split.judged["attribute"]))),
        "documents": lines("document", "id", list(split.documents)),
    }


def _pack(content: Any) -> str:
    """Compressed JSON in base64; equal contents give equal strings."""
    block = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(block.encode(), mtime=0)).decode()


# A document


def _document(
    split: _Split, name: str, steps: Mapping[str, Sequence[Row]], text: TokenizedText, memory: schema.MemorySettings
) -> dict[str, Any]:
    """What the page shows of a document: its text by block, its facts and its answers.

    ``steps`` are rows of schema "traces" of each point, in the order of steps. Token ids are replaced by places in
    ``pieces``, the texts of the tokens that occur.
    """
    document = split.documents[name]
    judged = split.judged[split.judged["document"] == name]
    layout = memory.layout
    n_blocks = layout.blocks(len(text.offsets))
    starts = [start for start, _ in text.offsets]
    biography = [span for span in document["spans"] if span["kind"] == "biography"]
    answers: list[tuple[Row, Sequence[Row]]] = []
    all_steps: list[Row] = []
    for label in split.points:
        answer = split.answers.get((name, label))
        if not answer:
            continue
        if answer["n_context"] != len(text.offsets):
            raise UserError(
                f"document {name!r} has {len(text.offsets)} tokens, but was decoded as {answer['n_context']}; decode "
                "it again with this reader"
            )
        steps_of_answer = steps.get(label, [])
        answers.append((answer, steps_of_answer))
        all_steps += steps_of_answer
    pieces: dict[int, int] = {}
    selected_blocks: set[int] = set()
    for row in all_steps:
        tops = row["top_tokens"] + row["tentative_top_tokens"]
        for token in (row["token"], row["tentative_token"], *tops):
            pieces.setdefault(token, len(pieces))
        selected_blocks.update(*row["selected"])
    facts = []
    for fact in document["facts"]:
        start, end = source(document, fact["value"]) or (0, 0)
        blocks = _covered(start, end, starts, layout, n_blocks) if end else ()
        facts.append([fact["attribute"], fact["value"], document["text"][start:end], list(blocks)])
    of_biography: set[int] = set()
    for span in biography:
        of_biography.update(_covered(span["start"], span["end"], starts, layout, n_blocks))
    selected = sorted(selected_blocks)
    texts = []
    for block in selected:
        start, end = _extent(block, text, layout)
        texts.append(_segments(document["text"], start, end, biography))
    points = [_point(split, answer, judged, steps_of_answer, pieces) for answer, steps_of_answer in answers]
    return {
        "id": name,
        "person": document["person"],
        "question": answers[0][0]["question"],
        "facts": facts,
        "tokens": len(text.offsets),
        "init": memory.n_init,
        "local": memory.n_local,
        "size": memory.block_size,
        "blocks": n_blocks,
        "told": sorted(of_biography),
        "selected": _deltas(selected),
        "texts": texts,
        "pieces": [text.piece(token) for token in pieces],
        "points": points,
    }


def _covered(start: int, end: int, starts: Sequence[int], layout: Layout, n_blocks: int) -> range:
    """Range of blocks with tokens of the characters [start, end); ``starts`` are the tokens' character offsets."""
    first = max(0, bisect_right(starts, start) - 1 - layout.n_init)
    last = bisect_left(starts, end) - 1 - layout.n_init
    return range(first // layout.block_size, min(n_blocks, last // layout.block_size + 1))


def _extent(block: int, text: TokenizedText, layout: Layout) -> tuple[int, int]:
    """Character offsets [start, end) of a block, up to the start of the next block, so that spaces are included.

    Question and answer may fill blocks too; such a block has no characters of the document.
    """

    def place(token: int) -> int:
        """Where a token starts; past the last token, where the document ends."""
        offset = text.offsets[token][0] if token < len(text.offsets) else text.offsets[-1][1]
        return max(0, offset)

    first = layout.first_token(block)
    return place(first), place(first + layout.block_size)


def _segments(text: str, start: int, end: int, biography: Sequence[Row]) -> list[str]:
    """``text[start:end]``, cut into alternating segments of padding and biography, padding first."""
    cuts = [start]
    for span in sorted(biography, key=lambda span: span["start"]):
        if span["start"] < end and span["end"] > start:
            cuts += [max(start, span["start"]), min(end, span["end"])]
    return [text[a:b] for a, b in pairwise([*cuts, end])]


def _deltas(ids: Sequence[int]) -> list[int]:
    """Differences of ascending numbers, which compress better."""
    return np.diff(np.asarray(ids, dtype=np.int64), prepend=0).tolist()


# An answer


def _point(
    split: _Split, answer: Row, judged: pd.DataFrame, steps: Sequence[Row], pieces: Mapping[int, int]
) -> dict[str, Any]:
    """What the page shows of an answer; ``judged`` are all scores of the document."""
    name = answer["document"]
    label = answer["point"]
    judged = judged[judged["point"] == label]
    scores = judged.astype(object).where(judged.notna(), None)
    shown_steps = []
    for row in steps:
        labelled = split.verdicts.get((name, label, row["step"]))
        shown_steps.append(_step(row, pieces, labelled))
    return {
        "label": label,
        "method": answer["method"],
        "budget": answer["budget"],
        "policy": answer["policy"] or "",
        "selected": None if answer["n_generated"] == 0 else round(float(answer["selected"]), 1),
        "rollbacks": answer["rollbacks"],
        "finish": answer["finish"],
        "cas": _rounded(judged["cas"].mean()) if len(judged) else None,
        "values": _values(steps, scores, split.documents[name]),
        "steps": shown_steps,
    }


def _values(steps: Sequence[Row], judged: pd.DataFrame, document: Row) -> list[dict[str, Any]]:
    """Prediction, score, first and last step of each fact in an answer; the steps are None for an unstated fact."""
    facts = [fact["attribute"] for fact in document["facts"]]
    texts = [row["text"] for row in steps]
    ends = list(accumulate(map(len, texts)))
    stated: dict[str, list[int]] = {}
    parts = align("".join(texts), document["person"], facts).parts if facts else ()
    for part in parts:
        within = []
        for step, (text, end) in enumerate(zip(texts, ends, strict=True)):
            start = end - len(text)
            if text and start < part.end and part.start < end:
                within.append(step)
        if within:
            stated.setdefault(part.attribute, within)
    scores = {row["attribute"]: row for row in judged.to_dict("records")}
    values = []
    for number, attribute in enumerate(facts):
        within = stated.get(attribute, [None])
        value: dict[str, Any] = {"fact": number, "first": within[0], "last": within[-1]}
        if row := scores.get(attribute):
            cas = _rounded(row["cas"])
            reason = row["failure"] if cas is None else row["reason"]
            value |= {"said": row["prediction"], "cas": cas, "reason": reason or ""}
        values.append(value)
    return values


def _step(row: Row, pieces: Mapping[int, int], labelled: Row | None) -> dict[str, Any]:
    """What the page shows of a step; ``labelled`` is the step's row of schema "trace_labels", if it has one."""
    probabilities = [row["p_hallucinated"], row["p_correct"], row["p_unknown"]]
    step: dict[str, Any] = {
        "text": row["text"],
        "pass": _pass(row, "", pieces),
        "attended": row["attended"],
        "blocks": [_deltas(layer) for layer in row["selected"]],
    }
    if any(p is not None for p in probabilities):
        step["p"] = [None if p is None else round(p, 4) for p in probabilities]
    if row["rolled_back"]:
        step["rejected"] = _pass(row, "tentative_", pieces)
    if labelled is not None and labelled["label"] is not None:
        step["label"] = {"is": labelled["label"], "by": labelled["source"], "reason": labelled["reason"]}
        correct = labelled["label"] == CORRECT
        if labelled["uncertain"]:
            step["verdict"] = "alarm" if correct else "caught"
        elif not correct:
            step["verdict"] = "miss"
    return step


def _pass(row: Row, prefix: str, pieces: Mapping[int, int]) -> dict[str, Any]:
    """A pass of a step: its token, budget, margin, log-probability, and its best tokens with their logits."""
    top = zip(row[f"{prefix}top_tokens"], row[f"{prefix}top_logits"], strict=True)
    return {
        "token": pieces[row[f"{prefix}token"]],
        "k": row[f"{prefix}k"],
        "margin": round(row[f"{prefix}margin"], 3),
        "logprob": round(row[f"{prefix}logprob"], 4),
        "top": [[pieces[token], round(logit, 2)] for token, logit in top],
    }
