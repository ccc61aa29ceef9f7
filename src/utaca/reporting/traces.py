"""Make the trace viewer: one HTML file with the answers of a split, token by token, and what each step retrieved.

A folded overview table above the answers shows where the operating points differ: CAS by attribute and by document. The
template is ``traces.html``, filled by :mod:`utaca.pages`. The browser unpacks each document from a compressed string
when the document is chosen; of the text, the string has only the blocks of memory that some step selected.

The address of a token is ``traces/{split}.html#{document}/{point}/{step}`` (:func:`fragment`): the document's id, the
point's label in files, and the number of the step from 0, each percent-encoded. The step, or point and step, may be
omitted.
"""

from __future__ import annotations

import base64
import gzip
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """The part from ``#`` on of the address of a token, of an answer (without ``step``) or of a document (its id only).

    ``point`` is the label of the answer's operating point.
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
    """Make the viewer of a split as HTML.

    ``documents`` are rows of schema "documents"; the other arguments are files of schemas "answers", "traces",
    "scores" and "trace_labels" of the split, of points decoded from block memory. Documents are ordered by the
    difference UT-ACA - InfLLM in CAS, the largest gain first; if they do not all fit into ``max_bytes``, those with the
    largest absolute differences are shown.

    Raises:
        UserError: a document is missing, or was decoded with other tokens than those of ``encode``.
    """
    split = _read_split(documents, answers, scores, labels, config)
    steps = pa.concat_tables([read(path, "traces", _COLUMNS) for path in traces])
    packed, first_steps = _packed(split, steps, encode, config.reader.memory, max_bytes)
    names = {}
    for label, row in split.points.items():
        operating_point = of_answer(row)
        setting = setting_in_words(operating_point, config)
        names[label] = Named(operating_point.name, setting, operating_point.family)
    fictitious = "" if config.scale.test.people else " All people and facts are fictitious."
    return _page(
        f"Answers of the {split.name} split, token by token",
        f"{_which_documents(len(packed), len(split.documents))} {run_in_words(config, 'judge')}.{fictitious}",
        split,
        names,
        packed,
        _overview_table(split, packed, first_steps),
        _lead(split, config),
    )


def _lead(split: _Split, config: schema.Config) -> str:
    """The label of the point whose answer comes first: the config's main point, else the first one with a detector.

    "" if the split has neither.
    """
    main = config.main_point.label if config.main_point else ""
    if main in split.points:
        return main
    detected = [label for label, row in split.points.items() if of_answer(row).detector]
    return detected[0] if detected else ""


def _packed(
    split: _Split,
    steps: pa.Table,
    encode: Callable[[str], TokenizedText],
    memory: schema.MemorySettings,
    max_bytes: int,
) -> tuple[dict[str, str], dict[tuple[str, str, str], int]]:
    """Pack the documents of the page by id, those with the largest absolute differences first, up to ``max_bytes``.

    ``steps`` are all rows of schema "traces". Returns also the step at which an answer begins to state an attribute, by
    document, point and attribute. The first document is packed even if it is larger.
    """
    packed: dict[str, str] = {}
    first_steps: dict[tuple[str, str, str], int] = {}
    size = 0
    largest_first = sorted(split.documents, key=lambda name: (-abs(split.differences.get(name, 0)), name))
    for name in largest_first:
        steps_of_points: dict[str, list[Row]] = {}
        of_document = steps.filter(pc.equal(steps["document"], name)).sort_by("step")
        for row in of_document.to_pylist():
            steps_of_points.setdefault(row["point"], []).append(row)
        document = _document(split, name, steps_of_points, encode(split.documents[name]["text"]), memory)
        block = _pack(document)
        size += len(block)
        if packed and size > max_bytes:
            break
        packed[name] = block
        first_steps |= _first_steps(document)
    return packed, first_steps


def _first_steps(document: Mapping[str, Any]) -> dict[tuple[str, str, str], int]:
    """The step at which each answer begins to state an attribute, by document, point and attribute.

    ``document`` is the result of :func:`_document`. Attributes that an answer does not state are left out.
    """
    first_steps = {}
    for point in document["points"]:
        for value in point["values"]:
            if value["first"] is not None:
                attribute = document["facts"][value["fact"]][0]
                first_steps[document["id"], point["label"], attribute] = value["first"]
    return first_steps


def _which_documents(n_shown: int, n_documents: int) -> str:
    """The sentences at the top of a page on which documents it shows, and in which order."""
    order = "The documents are ordered by the mean CAS of UT-ACA's points minus that of InfLLM's."
    if n_shown < n_documents:
        return (
            f"This page has {n_shown} of {n_documents} documents, because more would make it too large: those with the "
            f"largest differences between UT-ACA and InfLLM. The others are only in the table above. {order}"
        )
    return f"This page has all {n_shown} documents. {order}"


def answer_page(
    title: str,
    about: str,
    document: str,
    answer: Row,
    steps: Sequence[Row],
    text: TokenizedText,
    memory: schema.MemorySettings,
) -> str:
    """Make the viewer of a single answer about any document, without scores, as HTML.

    ``title`` and ``about`` are the page's heading and the sentences below it, ``document`` is the document's text.
    ``answer`` is a row of schema "answers", ``steps`` are rows of schema "traces", ``text`` has the tokens of the
    document for the reader, whose block memory is ``memory``.
    """
    name = answer["document"]
    label = answer["point"]
    document_row = {"text": document, "person": title, "facts": [], "spans": []}
    split = _Split("answers", {name: document_row}, {label: answer}, {label: "answers"}, {(name, label): answer})
    packed = _pack(_document(split, name, {label: steps}, text, memory))
    names = {label: Named(label, "", of_answer(answer).family)}
    return _page(title, about, split, names, {name: packed}, None, label)


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
    overview: Mapping[str, Any] | None,
    lead: str,
) -> str:
    """Fill the template of the page; ``title`` is its heading, ``about`` the sentences below that.

    ``names`` are those of the points by label, ``packed`` the compressed documents by id, and ``overview`` the
    overview table (:func:`_overview_table`), None for a page without one. The answer of the point ``lead`` comes first.
    """
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
        "where": overview,
        "lead": lead,
        "labelled": bool(split.verdicts),
        "documents": documents,
    }
    return fill(__package__, "traces.html", content)


def _rounded(value: float | None) -> float | None:
    """A figure to four decimals; None if it is undefined, because JSON has no NaN."""
    return None if value is None or np.isnan(value) else round(float(value), 4)


@dataclass(frozen=True)
class _Split:
    """The answers of a split, with all that a page shows of them except their steps.

    ``documents`` are rows of schema "documents" by id, in the order of the page. ``points`` has any one answer of each
    point, which names its method and settings, and ``sections`` the section of ``decode`` that shows the point, both by
    the point's label. ``answers`` are rows of schema "answers" by document and label, ``judged`` is the frame of all
    scores. ``verdicts`` are rows of schema "trace_labels" by document, label and step. ``differences`` are UT-ACA -
    InfLLM in CAS by document, for each document with both.
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
    """Read the answers of a split with their scores and labels; the arguments are those of :func:`page`.

    Raises :class:`UserError` if a document is missing, or if there is no answer.
    """
    by_id = {document["id"]: document for document in documents}
    # One answer of each point, by label.
    points: dict[str, Row] = {}
    by_answer: dict[tuple[str, str], Row] = {}
    for row in rows(answers, "answers"):
        if row["document"] not in by_id:
            raise UserError(
                f"document {row['document']!r} has answers, but the documents file does not have it; remove the files "
                "of answers and documents, and run again"
            )
        points.setdefault(row["point"], row)
        by_answer[row["document"], row["point"]] = row
    if not by_answer:
        raise UserError(f"{answers[0]} has no answers; make it again with at least one document")
    judged = read(scores, "scores").to_pandas().astype({"cas": float})
    differences = _differences(judged, points)
    answered = {name for name, _ in by_answer}
    ids = sorted(answered, key=lambda name: (-differences.get(name, -np.inf), name))
    split = by_id[ids[0]]["split"]
    sections = _sections(split, points, config)
    verdicts = {}
    for row in rows(labels, "trace_labels") if labels else ():
        verdicts[row["document"], row["point"], row["step"]] = row
    return _Split(
        split,
        {name: by_id[name] for name in ids},
        {label: points[label] for label in sections},
        sections,
        by_answer,
        judged,
        verdicts,
        differences,
    )


def _sections(split: str, labels: Iterable[str], config: schema.Config) -> dict[str, str]:
    """The section of ``decode`` that shows each point of a split, by label, in the order of the sections.

    A point belongs to the first section that lists it; the section named like the split comes first. Points that the
    config no longer decodes stand with those of that section.
    """
    sections = sorted(config.sections(split), key=lambda section: section != split)
    shown_by: dict[str, str] = {}
    for section in sections:
        for point in config.decoded(section):
            shown_by.setdefault(point.label, section)
    section_of = {label: shown_by.get(label, split) for label in labels}
    order = [split, *sections]
    return dict(sorted(section_of.items(), key=lambda item: order.index(item[1])))


def _differences(judged: pd.DataFrame, points: Mapping[str, Row]) -> dict[str, float]:
    """UT-ACA - InfLLM in mean CAS by document, for each document with both; ``judged`` are rows of schema "scores".

    The mean is first over the attributes of a point, then over the ``points`` of a method.
    """
    # Column "method" below holds decoders. "utaca" and "infllm" are compared; both use block memory.
    decoders = {label: of_answer(row).decoder for label, row in points.items()}
    decoder = judged["point"].map(decoders).rename("method")
    by_point = judged.groupby(["document", decoder, "point"])["cas"].mean()
    by_method = by_point.groupby(["document", "method"]).mean()
    two_columns = by_method.unstack("method").reindex(columns=["utaca", "infllm"])
    return (two_columns["utaca"] - two_columns["infllm"]).dropna().to_dict()


def _overview_table(
    split: _Split, shown: Mapping[str, str], first_steps: Mapping[tuple[str, str, str], int]
) -> dict[str, list[Any]]:
    """Make the table above the answers: mean CAS of each point, in all, by attribute, and by document.

    A cell of the latter two is a pair: mean CAS (None if nothing was judged), and the address of the value with the
    lowest CAS ("" if it is in no document that the page shows). ``shown`` has the page's documents as keys;
    ``first_steps`` has the step at which an answer begins to state an attribute, by document, point and attribute.
    """
    place = {name: number for number, name in enumerate(split.documents)}

    def cell(judged: pd.DataFrame | None) -> list[Any]:
        """The cell over these scores; None stands for no scores at all."""
        if judged is None:
            return [None, ""]
        mean = _rounded(judged["cas"].mean())
        on_page = judged[judged["document"].isin(list(shown))]
        if on_page.empty:
            return [mean, ""]
        on_page = on_page.assign(place=on_page["document"].map(place))
        # The lowest CAS, and among equal ones the first in the page's order; failed judgements (NaN) are sorted last.
        worst = on_page.sort_values(["cas", "place"], kind="stable").iloc[0]
        document, point, attribute = worst["document"], worst["point"], worst["attribute"]
        step = first_steps.get((document, point, attribute), 0)
        return [mean, fragment(document, point, step)]

    def lines(column: str, key: str, values: Sequence[str]) -> list[dict[str, Any]]:
        """A line of cells, one a point, for each of the ``values`` of a column of scores; ``key`` names the value."""
        groups = dict(list(split.judged.groupby([column, "point"], sort=False)))
        result = []
        for value in values:
            cells = [cell(groups.get((value, point))) for point in split.points]
            result.append({key: value, "cells": cells})
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
    """Write ``content`` as compressed JSON in base64; equal contents give equal strings."""
    block = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(block.encode(), mtime=0)).decode()


# A document


def _document(
    split: _Split, name: str, steps: Mapping[str, Sequence[Row]], text: TokenizedText, memory: schema.MemorySettings
) -> dict[str, Any]:
    """What the page shows of a document: its text by block, its facts and its answers.

    ``name`` is the document's id, and ``text`` has its tokens. ``steps`` are rows of schema "traces" of each point, in
    the order of steps. Steps name tokens by their places in ``pieces``, the list of the texts of the tokens that occur.
    Raises :class:`UserError` if the document was decoded with other tokens.
    """
    document = split.documents[name]
    answers = _answers_about(split, name, len(text.offsets))
    judged = split.judged[split.judged["document"] == name]
    layout = memory.layout
    n_blocks = layout.blocks(len(text.offsets))
    starts = [start for start, _ in text.offsets]
    biography = [span for span in document["spans"] if span["kind"] == "biography"]
    # The place in `pieces` of each token id that occurs, in the order in which they occur.
    places: dict[int, int] = {}
    selected_blocks: set[int] = set()
    for label in answers:
        for row in steps.get(label, []):
            best_tokens = row["top_tokens"] + row["tentative_top_tokens"]
            for token in (row["token"], row["tentative_token"], *best_tokens):
                places.setdefault(token, len(places))
            selected_blocks.update(*row["selected"])
    facts = []
    for fact in document["facts"]:
        # (0, 0) if the document does not have the value as it is written, which then has no blocks.
        start, end = source(document, fact["value"]) or (0, 0)
        blocks = _covered(start, end, starts, layout, n_blocks) if end else ()
        facts.append([fact["attribute"], fact["value"], document["text"][start:end], list(blocks)])
    blocks_of_biography: set[int] = set()
    for span in biography:
        blocks_of_biography.update(_covered(span["start"], span["end"], starts, layout, n_blocks))
    selected = sorted(selected_blocks)
    texts = []
    for block in selected:
        start, end = _extent(block, text, layout)
        texts.append(_segments(document["text"], start, end, biography))
    points = [_point(split, answer, judged, steps.get(label, []), places) for label, answer in answers.items()]
    return {
        "id": name,
        "person": document["person"],
        "question": next(iter(answers.values()))["question"],
        "facts": facts,
        "tokens": len(text.offsets),
        "init": memory.n_init,
        "local": memory.n_local,
        "size": memory.block_size,
        "blocks": n_blocks,
        "told": sorted(blocks_of_biography),
        "selected": _deltas(selected),
        "texts": texts,
        "pieces": [text.piece(token) for token in places],
        "points": points,
    }


def _answers_about(split: _Split, name: str, n_tokens: int) -> dict[str, Row]:
    """The answers about the document ``name`` by label of the point, in the order of the points.

    Raises :class:`UserError` if one was decoded from other than ``n_tokens`` tokens.
    """
    answers = {}
    for label in split.points:
        answer = split.answers.get((name, label))
        if not answer:
            continue
        if answer["n_context"] != n_tokens:
            raise UserError(
                f"document {name!r} has {n_tokens} tokens, but its answers were made when it had "
                f"{answer['n_context']}; generate them again with this reader"
            )
        answers[label] = answer
    return answers


def _covered(start: int, end: int, starts: Sequence[int], layout: Layout, n_blocks: int) -> range:
    """The blocks, of ``n_blocks`` in all, that have tokens of the characters [start, end).

    ``starts`` are the character offsets at which the document's tokens start.
    """
    # The first and the last of these tokens, counted from the first token of block 0, which follows the initial tokens.
    first = max(0, bisect_right(starts, start) - 1 - layout.n_init)
    last = bisect_left(starts, end) - 1 - layout.n_init
    return range(first // layout.block_size, min(n_blocks, last // layout.block_size + 1))


def _extent(block: int, text: TokenizedText, layout: Layout) -> tuple[int, int]:
    """The characters [start, end) of a block, up to the start of the next block, so that spaces are included.

    Question and answer may fill blocks too; such a block has no characters of the document.
    """

    def character(token: int) -> int:
        """Where the token at this position starts; past the last token, where the document ends."""
        offset = text.offsets[token][0] if token < len(text.offsets) else text.offsets[-1][1]
        return max(0, offset)

    first = layout.first_token(block)
    return character(first), character(first + layout.block_size)


def _segments(text: str, start: int, end: int, biography: Sequence[Row]) -> list[str]:
    """Cut ``text[start:end]`` into alternating segments of padding and biography, padding first.

    ``biography`` are the spans of the text that belong to the biography.
    """
    # Every second segment, from the second on, is biography; padding between two of its spans may be empty.
    cuts = [start]
    for span in sorted(biography, key=lambda span: span["start"]):
        if span["start"] < end and span["end"] > start:
            cuts += [max(start, span["start"]), min(end, span["end"])]
    return [text[a:b] for a, b in pairwise([*cuts, end])]


def _deltas(ids: Sequence[int]) -> list[int]:
    """The first of ascending numbers, then the difference of each to the one before; they compress better."""
    return np.diff(np.asarray(ids, dtype=np.int64), prepend=0).tolist()


# An answer


def _point(
    split: _Split, answer: Row, judged: pd.DataFrame, steps: Sequence[Row], pieces: Mapping[int, int]
) -> dict[str, Any]:
    """What the page shows of an answer.

    ``judged`` are all scores of the document, ``steps`` the answer's rows of schema "traces". ``pieces`` has the place
    of each token id in the page's list of texts (:func:`_document`).
    """
    name = answer["document"]
    label = answer["point"]
    own_scores = judged[judged["point"] == label]
    # With None for NaN, which JSON lacks.
    scores = own_scores.astype(object).where(own_scores.notna(), None)
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
        "cas": _rounded(own_scores["cas"].mean()) if len(own_scores) else None,
        "values": _values(steps, scores, split.documents[name]),
        "steps": shown_steps,
    }


def _values(steps: Sequence[Row], judged: pd.DataFrame, document: Row) -> list[dict[str, Any]]:
    """What an answer says of each fact of its document: the first and last step, the prediction and its score.

    ``judged`` are the answer's scores. The steps are None for a fact that the answer does not state.
    """
    attributes = [fact["attribute"] for fact in document["facts"]]
    steps_of_attributes = _steps_of_attributes(steps, document["person"], attributes)
    scores = {row["attribute"]: row for row in judged.to_dict("records")}
    values = []
    for number, attribute in enumerate(attributes):
        steps_of_value = steps_of_attributes.get(attribute, [None])  # None is then both the first and the last
        value: dict[str, Any] = {"fact": number, "first": steps_of_value[0], "last": steps_of_value[-1]}
        if row := scores.get(attribute):
            cas = _rounded(row["cas"])
            reason = row["failure"] if cas is None else row["reason"]
            value |= {"said": row["prediction"], "cas": cas, "reason": reason or ""}
        values.append(value)
    return values


def _steps_of_attributes(steps: Sequence[Row], person: str, attributes: Sequence[str]) -> dict[str, list[int]]:
    """The steps whose tokens state each attribute in an answer; if an attribute is stated twice, the first time."""
    texts = [row["text"] for row in steps]
    # Where the text of each step ends in the answer's text.
    ends = list(accumulate(map(len, texts)))
    steps_of_attributes: dict[str, list[int]] = {}
    # Without attributes, nothing was asked that the answer could be aligned with.
    parts = align("".join(texts), person, attributes).parts if attributes else ()
    for part in parts:
        steps_of_part = []
        for step, (text, end) in enumerate(zip(texts, ends, strict=True)):
            start = end - len(text)
            if text and start < part.end and part.start < end:
                steps_of_part.append(step)
        if steps_of_part:
            steps_of_attributes.setdefault(part.attribute, steps_of_part)
    return steps_of_attributes


def _step(row: Row, pieces: Mapping[int, int], labelled: Row | None) -> dict[str, Any]:
    """What the page shows of a step, a row of schema "traces"; ``pieces`` are as for :func:`_point`.

    ``labelled`` is the step's row of schema "trace_labels", if it has one.
    """
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
        # "alarm": the detector distrusted a right token; "caught": a wrong one; "miss": it trusted a wrong one.
        if labelled["uncertain"]:
            step["verdict"] = "alarm" if correct else "caught"
        elif not correct:
            step["verdict"] = "miss"
    return step


def _pass(row: Row, prefix: str, pieces: Mapping[int, int]) -> dict[str, Any]:
    """A pass of a step: its token, budget, margin, log-probability, and its best tokens with their logits.

    ``row`` is of schema "traces"; ``prefix`` is "" for the accepted pass and "tentative_" for the token's first pass.
    """
    top = zip(row[f"{prefix}top_tokens"], row[f"{prefix}top_logits"], strict=True)
    return {
        "token": pieces[row[f"{prefix}token"]],
        "k": row[f"{prefix}k"],
        "margin": round(row[f"{prefix}margin"], 3),
        "logprob": round(row[f"{prefix}logprob"], 4),
        "top": [[pieces[token], round(logit, 2)] for token, logit in top],
    }
