"""Answer the tasks of the writer, labeller and judge by rules instead of a model."""

from collections.abc import Mapping, Sequence
from typing import Any

from utaca.biographies import templates
from utaca.judging.rules import judge, labeller
from utaca.judging.rules.passages import passages


def answer(task: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a task in the form that its prompt asks for; its kind is biography, score, label or label_answer."""
    kind = task["task"]
    if kind == "biography":
        facts = [(fact["attribute"], fact["value"]) for fact in task["facts"]]
        return {"sentences": _narrative(task["person"], facts)}
    if kind == "score":
        score, reason = judge.score(task["question"], task["attribute"], task["prediction"], task["reference"])
        return {"score": score, "reason": reason}
    tokens = [(token["index"], token["text"]) for token in task["tokens"]]
    if kind == "label":
        labels = labeller.label(task["person"], task["attribute"], task["answer"], task["prediction"], tokens)
    else:
        labels = labeller.label_answer(task["question"], task["answers"], tokens)
    rows = [{"index": index, "label": label, "reason": reason} for index, label, reason in labels]
    return {"labels": rows}


def _narrative(person: str, facts: Sequence[tuple[str, str]]) -> list[str]:
    """Write a biography with values in varied forms; if the judge misses one of them, with the values as given."""
    sentences = templates.write(person, facts)
    stated = passages(" ".join(sentences), person, facts)
    if stated.keys() >= dict(facts).keys():
        return sentences
    return templates.write(person, facts, varied=False)
