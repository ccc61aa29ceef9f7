"""The trace viewer: one HTML file that shows answers token by token, with what the reader retrieved at each step.

The template is ``traces.html`` beside this module, filled by :mod:`utaca.pages`. A document is one compressed block
of the page, unpacked by the browser when it is chosen; of its text the page holds the blocks that some step selected.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from utaca.errors import UserError
from utaca.pages import fill
from utaca.readers.prompts import Prompts
from utaca.records import SCHEMAS, read
from utaca.reporting.people import run_in_words
from utaca.settings import schema

# Documents beyond this size of the page are left out, and the page says so.
MAX_BYTES = 16 * 2**20

# The scores of blocks would be as much again as all that is shown.
_COLUMNS = [name for name in SCHEMAS["traces"].names if name != "scores"]

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
    documents: Sequence[Row],
    answers: Sequence[str | Path],
    traces: Sequence[str | Path],
    scores: Sequence[str | Path],
    encode: Callable[[str], Text],
    config: schema.Config,
    *,
    max_bytes: int = MAX_BYTES,
) -> str:
    """The viewer of a suite, as HTML.

    ``documents`` has rows of schema "documents", the others are files of schemas "answers", "traces" and "scores". At
    most ``config.report.traced_documents`` documents are shown, drawn alike in every run, and no more than fit into
    ``max_bytes``. Raises :class:`UserError` where a document was decoded with other tokens than ``encode`` gives.
    """
    by_id = {document["id"]: document for document in documents}
    answered = read(answers, "answers").to_pandas()
    judged = read(scores, "scores", ["document", "point", "cas"]).to_pandas()
    cas = judged.groupby(["document", "point"])["cas"].mean()
    names = list(dict.fromkeys(answered["document"]))
    if missing := [name for name in names if name not in by_id]:
        raise UserError(f"document {missing[0]!r} has answers but is not in the documents file; make both again")
    drawn = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    drawn = sorted(drawn[: config.report.traced_documents])
    steps = _steps(traces, drawn)
    items, size = [], 0
    for name in drawn:
        own = answered[answered["document"] == name].to_dict("records")
        document = by_id[name]
        text = encode(document["text"])
        if off := [row for row in own if row["n_context"] != len(text.offsets)]:
            raise UserError(
                f"document {name!r} has {len(text.offsets)} tokens, but was decoded as {off[0]['n_context']}; decode "
                "the suite again with this reader"
            )
        means = {row["point"]: float(cas.get((name, row["point"]), np.nan)) for row in own}
        packed = _pack(_document(document, own, steps, means, text, config))
        size += len(packed)
        if items and size > max_bytes:
            break
        items.append({"id": name, "person": document["person"], "packed": packed})
    suite = answered["suite"].iloc[0]
    return fill(
        __package__,
        "traces.html",
        {
            "title": f"Traces: {suite}",
            "about": f"{len(items)} of {len(names)} documents of suite {suite}. {run_in_words(config, 'judge')} "
            "All people and facts are fictitious.",
            "documents": items,
        },
    )


def _steps(paths: Sequence[str | Path], names: Sequence[str]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows of the traces of some documents, by document and point, in order."""
    steps: dict[tuple[str, str], list[dict[str, Any]]] = {}
    wanted = pa.array(names, pa.string())
    for path in paths:
        table = read(path, "traces", _COLUMNS)
        for row in table.filter(pc.is_in(table["document"], wanted)).to_pylist():
            steps.setdefault((row["document"], row["point"]), []).append(row)
    for rows in steps.values():
        rows.sort(key=lambda row: row["step"])
    return steps


def _pack(content: Any) -> str:
    """JSON, compressed, in base64; the same for the same content."""
    block = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(block.encode(), mtime=0)).decode()


def _document(
    document: Row,
    answers: Sequence[Row],
    steps: Mapping[tuple[str, str], Sequence[Row]],
    cas: Mapping[str, float],
    text: Text,
    config: schema.Config,
) -> dict[str, Any]:
    memory = config.reader.memory
    n_blocks = max(0, (len(text.offsets) - memory.n_init) // memory.block_size)
    starts = [start for start, _ in text.offsets]
    told = [span for span in document["spans"] if span["kind"] == "biography"]
    traces = [(answer, steps.get((document["id"], answer["point"]), [])) for answer in answers]
    pieces: dict[int, int] = {}
    for _, rows in traces:
        for row in rows:
            tops = row["top_tokens"] + row["tentative_top_tokens"]
            for token in (row["token"], row["tentative_token"], *tops):
                pieces.setdefault(token, len(pieces))
    points = [_point(answer, rows, cas[answer["point"]], pieces) for answer, rows in traces]
    selected = sorted({b for _, rows in traces for row in rows for layer in row["selected"] for b in layer})
    return {
        "id": document["id"],
        "person": document["person"],
        "question": answers[0]["question"],
        "facts": [[fact["attribute"], fact["value"]] for fact in document["facts"]],
        "tokens": len(text.offsets),
        "init": memory.n_init,
        "local": memory.n_local,
        "size": memory.block_size,
        "blocks": n_blocks,
        "told": sorted({b for span in told for b in _covered(span, starts, memory, n_blocks)}),
        "selected": _deltas(selected),
        "texts": [_segments(document["text"], *_extent(b, text, memory), told) for b in selected],
        "pieces": [text.piece(token) for token in pieces],
        "points": points,
    }


def _covered(span: Row, starts: Sequence[int], memory: schema.Memory, n_blocks: int) -> range:
    """Blocks that hold tokens of a span of characters."""
    first = max(0, bisect_right(starts, span["start"]) - 1 - memory.n_init)
    last = bisect_left(starts, span["end"]) - 1 - memory.n_init
    return range(first // memory.block_size, min(n_blocks, last // memory.block_size + 1))


def _extent(block: int, text: Text, memory: schema.Memory) -> tuple[int, int]:
    """Characters of a block, up to where the next token starts: spaces belong to what they follow."""
    first = memory.n_init + block * memory.block_size
    after = first + memory.block_size
    end = text.offsets[after][0] if after < len(text.offsets) else text.offsets[after - 1][1]
    return max(0, text.offsets[first][0]), max(0, end)


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


def _point(answer: Row, rows: Sequence[Row], cas: float, pieces: Mapping[int, int]) -> dict[str, Any]:
    n = answer["n_generated"]
    return {
        "label": answer["point"],
        "method": answer["method"],
        "budget": answer["budget"],
        "policy": answer["policy"] or "",
        "selected": None if n == 0 else round(float(answer["selected"]), 1),
        "rollbacks": answer["rollbacks"],
        "finish": answer["finish"],
        "cas": None if np.isnan(cas) else round(cas, 4),
        "steps": [_step(row, pieces) for row in rows],
    }


def _step(row: Row, pieces: Mapping[int, int]) -> dict[str, Any]:
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
    if row["intervened"]:
        step["intervened"] = True
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
