"""Labels of the tokens that detectors judged along an answer, by the rules."""

import factories
import pytest
from configs import point
from conftest import ROOT

from utaca.errors import UserError
from utaca.judging.roles import Role
from utaca.judging.trace_labels import label_traces
from utaca.runs.compose import compose

END, PART = "<end>", "<part of a character>"
# The value of the answer is wrong, which tells nothing of a token that it replaced.
PIECES = ["The", " birth", " date", " of", " Ada", " Lopez", " is", " 3", " May", " 1999", ".", END]
LABELS = [1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1]
"""Of the accepted tokens after the first one, which was tried under K_max and is not judged."""
DOCUMENT = {"id": "d0", "person": "Ada Lopez", "facts": [{"attribute": "birth date", "value": "3 May 1974"}]}
POINT = point("utaca", 4, "sub.2")


@pytest.mark.parametrize(
    ("step", "tried", "label"),
    [
        (8, " May", 1), (9, " 1974", 1), (9, " 19", 1), (9, " 18", 0), (7, " unknown", 2), (7, " May", 1), (7, " (", 1),
        (1, " death", 0), (5, " Gomez", 0), (8, ".", 1), (9, END, 0), (9, PART, None),
    ],
)  # fmt: skip
def test_a_replaced_token_is_labelled_as_the_end_of_the_answer(step: int, tried: str, label: int | None) -> None:
    tokens = [*PIECES, tried]

    def decode(ids) -> str:
        return "".join({END: "", PART: "�"}.get(tokens[number], tokens[number]) for number in ids)

    answer = factories.answer("d0", POINT, n_generated=len(PIECES), finish="eos")
    traces = [
        factories.step(
            "d0", POINT.label, number, "" if piece == END else piece, 4 if number == 0 else 2, token=number,
            rolled_back=number == step, p_hallucinated=0.2, p_correct=0.5, p_unknown=0.3,
        ) | ({"tentative_token": tokens.index(tried)} if number == step else {})
        for number, piece in enumerate(PIECES)
    ]  # fmt: skip
    labeller = Role.of("labeller", compose({}, ROOT))
    rows = label_traces([answer], traces[::-1], [DOCUMENT], decode, labeller).to_pylist()
    expected = dict(enumerate(LABELS, start=1)) | {step: label}
    assert {row["step"]: row["label"] for row in rows} == expected
    row = rows[step - 1]
    assert (row["text"], row["uncertain"]) == ("" if tried in (END, PART) else tried, True)
    assert (row["replaced"], row["source"] == "failed") == (tried != PIECES[step], label is None)
    requests = [item["answers"][0]["request"] for item in labeller.used]
    assert len(requests) == len(set(requests)), "what is asked twice is counted once"
    with pytest.raises(
        UserError, match=r"operating point utaca-K4-sub2 has 11 tokens, but its answer has 12; decode it again"
    ):
        label_traces([answer], traces[1:], [DOCUMENT], decode, labeller)
    with pytest.raises(UserError, match="document 'd0' has answers, but the documents file does not have it"):
        label_traces([answer], traces, [], decode, labeller)
