"""Labels of the tokens that a detector judged while its method decoded answers (UT-ACA's generations).

Judged tokens are the tokens of first passes with fewer than K_max blocks. The labeller of the trajectories labels
them, as part of whole answers (:func:`utaca.judging.labels.label`).

* A token that was accepted in its first pass, or that the pass with the expanded context repeated, has the label that
  it gets in the accepted answer.
* A replaced token is in no answer, since its continuation was never decoded. It is labelled as the last token of an
  answer that ends with it, after the accepted tokens: is the text up to this token right? A value cut off there is only
  incomplete, yet "19" of "1974" looks like another year. So if the last word of the text begins a word of the
  reference, the labeller gets that word in full; if the value is only punctuation so far, the labeller gets the first
  word of the reference too. A last word that is wrong, or already complete, is left as it is.
* A control token ends the answer: it is correct if the answer has every requested sentence.
* A replaced token that holds a part of a character has no label, for the rest of the character is unknown.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
_Texts = dict[tuple[str, Text], list[dict[str, Any]]]
"""The tokens of texts to label, by the document's name and the text."""


class _Judged(NamedTuple):
    """A judged token: its ``row`` of the result so far, and the two tokens that its labels come from.

    ``labelled`` is the token whose label the row gets, ``accepted`` the token at that step of the accepted answer. Both
    are as :func:`utaca.judging.labels.label_tokens` takes tokens, which labels them in place.
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
    labels are null as for :func:`utaca.judging.labels.label`. If several tokens need the same request,
    ``labeller.used`` has it once.

    Raises:
        UserError: an answer has another number of tokens than its trace, or no document.
    """
    by_id = {document["id"]: document for document in documents}
    steps: dict[tuple[str, str], list[Row]] = {}
    for row in traces:
        steps.setdefault((row["document"], row["point"]), []).append(row)

    # The tokens of each text to label, by document and text; several judged tokens may share a text.
    texts: _Texts = {}
    judged: list[_Judged] = []
    for answer in answers:
        name = answer["document"]
        trace = sorted(steps.get((name, answer["point"]), []), key=lambda row: row["step"])
        if len(trace) != answer["n_generated"]:
            raise UserError(
                f"the trace of document {name!r} at operating point {answer['point']} has {len(trace)} tokens, but its "
                f"answer has {answer['n_generated']}; decode it again"
            )
        if name not in by_id:
            raise UserError(
                f"document {name!r} has answers, but the documents file does not have it; remove the files of answers "
                "and documents, and run again"
            )
        judged += _judged_tokens(answer, trace, by_id[name], decode, texts)

    if texts:
        # The number distinguishes the texts of a document.
        numbered = {(name, number): tokens for number, ((name, _), tokens) in enumerate(texts.items())}
        label_tokens(numbered, by_id.values(), labeller)
    _drop_repeated(labeller)
    for token in judged:
        for column in ("label", "source", "reason"):
            token.row[column] = token.labelled[column]
        token.row["accepted_label"] = token.accepted["label"]
    return pa.Table.from_pylist([token.row for token in judged], schema=SCHEMAS["trace_labels"])


def _judged_tokens(
    answer: Row, trace: Sequence[Row], document: Row, decode: Callable[[Sequence[int]], str], texts: _Texts
) -> Iterator[_Judged]:
    """Yield the judged tokens of an answer, and add to ``texts`` the texts in which they must be labelled.

    ``trace`` are the answer's rows of schema "traces" in the order of their steps.
    """
    name = document["id"]
    accepted = tuple((row["token"], row["text"]) for row in trace)
    whole = (accepted, answer["finish"] == "eos")
    for step, row in enumerate(trace):
        # A first pass with fewer blocks than K_max (the answer's budget), whose token the detector gave probabilities.
        is_judged = row["tentative_k"] < answer["budget"] and row["p_correct"] is not None
        if not is_judged:
            continue
        accepted_token = texts.setdefault((name, whole), _tokens(whole))[step]
        piece = row["text"]
        labelled = accepted_token
        is_replaced = row["tentative_token"] != row["token"]
        if is_replaced:
            piece, text = _cut(accepted[:step], row["tentative_token"], document, decode)
            labelled = _UNREADABLE if text is None else texts.setdefault((name, text), _tokens(text))[step]
        result = {column: answer[column] for column in _OF_ANSWER}
        result |= {column: row[column] for column in _OF_TOKEN}
        result["token"] = row["tentative_token"]
        result["text"] = piece
        result["k"] = row["tentative_k"]
        result["uncertain"] = row["rolled_back"]
        result["replaced"] = is_replaced
        yield _Judged(result, labelled, accepted_token)


def _drop_repeated(labeller: Role) -> None:
    """Keep one row of ``labeller.used`` for each request: texts that begin alike share sentences, and so requests."""
    by_requests: dict[Any, dict[str, Any]] = {}
    for item in labeller.used:
        requests = tuple(answer["request"] for answer in item["answers"])
        # An item without answers has no requests, so its name stands for it.
        by_requests[requests or item["item"]] = item
    labeller.used[:] = by_requests.values()


def _cut(
    before: tuple[tuple[int, str], ...], token: int, document: Row, decode: Callable[[Sequence[int]], str]
) -> tuple[str, Text | None]:
    """The text that a replaced ``token`` adds to the tokens ``before`` it, and the text to label it in.

    The latter is the answer up to this token, with the rest of a word that it begins (see the module); None if the
    token is part of a character.
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
    # A token that adds no text is a control token, which ends the answer.
    return piece, (tokens, not piece)


def _rest_of_word(answer: str, document: Row) -> str:
    """What completes the last word of a cut answer to a word of the reference: "74" after "19" for "1974".

    "" if the answer does not end within a value, or if its last word is over ("19,"), is a word of the reference, or
    begins none.
    """
    facts = {fact["attribute"]: fact["value"] for fact in document["facts"]}
    parts = align(answer, document["person"], list(facts)).parts if facts else ()
    if not parts or parts[-1].end < len(answer):
        return ""
    value = answer[parts[-1].start :].lower()
    reference_words = _WORD.findall(facts[parts[-1].attribute])
    words = _WORD.findall(value)
    # Every word begins with "": a value that is only punctuation gets the first word of the reference.
    begun = words[-1] if words else ""
    is_cut = value.endswith(begun)  # else a space or punctuation follows the word
    if not is_cut or begun in [word.lower() for word in reference_words]:
        return ""
    for word in reference_words:
        if word.lower().startswith(begun):
            return word[len(begun) :]
    return ""


def _tokens(text: Text) -> list[dict[str, Any]]:
    """Make the tokens of a text, as :func:`utaca.judging.labels.label_tokens` takes them."""
    pieces, has_ended = text
    tokens = [{"step": step, "token": token, "text": piece, "finish": ""} for step, (token, piece) in enumerate(pieces)]
    tokens[-1]["finish"] = "eos" if has_ended else "length"
    return tokens
