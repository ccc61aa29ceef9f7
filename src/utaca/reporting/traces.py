"""The trace viewer: one HTML file that shows a split's answers token by token, with what was retrieved at each step.

Above them it shows where the operating points differ: CAS by attribute and by document. The template is
``traces.html`` beside this module, filled by :mod:`utaca.pages`. A document is one compressed block of the page,
unpacked by the browser when it is chosen; of its text the page holds the blocks that some step selected.

A token is addressed as ``traces/{split}.html#{document}/{point}/{step}``, each part percent-encoded
(:func:`utaca.reporting.points.fragment`): the document's id, the point's label as in the files, the
number of the step from 0. Step, or point and step, may be left out.
"""

from __future__ import annotations

import base64
import gzip
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from utaca.biographies.evidence import source
from utaca.errors import UserError
from utaca.judging.alignment import align
from utaca.pages import fill
from utaca.readers.prompts import Prompts
from utaca.records import SCHEMAS, read
from utaca.records.schemas import CORRECT
from utaca.reporting import palette
from utaca.reporting.points import Point, fragment, name_in_words
from utaca.reporting.words import run_in_words
from utaca.settings import schema

# Documents beyond this size of the page are left out, and the page says so.
MAX_BYTES = 16 * 2**20

# The scores of blocks would be as much again as all that is shown.
_COLUMNS = [name for name in SCHEMAS["traces"].names if name not in ("split", "scores")]

MISS, ALARM, CAUGHT = "miss", "alarm", "caught"
"""What a decision was: accepted though not correct, rolled back though correct, rolled back rightly."""

Row = Mapping[str, Any]


class Text:
    """A document's text in the reader's tokens.

    ``offsets`` are the character positions [start, end) of its tokens, chat template included, which counts from
    below 0; ``piece`` gives the text of a token id.
    """

    def __init__(self, offsets: Sequence[tuple[int, int]], piece: Callable[[int], str]) -> None:
        self.offsets, self.piece = offsets, piece


def encoder(tokenizer: Any) -> Callable[[str], Text]:
    """Texts in a tokenizer's tokens, as documents behind what its chat template writes."""
    prompts = Prompts(tokenizer)

    def encode(text: str) -> Text:
        offsets = prompts.document_offsets(text)
        return Text(offsets, lambda token: tokenizer.decode([token], clean_up_tokenization_spaces=False))

    return encode


def page(
    *,
    documents: Sequence[Row],
    answers: Sequence[str | Path],
    traces: Sequence[str | Path],
    scores: Sequence[str | Path],
    labels: Sequence[str | Path] = (),
    encode: Callable[[str], Text],
    config: schema.Config,
    max_bytes: int = MAX_BYTES,
) -> str:
    """The viewer of a split, as HTML.

    ``documents`` has rows of schema "documents"; the others are files of schemas "answers", "traces" and "scores" of
    the split, points decoded from block memory alone, and of kind "trace_labels". Documents stand in the
    order of the difference UT-ACA - InfLLM in CAS, the largest gain first; where not all of them fit into
    ``max_bytes``, those with the largest differences are shown. Raises :class:`UserError` if a document was decoded
    with other tokens than ``encode`` gives.
    """
    split = _Split.read(documents, answers, scores, labels)
    sections = _sections(split, config)
    split = replace(split, points={label: split.points[label] for label in sections})
    steps = _Steps(traces)
    packed: dict[str, str] = {}
    starts: dict[tuple[str, str, str], int] = {}
    size = 0
    for name in split.most_different():
        text = encode(split.documents[name]["text"])
        made = _document(split, name, steps.of(name), text, config.reader.memory)
        block = _pack(made)
        size += len(block)
        if packed and size > max_bytes:
            break
        packed[name] = block
        for point in made["points"]:
            for value in point["values"]:
                if value["first"] is not None:
                    starts[name, point["label"], made["facts"][value["fact"]][0]] = value["first"]
    shown = [name for name in split.ordered() if name in packed]
    return fill(
        __package__,
        "traces.html",
        {
            "title": f"Answers of the {split.name} split, token by token",
            "about": f"{_chosen(len(shown), len(split.ordered()))} {run_in_words(config, 'judge')}. "
            "All people and facts are fictitious.",
            "colours": {
                name: palette.MARKS[name].color
                for name in dict.fromkeys(palette.family(row["method"]) for row in split.points.values())
            },
            "points": [
                {
                    "label": label,
                    "name": name_in_words(_named(row), config),
                    "setting": _named(row).setting,
                    "family": palette.family(row["method"]),
                    "section": sections[label],
                }
                for label, row in split.points.items()
            ],
            "where": where(split.judged, list(split.points), split.ordered(), shown, starts),
            "labelled": bool(split.verdicts),
            "documents": [
                {
                    "id": name,
                    "person": split.documents[name]["person"],
                    "difference": _rounded(split.differences.get(name)),
                    "packed": packed.get(name),
                }
                for name in split.ordered()
            ],
        },
    )


def answer_page(
    title: str, about: str, document: str, answer: Row, steps: Sequence[Row], text: Text, memory: schema.MemorySettings
) -> str:
    """The viewer of one answer about any document, which nobody judged, as HTML.

    ``answer`` is a row of schema "answers", ``steps`` are rows of schema "traces", ``text`` is the document in the
    tokens of the reader, whose block memory is ``memory``.
    """
    name, label = answer["document"], answer["point"]
    about_document = {"text": document, "person": title, "facts": [], "spans": []}
    split = _Split("", {name: about_document}, {label: answer}, {(name, label): answer}, {}, pd.DataFrame(), {}, {})
    family = palette.family(answer["method"])
    return fill(
        __package__,
        "traces.html",
        {
            "title": title,
            "about": about,
            "colours": {family: palette.MARKS[family].color},
            "points": [{"label": label, "name": label, "setting": label, "family": family, "section": "answers"}],
            "where": None,
            "labelled": False,
            "documents": [
                {
                    "id": name,
                    "person": title,
                    "difference": None,
                    "packed": _pack(_document(split, name, {label: steps}, text, memory)),
                }
            ],
        },
    )


def _chosen(shown: int, total: int) -> str:
    order = "ordered by the difference UT-ACA \u2212 InfLLM (mean CAS over the points of each)"
    if shown == total:
        return f"All {total} documents, {order}."
    return (
        f"{shown} of {total} documents, {order}: those with the largest differences, for the page would grow too large "
        "with more. The others are in the table above alone."
    )


def _rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None or np.isnan(value) else round(float(value), digits)


def _named(answer: Row) -> Point:
    """The point of an answer, for its name."""
    seeds = () if answer["seed"] is None else (answer["seed"],)
    return Point((answer["method"], answer["budget"], answer["policy"] or ""), answer["detector"] or "", seeds, (), {})


def _sections(split: _Split, config: schema.Config) -> dict[str, str]:
    """The section of ``decode`` that shows each point, by label: the first one, the split's own before all others."""
    order = sorted(config.sections(split.name), key=lambda section: section != split.name)
    sections = {point.label: section for section in reversed(order) for point in config.decoded(section)}
    shown = {label: sections.get(label, split.name) for label in split.points}
    return dict(sorted(shown.items(), key=lambda one: [split.name, *order].index(one[1])))


@dataclass(frozen=True)
class _Split:
    """What is known of a split's answers.

    ``points`` holds an answer of every point, by label; ``answers`` and ``scores``, rows of these schemas, are by
    document and label, ``judged`` is the frame of all scores. ``verdicts`` are rows of kind "trace_labels" by document,
    label and step. ``differences`` are UT-ACA - InfLLM in CAS by document, if it has both.
    """

    name: str
    documents: Mapping[str, Row]
    points: Mapping[str, Row]
    answers: Mapping[tuple[str, str], Row]
    scores: Mapping[tuple[str, str], list[Row]]
    judged: pd.DataFrame
    verdicts: Mapping[tuple[str, str, int], Row]
    differences: Mapping[str, float]

    @classmethod
    def read(
        cls,
        documents: Sequence[Row],
        answers: Sequence[str | Path],
        scores: Sequence[str | Path],
        labels: Sequence[str | Path],
    ) -> _Split:
        by_id = {document["id"]: document for document in documents}
        points: dict[str, Row] = {}
        found: dict[tuple[str, str], Row] = {}
        for row in read(answers, "answers").to_pylist():
            if row["document"] not in by_id:
                raise UserError(
                    f"document {row['document']!r} has answers but is not in the documents file; make both again"
                )
            points.setdefault(row["point"], row)
            found[row["document"], row["point"]] = row
        if not found:
            raise UserError(f"{answers[0]} holds no answers; make it again with at least one document")
        judged: dict[tuple[str, str], list[Row]] = {}
        for row in read(scores, "scores").to_pylist():
            judged.setdefault((row["document"], row["point"]), []).append(row)
        rows = [row for of_answer in judged.values() for row in of_answer]
        frame = pd.DataFrame(rows, columns=SCHEMAS["scores"].names).astype({"cas": float})
        # A mean of points, each with all its attributes.
        method = frame["point"].map({label: row["method"] for label, row in points.items()}).rename("method")
        means = frame.groupby(["document", method, "point"])["cas"].mean().groupby(["document", "method"]).mean()
        by_method = means.unstack("method").reindex(columns=["utaca", "infllm"])
        verdicts = read(labels, "trace_labels").to_pylist() if labels else []
        return cls(
            next(by_id[name]["split"] for name, _ in found),
            {name: by_id[name] for name, _ in found},
            points,
            found,
            judged,
            frame,
            {(row["document"], row["point"], row["step"]): row for row in verdicts},
            (by_method["utaca"] - by_method["infllm"]).dropna().to_dict(),
        )

    def ordered(self) -> list[str]:
        """Documents, the largest gain first; at the end those without a difference."""
        return sorted(self.documents, key=lambda name: (-self.differences.get(name, -np.inf), name))

    def most_different(self) -> list[str]:
        """Documents by the size of their differences."""
        return sorted(self.documents, key=lambda name: (-abs(self.differences.get(name, 0)), name))


def where(
    judged: pd.DataFrame,
    points: Sequence[str],
    documents: Sequence[str],
    shown: Sequence[str],
    starts: Mapping[tuple[str, str, str], int],
) -> dict[str, Any]:
    """Mean CAS by point, by attribute and point, by document and point, with addresses of the worst answers.

    ``judged`` is a frame of schema "scores", a row a document, point and attribute; ``points`` and ``documents`` give
    the order; ``starts`` the step at which an answer begins to state an attribute, by document, point and attribute.
    A cell is CAS and address: of an attribute, its value in the worst answer of the ``shown`` documents, the first of
    several; of a document, its worst value. CAS is None where nothing was judged, the address "" where the document is
    not shown.
    """

    def cell(rows: pd.DataFrame) -> list[Any]:
        mean = _rounded(rows["cas"].mean()) if len(rows) else None
        open_ = rows[rows["document"].isin(shown)]
        if open_.empty:
            return [mean, ""]
        # A failed judgement is worth a look last.
        worst = open_.assign(place=open_["document"].map(place)).sort_values(["cas", "place"], kind="stable").iloc[0]
        key = worst["document"], worst["point"], worst["attribute"]
        return [mean, fragment(worst["document"], worst["point"], starts.get(key, 0))]

    place = {name: number for number, name in enumerate(documents)}
    none = judged.iloc[:0]
    by_attribute = dict(list(judged.groupby(["attribute", "point"], sort=False)))
    by_document = dict(list(judged.groupby(["document", "point"], sort=False)))
    return {
        "mean": [_rounded(judged.loc[judged["point"] == point, "cas"].mean()) for point in points],
        "attributes": [
            {"name": name, "cells": [cell(by_attribute.get((name, point), none)) for point in points]}
            for name in dict.fromkeys(judged["attribute"])
        ],
        "documents": [
            {"id": name, "cells": [cell(by_document.get((name, point), none)) for point in points]}
            for name in documents
        ],
    }


class _Steps:
    """Rows of traces, by document and point, in order."""

    def __init__(self, paths: Sequence[str | Path]) -> None:
        self._table = pa.concat_tables([read(path, "traces", _COLUMNS) for path in paths])

    def of(self, name: str) -> dict[str, list[dict[str, Any]]]:
        """The steps of a document, by point."""
        steps: dict[str, list[dict[str, Any]]] = {}
        for row in self._table.filter(pc.equal(self._table["document"], name)).sort_by("step").to_pylist():
            steps.setdefault(row["point"], []).append(row)
        return steps


def _pack(content: Any) -> str:
    """JSON, compressed, in base64; the same for the same content."""
    block = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(block.encode(), mtime=0)).decode()


def _document(
    split: _Split, name: str, steps: Mapping[str, Sequence[Row]], text: Text, memory: schema.MemorySettings
) -> dict[str, Any]:
    document = split.documents[name]
    n_blocks = max(0, (len(text.offsets) - memory.n_init) // memory.block_size)
    starts = [start for start, _ in text.offsets]
    told = [span for span in document["spans"] if span["kind"] == "biography"]
    own = [(answer, steps.get(label, [])) for label in split.points if (answer := split.answers.get((name, label)))]
    for answer, _ in own:
        if answer["n_context"] != len(text.offsets):
            raise UserError(
                f"document {name!r} has {len(text.offsets)} tokens, but was decoded as {answer['n_context']}; decode "
                "it again with this reader"
            )
    pieces: dict[int, int] = {}
    for _, rows in own:
        for row in rows:
            tops = row["top_tokens"] + row["tentative_top_tokens"]
            for token in (row["token"], row["tentative_token"], *tops):
                pieces.setdefault(token, len(pieces))
    facts = []
    for fact in document["facts"]:
        found = source(document, fact["value"])
        blocks = _covered({"start": found[0], "end": found[1]}, starts, memory, n_blocks) if found else ()
        stated = document["text"][slice(*found)] if found else ""
        facts.append([fact["attribute"], fact["value"], stated, list(blocks)])
    selected = sorted({b for _, rows in own for row in rows for layer in row["selected"] for b in layer})
    return {
        "id": name,
        "person": document["person"],
        "question": own[0][0]["question"],
        "facts": facts,
        "tokens": len(text.offsets),
        "init": memory.n_init,
        "local": memory.n_local,
        "size": memory.block_size,
        "blocks": n_blocks,
        "told": sorted({b for span in told for b in _covered(span, starts, memory, n_blocks)}),
        "selected": _deltas(selected),
        "texts": [_segments(document["text"], *_extent(b, text, memory), told) for b in selected],
        "pieces": [text.piece(token) for token in pieces],
        "points": [_point(split, answer, rows, pieces) for answer, rows in own],
    }


def _covered(span: Row, starts: Sequence[int], memory: schema.MemorySettings, n_blocks: int) -> range:
    """Blocks that hold tokens of a span of characters."""
    first = max(0, bisect_right(starts, span["start"]) - 1 - memory.n_init)
    last = bisect_left(starts, span["end"]) - 1 - memory.n_init
    return range(first // memory.block_size, min(n_blocks, last // memory.block_size + 1))


def _extent(block: int, text: Text, memory: schema.MemorySettings) -> tuple[int, int]:
    """Characters of a block, up to where the next token starts: spaces belong to what they follow.

    Long answers make blocks too, of the question and of themselves: such a one has no characters of the document.
    """
    starts = [start for start, _ in text.offsets] + [text.offsets[-1][1]]
    first = memory.n_init + block * memory.block_size
    place, after = (min(token, len(starts) - 1) for token in (first, first + memory.block_size))
    return max(0, starts[place]), max(0, starts[after])


def _segments(text: str, start: int, end: int, told: Sequence[Row]) -> list[str]:
    """``text[start:end]`` cut into padding, biography, padding and so on."""
    cuts = [start]
    for span in sorted(told, key=lambda span: span["start"]):
        if span["start"] < end and span["end"] > start:
            cuts += [max(start, span["start"]), min(end, span["end"])]
    cuts.append(end)
    return [text[a:b] for a, b in pairwise(cuts)]


def _deltas(ids: Sequence[int]) -> list[int]:
    """Ascending numbers as differences, which pack better."""
    return np.diff(np.asarray(ids, dtype=np.int64), prepend=0).tolist()


def _point(split: _Split, answer: Row, rows: Sequence[Row], pieces: Mapping[int, int]) -> dict[str, Any]:
    name, label = answer["document"], answer["point"]
    judged = split.scores.get((name, label), [])
    cas = [row["cas"] for row in judged if row["cas"] is not None]
    return {
        "label": label,
        "method": answer["method"],
        "budget": answer["budget"],
        "policy": answer["policy"] or "",
        "selected": None if answer["n_generated"] == 0 else round(float(answer["selected"]), 1),
        "rollbacks": answer["rollbacks"],
        "finish": answer["finish"],
        "cas": _rounded(float(np.mean(cas))) if cas else None,
        "values": _values(rows, judged, split.documents[name]),
        "steps": [_step(row, pieces, split.verdicts.get((name, label, row["step"]))) for row in rows],
    }


def _values(rows: Sequence[Row], judged: Sequence[Row], document: Row) -> list[dict[str, Any]]:
    """What an answer says of each fact, how it was judged, and the steps that state it; None where none does."""
    facts = [fact["attribute"] for fact in document["facts"]]
    ends = list(accumulate(len(row["text"]) for row in rows))
    stated: dict[str, tuple[int, int]] = {}
    for part in align("".join(row["text"] for row in rows), document["person"], facts).parts if facts else ():
        own = [
            step
            for step, (row, end) in enumerate(zip(rows, ends, strict=True))
            if row["text"] and end - len(row["text"]) < part.end and part.start < end
        ]
        if own:
            stated.setdefault(part.attribute, (own[0], own[-1]))
    by_attribute = {row["attribute"]: row for row in judged}
    values = []
    for number, attribute in enumerate(facts):
        first, last = stated.get(attribute, (None, None))
        value: dict[str, Any] = {"fact": number, "first": first, "last": last}
        if row := by_attribute.get(attribute):
            cas, failure = _rounded(row["cas"]), row["failure"] or ""
            value |= {"said": row["prediction"], "cas": cas, "reason": failure if cas is None else row["reason"] or ""}
        values.append(value)
    return values


def _step(row: Row, pieces: Mapping[int, int], labelled: Row | None) -> dict[str, Any]:
    p = [row["p_hallucinated"], row["p_correct"], row["p_unknown"]]
    step: dict[str, Any] = {
        "text": row["text"],
        "pass": _pass(row, "", pieces),
        "attended": row["attended"],
        "blocks": [_deltas(layer) for layer in row["selected"]],
    }
    if any(x is not None for x in p):
        step["p"] = [None if x is None else round(x, 4) for x in p]
    if row["rolled_back"]:
        step["rejected"] = _pass(row, "tentative_", pieces)
    if labelled is not None and labelled["label"] is not None:
        step["label"] = {"is": labelled["label"], "by": labelled["source"], "reason": labelled["reason"]}
        if labelled["uncertain"]:
            step["verdict"] = ALARM if labelled["label"] == CORRECT else CAUGHT
        elif labelled["label"] != CORRECT:
            step["verdict"] = MISS
    return step


def _pass(row: Row, prefix: str, pieces: Mapping[int, int]) -> dict[str, Any]:
    """A pass of a step: its token, budget, margin, log-probability, and its best tokens with their logits."""
    return {
        "token": pieces[row[f"{prefix}token"]],
        "k": row[f"{prefix}k"],
        "margin": round(row[f"{prefix}margin"], 3),
        "logprob": round(row[f"{prefix}logprob"], 4),
        "top": list(_ranked(row[f"{prefix}top_tokens"], row[f"{prefix}top_logits"], pieces)),
    }


def _ranked(tokens: Sequence[int], logits: Sequence[float], pieces: Mapping[int, int]) -> Iterator[list[float]]:
    return ([pieces[token], round(logit, 2)] for token, logit in zip(tokens, logits, strict=True))
