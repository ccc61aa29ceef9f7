"""Whether retrieval found what an answer needed: recall of the gold block by layer, and CAS given recall.

The gold blocks of a fact hold the tokens of its value in the document (``evidence`` of schema "documents"). What counts
is the step that begins the value in the answer's sentence on the attribute: a layer recalls the fact where it retrieves
a gold block there, or a neighbour of one. A fact whose value is attended to without retrieval is left out, and so is
one that the answer has no sentence on: both are counted.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from utaca.errors import UserError
from utaca.judging.alignment import about
from utaca.layout import Layout
from utaca.readers.prompts import Prompts
from utaca.readers.tokenizer import load_tokenizer
from utaca.records import check_source, read, rows
from utaca.reporting import statistics
from utaca.reporting.registry import Files
from utaca.reporting.statistics import ByDocument, Row
from utaca.reporting.table import NAN, framed
from utaca.settings import schema

NEIGHBOURS = 1
"""Blocks on either side of a gold block that count as it: what tells whose a value is may stand beside it."""
NO_EVIDENCE, NOT_SAID, IN_VIEW = "n_no_evidence", "n_not_said", "n_in_view"
"""Why a fact is left out: where it is stated is not known, the answer has no sentence on it, it needs no retrieval."""
FIXED = "infllm"
_BATCH = 1024


def shown(config: schema.Config) -> dict[str, schema.OperatingPoint]:
    """Points of the test split decoded from block memory, by label: fixed budgets ascending, then the others."""
    known = {label: point for label, point in config.operating.items() if point.in_blocks}
    labels = [label for label in config.shown("test", *schema.SECTIONS) if label in known]
    labels.sort(key=lambda label: known[label].budget if known[label].method == FIXED else math.inf)
    return {label: known[label] for label in labels}


def prompts(config: schema.Config) -> Prompts:
    """How the config's reader is given documents and questions."""
    return Prompts(load_tokenizer(config.reader.path, config.reader.revision))


@dataclass
class Fact:
    """A fact that a point was asked for: its CAS, NaN where the judgement failed, and what retrieval made of it.

    ``aside`` says why it is left out, "" where it counts. ``recalled`` [layers] then says which layers retrieved it,
    ``chance`` how likely as many blocks drawn at random would have been to.
    """

    point: str
    document: str
    cas: float
    aside: str
    recalled: np.ndarray | None = None
    chance: float = float("nan")


def facts(files: Files, reader: Prompts, config: schema.Config) -> list[Fact]:
    """Every fact that the points of :func:`shown` were asked for; ``reader`` is from :func:`prompts`.

    ``files`` are ``test_documents``, ``test_answers``, ``test_scores`` and ``test_traces``.
    Raises :class:`UserError` where files of different runs would be mixed, where a document was decoded with other
    tokens, and where evidence is not in its document.
    """
    for path in files["test_scores"]:
        check_source(path, files["test_answers"])
    labels = set(shown(config))
    columns = ["document", "point", "question", "n_context"]
    answers = {
        (row["point"], row["document"]): row
        for row in rows(files["test_answers"], "answers", columns)
        if row["point"] in labels
    }
    if not answers:
        raise UserError(f"{files['test_answers'][0]} holds no answers; make it again with at least one document")
    scores = read(files["test_scores"], "scores", ["document", "point", "attribute", "cas"]).to_pandas()
    judged = scores.set_index(["point", "document", "attribute"])["cas"].astype(float).to_dict()
    documents = _documents(files["test_documents"], {name for _, name in answers}, reader)
    found: dict[tuple[str, str, str], Fact] = {}
    for point, name in answers:
        if name not in documents:
            raise UserError(f"{files['test_documents'][0]} lacks document {name}, which has answers; make both again")
        for attribute, spans in documents[name].spans.items():
            aside = NOT_SAID if spans else NO_EVIDENCE
            found[point, name, attribute] = Fact(point, name, judged[point, name, attribute], aside)
    memory = config.reader.memory
    layout = Layout(memory.n_init, memory.n_local, memory.block_size)
    for path in files["test_traces"]:
        _retrieved(path, answers, documents, found, layout, reader)
    return list(found.values())


@dataclass(frozen=True)
class _Document:
    """A document's person and length in tokens, and the tokens of each statement of each fact that it is asked for."""

    person: str
    length: int
    spans: dict[str, list[np.ndarray]]


def _documents(paths: Sequence[str | Path], names: set[str], reader: Prompts) -> dict[str, _Document]:
    found = {}
    for path in paths:
        for row in rows(path, "documents", ["id", "person", "facts", "text", "evidence"]):
            if row["id"] not in names:
                continue
            starts, ends = np.array(reader.document_offsets(row["text"])).reshape(-1, 2).T
            spans: dict[str, list[np.ndarray]] = {fact["attribute"]: [] for fact in row["facts"]}
            for one in row["evidence"] or []:
                if one["start"] is None or one["end"] is None or one["attribute"] not in spans:
                    continue
                if not 0 <= one["start"] < one["end"] or row["text"][one["start"] : one["end"]] != one["text"]:
                    raise UserError(
                        f"{path}: the evidence of attribute {one['attribute']!r} is not in the text of document "
                        f"{row['id']}; remove the file and make it again"
                    )
                spans[one["attribute"]].append(np.flatnonzero((starts < one["end"]) & (ends > one["start"])))
            found[row["id"]] = _Document(row["person"], len(starts), spans)
    return found


def _retrieved(
    path: str | Path,
    answers: Mapping[tuple[str, str], Mapping[str, Any]],
    documents: Mapping[str, _Document],
    found: Mapping[tuple[str, str, str], Fact],
    layout: Layout,
    reader: Prompts,
) -> None:
    """Put into the facts what the steps of a file of traces say of them."""
    steps = read(path, "traces", ["document", "point", "step", "text"]).to_pandas()
    wanted: list[tuple[int, Fact, set[int], int]] = []
    asked: dict[str, int] = {}
    for (point, name), own in steps.groupby(["point", "document"], sort=False):
        if (answer := answers.get((point, name))) is None:
            continue
        document, question = documents[name], answer["question"]
        if answer["n_context"] != document.length:
            raise UserError(
                f"document {name} has {document.length} tokens, but was decoded as {answer['n_context']}; decode it "
                "again with this reader"
            )
        if question not in asked:
            asked[question] = len(reader.question(question))
        own = own.sort_values("step", kind="stable")
        texts = list(own["text"])
        for attribute, spans in document.spans.items():
            fact, step = found[point, name, attribute], _begins(texts, attribute, document.person)
            if not spans or step is None:
                continue
            # The pass that gives a token is that of the token before it.
            n_far = layout.n_far(document.length + asked[question] - 1 + int(own["step"].iloc[step]))
            if gold := _gold(spans, layout, n_far):
                wanted.append((int(own.index[step]), fact, gold, n_far))
            else:
                fact.aside = IN_VIEW
    selected = dict(_selected(path, [row for row, *_ in wanted], len(steps)))
    for row, fact, gold, n_far in wanted:
        layers, near = selected[row], [block + by for block in gold for by in range(-NEIGHBOURS, NEIGHBOURS + 1)]
        fact.aside = ""
        fact.recalled = np.array([bool(np.isin(near, layer).any()) for layer in layers])
        hits = len({block for block in near if 0 <= block < n_far})
        k = len(layers[0])
        fact.chance = 1 - math.comb(n_far - hits, k) / math.comb(n_far, k)


def _begins(texts: Sequence[str], attribute: str, person: str) -> int | None:
    """The token of an answer that begins the value of an attribute; None where no sentence states one.

    Tokens without text before it are the first bytes of its first character.
    """
    sentence = about("".join(texts), attribute, person)
    if sentence is None or sentence.end <= sentence.value_start:
        return None
    step = bisect_right(list(accumulate(map(len, texts))), sentence.value_start)
    while step and not texts[step - 1]:
        step -= 1
    return step


def _gold(spans: Sequence[np.ndarray], layout: Layout, n_far: int) -> set[int]:
    """The far blocks that hold tokens of a fact; none where one of its statements has no far token."""
    found: set[int] = set()
    for tokens in spans:
        blocks = (tokens[tokens >= layout.n_init] - layout.n_init) // layout.block_size
        far = set(blocks[blocks < n_far].tolist())
        if not far:
            return set()
        found |= far
    return found


def _selected(path: str | Path, wanted: Sequence[int], length: int) -> Iterator[tuple[int, list[list[int]]]]:
    """The blocks that each layer retrieved in some rows of a file of traces.

    They are most of the file: it is read in parts, of which the other rows are dropped.
    """
    chosen = np.zeros(length, dtype=bool)
    chosen[list(wanted)] = True
    start = 0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_BATCH, columns=["selected"]):
            own = chosen[start : start + len(batch)]
            kept = batch.filter(pa.array(own)).column(0).to_pylist()
            yield from zip((start + np.flatnonzero(own)).tolist(), kept, strict=True)
            start += len(batch)


# The table


def retrieval(files: Files, config: schema.Config) -> pd.DataFrame:
    """Recall of the gold block by point, and CAS given recall."""
    return recall(facts(files, prompts(config), config), config)


def recall(found: Sequence[Fact], config: schema.Config) -> pd.DataFrame:
    """Recall of the gold block and CAS given recall, a row a point."""
    documents = sorted({fact.document for fact in found})
    counts = statistics.resamples(len(documents), config.scale.bootstrap, config.seed, "test")
    points = []
    for label, point in shown(config).items():
        asked = [fact for fact in found if fact.point == label]
        counted, aside = [fact for fact in asked if not fact.aside], Counter(fact.aside for fact in asked)
        of = ByDocument.of([fact.document for fact in counted], documents, counts)
        hits = np.array([fact.recalled for fact in counted]) if counted else np.zeros((0, 0), dtype=bool)
        cas = np.array([fact.cas for fact in counted], dtype=np.float64)
        n, layers = hits.shape
        best = int(hits.sum(0).argmax()) if n else None
        judged = ~np.isnan(cas)
        recalled = judged if best is None else hits[:, best]
        row: Row = {"point": label, "adaptive": point.method != FIXED, "k": point.budget}
        row |= {"n_documents": len(documents), "n_asked": len(asked)}
        row |= {why: aside[why] for why in (NO_EVIDENCE, NOT_SAID, IN_VIEW)}
        row |= {"n_facts": n, "n_failed_judgements": int((~judged).sum()), "layers": layers}
        row |= {"best_layer": None if best is None else best + 1}
        row["chance_pct"] = 100 * float(np.mean([fact.chance for fact in counted])) if counted else NAN
        of.put(row, "recall_pct", recalled, 100)
        for name, chosen in (("recalled", recalled), ("missed", ~recalled)):
            row[f"n_{name}"] = int(chosen.sum())
            of.put(row, f"cas_{name}_pct", cas, 100, chosen & judged)
        of.put(row, "mean_recall_pct", hits.sum(1) / max(1, layers), 100)
        of.put(row, "any_recall_pct", hits.any(1), 100)
        points.append(row)
    return framed(pd.DataFrame(points).astype({"best_layer": "Int64"}), len(documents))
