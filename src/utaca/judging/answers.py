"""Three-way token labels of answers in free words, as questions of benchmarks are answered.

There is no sentence to align an answer with, so the labeller endpoint labels all of its text by the question and its
reference answers. The end-of-answer token is 1 if the answer says anything, otherwise 0: whether the answer is right is
the other tokens' matter.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from utaca.errors import UserError
from utaca.judging import labels
from utaca.judging.roles import Role
from utaca.records.schemas import HALLUCINATED, TEMPLATE


def label_answers(
    trajectories: pa.Table, questions: Mapping[str, tuple[str, tuple[str, ...]]], labeller: Role
) -> pa.Table:
    """Label every token of the trajectories of answers.

    ``questions`` maps a document to the question without text and instructions, and its reference answers, of which any
    one is right. They are those of the whole text also if a prompt held a part of it. All else is as for
    :func:`utaca.judging.labels.label`.

    Raises:
        UserError: a trajectory's question is missing or has no reference answer.
    """
    answers = labels.answers_of(trajectories)
    requests: list[labels.Question] = []
    for (name, budget), tokens in answers.items():
        question, references = questions.get(name, ("", ()))
        if not references:
            raise UserError(
                f"question {name!r} was decoded but has no reference answer in its set; decode the set again"
            )
        units, end = labels.units_of(tokens)
        text = "".join(unit.text for unit in units)
        if text.strip():
            task = {"task": "label_answer", "question": question, "answers": list(references), "prediction": text}
            requests.append(labels.question(f"{name}/{budget}", __name__, task, units))
            end.settle(1, TEMPLATE, "")
        else:
            end.settle(0, TEMPLATE, "ends before anything is said")
            for unit in units:
                unit.settle(HALLUCINATED, TEMPLATE, "says nothing")
    labels.ask(requests, labeller)
    return labels.table_of(answers)
