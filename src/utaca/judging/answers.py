"""Three-way token labels of answers in free words, as questions of benchmarks are answered.

There is no sentence to align an answer with, so the labeller endpoint is asked about all of its text, beside the
question and its reference answers. The end-of-answer token is 1 where the answer says anything, otherwise 0: whether
what it says is right is the other tokens' matter.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from utaca.errors import UserError
from utaca.judging import tokens
from utaca.judging.roles import Role
from utaca.judging.tokens import settle
from utaca.records.schemas import HALLUCINATED, TEMPLATE


def label_answers(
    trajectories: pa.Table,
    questions: Mapping[str, tuple[str, tuple[str, ...]]],
    labeller: Role,
) -> pa.Table:
    """Label every token of the trajectories of answers.

    ``questions`` gives, by the column document, the question without text and instructions, and its reference answers,
    of which any one is right. They are those of the whole text also where a prompt held a part of it. All else is as
    for :func:`utaca.judging.labels.label`. Raises :class:`UserError` where a trajectory's question is missing or has no
    reference answer.
    """
    answers = tokens.answers(trajectories)
    asked: list[tokens.Question] = []
    for (name, budget), own in answers.items():
        question, references = questions.get(name, ("", ()))
        if not references:
            raise UserError(
                f"question {name!r} was decoded but has no reference answer in its set; decode the set again"
            )
        units, end = tokens.parted(own)
        text = "".join(unit.text for unit in units)
        said = bool(text.strip())
        settle(end, int(said), TEMPLATE, "" if said else "ends before anything is said")
        if said:
            task = {"task": "label_answer", "question": question, "answers": list(references), "prediction": text}
            asked.append(tokens.question(f"{name}/{budget}", __name__, task, units))
        for unit in () if said else units:
            settle(unit.rows, HALLUCINATED, TEMPLATE, "says nothing")
    tokens.ask(asked, labeller)
    return tokens.table(answers)
