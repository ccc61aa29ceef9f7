"""Rows of the stages' files, with defaults for all columns that a test does not set, and files of them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from utaca.records import write
from utaca.settings.budgets import resolve, share_of
from utaca.settings.schema import OperatingPoint

Row = dict[str, Any]


def answer(document: str, of: OperatingPoint, **columns: Any) -> Row:
    """A row of schema "answers" of an operating point; by default 288 keys more than selected are attended."""
    # A share is one of a document of 100 blocks.
    budget = resolve(of.budget, 100)
    selected = columns.get("selected", 16.0 * budget)
    attended = columns.get("attended", selected + 288)
    trigger = "detector" if of.detected else str(of.trigger)
    return {
        "document": document, "split": "test", "point": of.label, "method": of.method, "base": of.base,
        "budget": budget, "share": share_of(of.budget), "policy": of.policy, "trigger": trigger if of.adaptive else "",
        "detector": (of.detector or "utaca") if of.detected else "",
        "seed": of.seed if of.detected else None, "drafts": of.drafts, "draft_budget": of.draft_budget, "passes": 10,
        "question": "?", "text": "", "n_context": 900, "dropped": 100,
        "n_generated": 10, "finish": "eos", "selected": selected, "attended": attended,
        "selected_with_tentative": selected, "attended_with_tentative": attended, "rollbacks": 0,
        "effective_rollbacks": 0, "prefill_seconds": 1.0, "decode_seconds": 1.0, "peak_bytes": 1,
    } | columns  # fmt: skip


def score(document: str, point: str, attribute: str = "hobby", cas: float | None = 1.0, **columns: Any) -> Row:
    """A row of schema "scores"; without CAS the judgement failed."""
    return {
        "document": document, "split": "test", "point": point, "attribute": attribute, "prediction": "x",
        "reference": "y", "cas": cas, "string_match": 0.5, "reason": "", "failure": "timeout" if cas is None else None,
    } | columns  # fmt: skip


def step(document: str, point: str, number: int, text: str = "", k: int = 1, **columns: Any) -> Row:
    """A row of schema "traces", accepted in its first pass unless ``columns`` say otherwise."""
    row = {
        "document": document, "point": point, "step": number, "token": 10 + number, "text": text, "k": k,
        "margin": 2.0, "logprob": -0.5, "rolled_back": False, "attended": 20, "rows": 1, "top_tokens": [10 + number, 7],
        "top_logits": [3.0, 1.0], "selected": [[0]],
    } | columns  # fmt: skip
    first = {f"tentative_{name}": row[name] for name in ("token", "k", "margin", "logprob", "top_tokens", "top_logits")}
    return first | {"scores": [[0.0] * len(layer) for layer in row["selected"]]} | row


def long_document(name: str, text: str, facts: Mapping[str, str], **columns: Any) -> Row:
    """A row of schema "documents" about Ada Lopez, with the evidence of each fact where its value first stands."""
    evidence = [
        {"attribute": attribute, "text": value, "start": text.index(value), "end": text.index(value) + len(value)}
        for attribute, value in facts.items()
        if value in text
    ]
    return {
        "id": name, "split": "test", "person": "Ada Lopez", "text": text, "n_tokens": 0, "spans": [],
        "facts": [{"attribute": attribute, "value": value} for attribute, value in facts.items()],
        "evidence": evidence, "corpus": "embedded",
    } | columns  # fmt: skip


def saved(folder: Path, answers: Iterable[Row], scores: Iterable[Row], name: str = "") -> tuple[list[Path], list[Path]]:
    """Files of answers and of the scores made from them, one of each."""
    paths = [folder / f"{name}answers.parquet"], [folder / f"{name}scores.parquet"]
    write(paths[0][0], "answers", answers)
    write(paths[1][0], "scores", scores, made_from=paths[0])
    return paths


def inputs(answers: Sequence[Path], scores: Sequence[Path], split: str = "test") -> dict[str, Sequence[Path]]:
    """Files of answers and scores by the names that the makers of tables know."""
    return {f"{split}_answers": answers, f"{split}_scores": scores}
