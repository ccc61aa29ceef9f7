"""The table of recall of the gold block, and of CAS given recall: whether retrieval selected what an answer needed.

The gold blocks of a fact hold the tokens of its value in the document (``evidence`` of schema "documents"). A layer
recalls the fact if it retrieves a gold block, or a neighbour of one, at the step that begins the value in the answer's
sentence on the attribute. Facts whose value is attended to without retrieval, and facts on which the answer has no
sentence, are excluded and counted.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from utaca.errors import UserError
from utaca.judging.alignment import about
from utaca.layout import Layout
from utaca.readers.prompts import Prompts
from utaca.readers.tokenizer import load_tokenizer
from utaca.records import check_source, read, rows
from utaca.records.tables import reading
from utaca.reporting.registry import Files
from utaca.reporting.statistics import NAN, Draws, Row
from utaca.reporting.table import framed
from utaca.settings import schema
from utaca.settings.budgets import in_order

NEIGHBOURS = 1
"""Number of blocks on either side of a gold block that count as gold: they may say whose the value is."""
NO_EVIDENCE, NOT_SAID, IN_VIEW = "n_no_evidence", "n_not_said", "n_in_view"
"""Reasons to exclude a fact: its position in the document is unknown, the answer has no sentence on the fact, or its
value is attended to without retrieval."""
FIXED = "infllm"
"""The method of points with a fixed budget."""
_BATCH = 1024
"""Rows of a file of traces that are read at once."""


def shown(config: schema.Config) -> dict[str, schema.OperatingPoint]:
    """The points that the table shows, by label: fixed budgets in order (:func:`in_order`), then other points.

    They are the points of the test split that are decoded from block memory, except those of the sections ablation and
    drafts.
    """
    sections = [section for section in schema.SECTIONS if section not in (schema.ABLATION, schema.DRAFTS)]
    in_blocks = [label for label in config.shown("test", *sections) if config.operating[label].in_blocks]

    fixed = [label for label in in_blocks if config.operating[label].method == FIXED]
    fixed.sort(key=lambda label: in_order(config.operating[label].budget))
    others = [label for label in in_blocks if label not in fixed]
    return {label: config.operating[label] for label in (*fixed, *others)}


@dataclass
class Fact:
    """A fact that a question asked for at an operating point, and whether the answer's passes retrieved it.

    ``cas`` is the answer's CAS on the fact, NaN if the judgement failed. ``excluded`` is the reason for leaving the
    fact out, or "". For a counted fact, ``recalled`` [layers] marks the layers that recalled it, and ``chance`` is the
    probability that as many random blocks recall it.
    """

    point: str
    document: str
    cas: float
    excluded: str
    recalled: np.ndarray | None = None
    chance: float = NAN


_Facts = dict[tuple[str, str, str], Fact]  # by point, document and attribute


def facts(files: Files, prompts: Prompts, config: schema.Config) -> list[Fact]:
    """Read every fact that the points of :func:`shown` were asked for, and whether it was recalled.

    ``files`` are ``test_documents``, ``test_answers``, ``test_scores`` and ``test_traces``. ``prompts`` are those of
    the config's reader.

    Raises:
        UserError: files belong to different runs, a document was decoded with other tokens, or evidence is not in its
            document.
    """
    for path in files["test_scores"]:
        check_source(path, files["test_answers"])
    labels = shown(config)
    columns = ["document", "point", "question", "n_context"]
    answers = {}
    for row in rows(files["test_answers"], "answers", columns):
        if row["point"] in labels:
            answers[row["point"], row["document"]] = row
    if not answers:
        raise UserError(f"{files['test_answers'][0]} has no answers; make it again with at least one document")
    scores = read(files["test_scores"], "scores", ["document", "point", "attribute", "cas"]).to_pandas()
    cas = scores.set_index(["point", "document", "attribute"])["cas"].astype(float).to_dict()
    documents = _documents(files["test_documents"], {name for _, name in answers}, prompts)
    found: _Facts = {}
    for point, name in answers:
        if name not in documents:
            raise UserError(
                f"{files['test_answers'][0]} has an answer about document {name}, which {files['test_documents'][0]} "
                "does not have; remove both files and run again"
            )
        for attribute, spans in documents[name].spans.items():
            # Taken as not said, until the answer's steps show that it was.
            reason = NOT_SAID if spans else NO_EVIDENCE
            found[point, name, attribute] = Fact(point, name, cas[point, name, attribute], reason)
    layout = config.reader.memory.layout
    for path in files["test_traces"]:
        _add_retrieval(found, path, answers, documents, layout, prompts)
    return list(found.values())


@dataclass(frozen=True)
class _Document:
    """A document's person and its length in tokens.

    ``spans`` has, by attribute, the token indices of each statement of the fact: an array [tokens] per statement.
    """

    person: str
    length: int
    spans: dict[str, list[np.ndarray]]


def _documents(paths: Sequence[str | Path], names: set[str], prompts: Prompts) -> dict[str, _Document]:
    """Read the documents with these ids, by id; raises :class:`UserError` if evidence is not in its document."""
    documents = {}
    for path in paths:
        for row in rows(path, "documents", ["id", "person", "facts", "text", "evidence"]):
            if row["id"] not in names:
                continue
            # Of each token, the character offsets [start, end) in the text.
            starts, ends = np.array(prompts.document_offsets(row["text"])).reshape(-1, 2).T
            spans: dict[str, list[np.ndarray]] = {fact["attribute"]: [] for fact in row["facts"]}
            for evidence in row["evidence"] or []:
                attribute = evidence["attribute"]
                start = evidence["start"]
                end = evidence["end"]
                if start is None or end is None or attribute not in spans:
                    continue
                if not 0 <= start < end or row["text"][start:end] != evidence["text"]:
                    raise UserError(
                        f"{path}: the evidence of attribute {attribute!r} is not in the text of document "
                        f"{row['id']}; remove the file and make it again"
                    )
                # The tokens that overlap the value by at least one character.
                spans[attribute].append(np.flatnonzero((starts < end) & (ends > start)))
            documents[row["id"]] = _Document(row["person"], len(starts), spans)
    return documents


class _Needed(NamedTuple):
    """A fact whose value begins at a step, which chose from ``n_far`` blocks; its ``gold`` blocks are among these."""

    fact: Fact
    gold: set[int]
    n_far: int


def _add_retrieval(
    all_facts: _Facts,
    path: str | Path,
    answers: Mapping[tuple[str, str], Mapping[str, Any]],
    documents: Mapping[str, _Document],
    layout: Layout,
    prompts: Prompts,
) -> None:
    """Set ``excluded``, ``recalled`` and ``chance`` of the facts whose answers have their steps in a file of traces.

    ``answers`` are rows of schema "answers" by point and document.
    """
    steps = read(path, "traces", ["document", "point", "step", "text"]).to_pandas()
    # By index of a row of the file: the facts whose values begin at this step.
    needed: dict[int, list[_Needed]] = {}
    for (point, name), of_answer in steps.groupby(["point", "document"], sort=False):
        answer = answers.get((point, name))
        if answer is None:
            continue
        document = documents[name]
        if answer["n_context"] != document.length:
            raise UserError(
                f"document {name} has {document.length} tokens, but its answers were made when it had "
                f"{answer['n_context']}; generate them again with this reader"
            )
        n_prompt = document.length + len(prompts.question(answer["question"]))
        of_answer = of_answer.sort_values("step", kind="stable")
        texts = list(of_answer["text"])
        for attribute, spans in document.spans.items():
            fact = all_facts[point, name, attribute]
            place = _value_start(texts, attribute, document.person)
            if not spans or place is None:
                continue  # It stays excluded for the reason that `facts` set.
            # A token is decoded by the pass over the token before it.
            n_far = layout.n_far(n_prompt - 1 + int(of_answer["step"].iloc[place]))
            gold = _gold(spans, layout, n_far)
            if gold:
                needed.setdefault(int(of_answer.index[place]), []).append(_Needed(fact, gold, n_far))
            else:
                fact.excluded = IN_VIEW
    for index, layers in _selected(path, np.array(sorted(needed), dtype=np.int64)):
        for each in needed[index]:
            _set_recall(each, layers)


def _set_recall(needed: _Needed, layers: Sequence[Sequence[int]]) -> None:
    """Count the fact, and set which layers recalled it; ``layers`` has the block ids that each layer selected."""
    # Gold blocks and their neighbours; an id below 0 or from `n_far` on is not a far block, and is never selected.
    wanted: set[int] = set()
    for block in needed.gold:
        wanted.update(range(block - NEIGHBOURS, block + NEIGHBOURS + 1))
    fact = needed.fact
    fact.excluded = ""
    fact.recalled = np.array([not wanted.isdisjoint(layer) for layer in layers])
    n_wanted = sum(0 <= block < needed.n_far for block in wanted)
    k = len(layers[0])  # all layers select equally many blocks
    # One minus the probability that k random far blocks have none of those wanted.
    fact.chance = 1 - math.comb(needed.n_far - n_wanted, k) / math.comb(needed.n_far, k)


def _value_start(texts: Sequence[str], attribute: str, person: str) -> int | None:
    """Index of the token that begins an attribute's value in an answer; None if no sentence of it states a value.

    ``texts`` are those of the answer's tokens. Tokens without text right before the value count as its start: they are
    the first bytes of its first character.
    """
    sentence = about("".join(texts), attribute, person)
    if sentence is None or sentence.end <= sentence.value_start:
        return None
    # The token whose text has the first character of the value: the first one that ends after it.
    step = bisect_right(list(accumulate(map(len, texts))), sentence.value_start)
    while step and not texts[step - 1]:
        step -= 1
    return step


def _gold(spans: Sequence[np.ndarray], layout: Layout, n_far: int) -> set[int]:
    """Ids of the far blocks that hold tokens of a fact; empty if any statement of the fact has no far token.

    ``spans`` has the token indices [tokens] of each statement of the fact. The first ``n_far`` blocks are far: they are
    attended to only if they are retrieved.
    """
    gold: set[int] = set()
    for tokens in spans:
        blocks = (tokens[tokens >= layout.n_init] - layout.n_init) // layout.block_size
        far = set(blocks[blocks < n_far].tolist())
        if not far:
            return set()
        gold |= far
    return gold


def _selected(path: str | Path, indices: np.ndarray) -> Iterator[tuple[int, list[list[int]]]]:
    """Yield (index, selected block ids by layer) of those rows of a file of traces that ``indices`` [n] name.

    The indices are sorted. Column ``selected`` makes up most of the file, so it is read in batches, and only the needed
    rows are kept.
    """
    start = 0
    with reading(path), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(_BATCH, columns=["selected"]):
            chosen = indices[(indices >= start) & (indices < start + len(batch))]
            yield from zip(chosen.tolist(), batch.column(0).take(chosen - start).to_pylist(), strict=True)
            start += len(batch)


# The table


def retrieval(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table from files: recall of the gold block by point, and CAS of recalled and of missed facts."""
    prompts = Prompts(load_tokenizer(config.reader.path, config.reader.revision))
    return recall(facts(files, prompts, config), config)


def recall(all_facts: Sequence[Fact], config: schema.Config) -> pd.DataFrame:
    """Make the table from facts: one row per point, with the recall of the layer that recalls most facts.

    A row has two means of CAS: over the facts that this layer recalled, and over the facts that it missed.
    """
    documents = sorted({fact.document for fact in all_facts})
    draws = Draws.of(len(documents), config, "test")
    table = []
    for label, point in shown(config).items():
        of_point = [fact for fact in all_facts if fact.point == label]
        counted = [fact for fact in of_point if not fact.excluded]
        excluded = Counter(fact.excluded for fact in of_point)
        document = np.array([documents.index(fact.document) for fact in counted], dtype=np.int64)
        hits = np.array([fact.recalled for fact in counted]) if counted else np.zeros((0, 0), dtype=bool)
        cas = np.array([fact.cas for fact in counted], dtype=np.float64)
        n_facts, n_layers = hits.shape
        best = int(hits.sum(0).argmax()) if n_facts else None
        judged = ~np.isnan(cas)
        # If no fact counts, there is no best layer. `judged` is empty then, and serves as an empty `recalled`.
        recalled = judged if best is None else hits[:, best]
        chance = float(np.mean([fact.chance for fact in counted])) if counted else NAN
        row: Row = {
            "point": label,
            "adaptive": point.method != FIXED,
            "k": point.budget,
            "n_documents": len(documents),
            "n_asked": len(of_point),
            NO_EVIDENCE: excluded[NO_EVIDENCE],
            NOT_SAID: excluded[NOT_SAID],
            IN_VIEW: excluded[IN_VIEW],
            "n_facts": n_facts,
            "n_failed_judgements": int((~judged).sum()),
            "layers": n_layers,
            "best_layer": None if best is None else best + 1,
            "chance_pct": 100 * chance,
        }
        draws.mean_of(recalled, document).put(row, "recall_pct", 100)
        for name, chosen in (("recalled", recalled & judged), ("missed", ~recalled & judged)):
            row[f"n_{name}"] = int(chosen.sum())
            draws.mean_of(cas, document, chosen).put(row, f"cas_{name}_pct", 100)
        # A fact's share of the layers that recall it, and whether any layer does.
        draws.mean_of(hits.sum(1) / max(1, n_layers), document).put(row, "mean_recall_pct", 100)
        draws.mean_of(hits.any(1), document).put(row, "any_recall_pct", 100)
        table.append(row)
    return framed(pd.DataFrame(table).astype({"best_layer": "Int64"}), len(documents))
