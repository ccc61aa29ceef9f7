"""Labels of the tokens that a detector judged while its method decoded answers (UT-ACA's generations).

Judged tokens are the tokens of first passes with fewer than K_max blocks. The labeller of the trajectories labels
them, as part of whole answers (:func:`utaca.judging.labels.label`).

* A token that was accepted at once, or that the pass with the expanded context repeated, has the label that it gets in
  the accepted answer.
* A replaced token is in no answer, since its continuation was never decoded. It is labelled as the last token of an
  answer that ends with it, after the accepted tokens: is the text up to this token right? A value cut off there is only
  incomplete, yet "19" of "1974" looks like another year. So if the last word of the text begins a word of the
  reference, the labeller gets that word in full; if the value is only punctuation so far, the labeller gets the first
  word of the reference too. A last word that is wrong, or already complete, is left as it is.
* A control token ends the answer: it is correct if the answer has every requested sentence.
* A replaced token that holds a part of a character has no label, for the rest of the character is unknown.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from utaca.errors import UserError
from utaca.judging.alignment import align
from utaca.judging.labels import label_tokens
from utaca.judging.roles import Role
from utaca.records import SCHEMAS

COLUMNS = [
    "document", "point", "step", "token", "text", "rolled_back",
    "tentative_token", "tentative_k", "p_hallucinated", "p_correct", "p_unknown",
]  # fmt: skip
"""Columns of the traces that :func:`label_traces` needs."""

_OF_ANSWER = ("document", "split", "point", "budget", "policy", "detector", "seed")
_OF_TOKEN = ("step", "p_hallucinated", "p_correct", "p_unknown")
_WORD = re.compile(r"[^\W\d_]+|\d+")
_UNREADABLE = {"label": None, "source": "failed", "reason": "a part of a character, whose rest was not decoded"}

Row = Mapping[str, Any]
Text = tuple[tuple[tuple[int, str], ...], bool]
"""A text to label: token and text of every step, and whether the last token ends the answer."""


class _Judged(NamedTuple):
    """A judged token: its ``row`` so far, the token whose label the row gets, and the token that was accepted.

    ``labelled`` and ``accepted`` are as :func:`utaca.judging.labels.label_tokens` takes tokens; it labels them in
    place.
    """

    row: dict[str, Any]
    labelled: dict[str, Any]
    accepted: dict[str, Any]


def label_traces(
    answers: Iterable[Row],
    traces: Iterable[Row],
    documents: Iterable[Row],
    decode: Callable[[Sequence[int]], str],
    labeller: Role,
) -> pa.Table:
    """Label the tokens that detectors judged; one row of schema "trace_labels" per token, in the order of ``answers``.

    ``answers`` have rows of schema "answers", ``traces`` those of schema "traces" with :data:`COLUMNS` at least,
    ``documents`` of "documents". ``decode`` gives the text of token ids, without control tokens. If a request failed,
    labels are null as for :func:`utaca.judging.labels.label`. A request needed twice is in ``labeller.used`` once.

    Raises:
        UserError: an answer has another number of tokens than its trace, or no document.
    """
    by_id = {document["id"]: document for document in documents}
    steps: dict[tuple[str, str], list[Row]] = {}
    for row in traces:
        steps.setdefault((row["document"], row["point"]), []).append(row)

    texts: dict[tuple[str, Text], list[dict[str, Any]]] = {}
    judged: list[_Judged] = []
    for answer in answers:
        name = answer["document"]
        trace = sorted(steps.get((name, answer["point"]), []), key=lambda row: row["step"])
        if len(trace) != answer["n_generated"]:
            raise UserError(
                f"the trace of document {name!r} at operating point {answer['point']} has {len(trace)} tokens, its "
                f"answer {answer['n_generated']}; decode it again"
            )
        if name not in by_id:
            raise UserError(f"document {name!r} has answers but is not in the documents file; make both again")
        accepted = tuple((row["token"], row["text"]) for row in trace)
        for step, row in enumerate(trace):
            if row["tentative_k"] >= answer["budget"] or row["p_correct"] is None:
                continue
            replaced = row["tentative_token"] != row["token"]
            whole = (accepted, answer["finish"] == "eos")
            kept = texts.setdefault((name, whole), _tokens(whole))[step]
            piece = row["text"]
            labelled = kept
            if replaced:
                piece, text = _cut(accepted[:step], row["tentative_token"], by_id[name], decode)
                labelled = _UNREADABLE if text is None else texts.setdefault((name, text), _tokens(text))[step]
            result = {column: answer[column] for column in _OF_ANSWER}
            result |= {column: row[column] for column in _OF_TOKEN}
            result["token"] = row["tentative_token"]
            result["text"] = piece
            result["k"] = row["tentative_k"]
            result["uncertain"] = row["rolled_back"]
            result["replaced"] = replaced
            judged.append(_Judged(result, labelled, kept))

    if texts:
        # The number distinguishes the texts of a document.
        numbered = {(name, number): tokens for number, ((name, _), tokens) in enumerate(texts.items())}
        label_tokens(numbered, by_id.values(), labeller)
    _drop_repeated(labeller)
    for result, labelled, kept in judged:
        for column in ("label", "source", "reason"):
            result[column] = labelled[column]
        result["accepted_label"] = kept["label"]
    return pa.Table.from_pylist([token.row for token in judged], schema=SCHEMAS["trace_labels"])


def _drop_repeated(labeller: Role) -> None:
    """Keep each request of the labeller once: texts that begin alike have common sentences."""
    by_requests: dict[Any, dict[str, Any]] = {}
    for item in labeller.used:
        requests = tuple(answer["request"] for answer in item["answers"])
        by_requests[requests or item["item"]] = item
    labeller.used[:] = by_requests.values()


def _cut(
    before: tuple[tuple[int, str], ...], token: int, document: Row, decode: Callable[[Sequence[int]], str]
) -> tuple[str, Text | None]:
    """The text of ``token`` after the tokens ``before``, and the answer up to it to be labelled.

    The answer is None if the token is part of a character.
    """
    whole = decode([*(number for number, _ in before), token])
    if whole.endswith("�"):
        return "", None
    start = sum(len(text) for _, text in before)
    piece = whole[start:]
    tokens = (*before, (token, piece))
    rest = _rest_of_word(whole, document) if piece else ""
    if rest:
        tokens = (*tokens, (token, rest))
    return piece, (tokens, not piece)


def _rest_of_word(answer: str, document: Row) -> str:
    """The rest of the reference's word that the end of a cut answer's value begins; "" if there is no such word."""
    facts = {fact["attribute"]: fact["value"] for fact in document["facts"]}
    parts = align(answer, document["person"], list(facts)).parts if facts else ()
    if not parts or parts[-1].end < len(answer):
        return ""
    value = answer[parts[-1].start :].lower()
    reference = _WORD.findall(facts[parts[-1].attribute])
    words = _WORD.findall(value)
    begun = words[-1] if words else ""
    if begun in [word.lower() for word in reference] or not value.endswith(begun):
        return ""
    for word in reference:
        if word.lower().startswith(begun):
            return word[len(begun) :]
    return ""


def _tokens(text: Text) -> list[dict[str, Any]]:
    """The tokens of a text, as :func:`utaca.judging.labels.label_tokens` takes them."""
    pieces, ended = text
    tokens = [{"step": step, "token": token, "text": piece, "finish": ""} for step, (token, piece) in enumerate(pieces)]
    tokens[-1]["finish"] = "eos" if ended else "length"
    return tokens
