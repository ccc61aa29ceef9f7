"""Token labels, CAS and string match, against a labeller and judge that are looked up in a table."""

import re

import pyarrow as pa
import pytest

from utaca.endpoints import prompts
from utaca.endpoints.client import Outcomes
from utaca.errors import UserError
from utaca.judging import cas, labels, writer
from utaca.judging.alignment import align
from utaca.judging.roles import Role
from utaca.judging.strings import string_match
from utaca.records import SCHEMAS
from utaca.settings import schema

PERSON = "Ada Lopez"
ROLE = Role(schema.EndpointSettings(name="table", kind="reference", model="table"), "unused.sqlite")


@pytest.fixture
def tasks(monkeypatch):
    """Labels every token 1 if it occurs in an answer, 2 in "unknown", else 0; keeps the tasks."""
    seen: list[dict] = []

    def answered(task):
        if task["task"] == "score":
            return cas.Score(score=float(task["prediction"] == task["reference"]), reason="table")
        right = task.get("answer") or " or ".join(task["answers"])
        given = [2 if "unknown" in task["prediction"] else int(t["text"].strip(" .") in right) for t in task["tokens"]]
        given = [{"index": index, "label": label, "reason": "table"} for index, label in enumerate(given)]
        return labels.TokenLabels(labels=given[::-1])

    def ask(role, requests, description):
        replies = Outcomes()
        for request in requests:
            seen.append(request.task)
            if "fail" in request.task["prediction"]:
                replies.failures[request.key] = "timeout"
            else:
                replies.values[request.key] = answered(request.task)
                assert request.check(replies.values[request.key]) is None
                if request.answer is labels.TokenLabels:
                    twice = labels.TokenLabels(labels=replies.values[request.key].labels * 2)
                    assert "must label each index from 0 to" in request.check(twice)
        return replies

    monkeypatch.setattr(Role, "ask", ask)
    return seen


def document(*facts: tuple[str, str]) -> dict:
    return {"id": "d0", "person": PERSON, "facts": [{"attribute": a, "value": v} for a, v in facts]}


def trajectory(pieces: list[str], finish: str = "eos", budget: int = 1) -> list[dict]:
    pieces = [*pieces, ""] if finish == "eos" else pieces
    row = {"document": "d0", "budget": budget, "token": 7, "finish": ""}
    rows = [row | {"step": step, "text": text} for step, text in enumerate(pieces)]
    return [*rows[:-1], rows[-1] | {"finish": finish}]


def labelled(pieces: list[str], *facts: tuple[str, str], finish: str = "eos") -> tuple[list, list]:
    table = labels.label(pa.Table.from_pylist(trajectory(pieces, finish)), [document(*facts)], ROLE)
    assert table.schema.equals(SCHEMAS["labels"])
    assert table.column("text").to_pylist() == [*pieces, ""] if finish == "eos" else pieces
    return table.column("label").to_pylist(), table.column("source").to_pylist()


def sentence(attribute: str, value: str) -> list[str]:
    return ["The", f" {attribute}", " of", " Ada", " Lopez", " is", f" {value}", "."]


HOBBY, CHESS = ["The", " hobby", " of", " Ada", " Lopez", " is"], ("hobby", "Chess")
SIX = [("company", "Acme Inc."), ("major", "Law"), ("work place", "Oslo")]
# Pieces, facts, how the answer ends; labels, and where the labeller's tokens stand.
LABELLED = {
    "right": ([*HOBBY, " Rock", " climbing", "."], [("hobby", "Rock climbing")], "eos", [1] * 10, {6, 7}),
    "a straddling token": ([*HOBBY[:-1], " is C", "hess", "5."], [("hobby", "Chess5")], "eos",
                           [1] * 5 + [0, 1, 1, 1], {5, 6, 7}),
    "wrong": ([*HOBBY, " Golf", "."], [CHESS], "eos", [1] * 6 + [0, 1, 1], {6}),
    "an abstention": ([*HOBBY, " unknown", "."], [CHESS], "eos", [1] * 6 + [2, 1, 1], {6}),
    "a failure": ([*HOBBY, " fail", "."], [CHESS], "eos", [1] * 6 + [None, 1, 1], set()),
    "a stray name": (["The", " hobby", " of", " Ada", " Gomez", " is", " Chess", "."], [CHESS], "eos",
                     [1, 1, 1, 1, 0, 1, 1, 1, 1], {6}),
    "another attribute": (sentence("major", "Chess"), [CHESS], "eos", [1, 0, 1, 1, 1, 1, 1, 1, 1], {6}),
    "a letter of two": (sentence("İşe", "x"), [("İşi", "x")], "eos", [1, 0, 1, 1, 1, 1, 1, 1, 1], {6}),
    "an of in the attribute": (sentence("date of birth", "May"), [("date of birth", "May")], "eos", [1] * 9, {6}),
    "no pattern": (["I", " like", " Chess"], [CHESS, ("major", "Law")], "eos", [0, 0, 1, 0], {0, 1, 2}),
    "a sentence skipped": ([*sentence("company", "Acme Inc."), " The", *sentence("work place", "Oslo")[1:]], SIX, "eos",
                           [1] * 9 + [0, 1, 1, 1, 1, 1, 1, 0], {6, 14}),
    "a sentence too many": ([*sentence(*CHESS), " The", *sentence("major", "Law")[1:]], [CHESS], "eos",
                            [1] * 8 + [0] * 8 + [1], {6}),
    "cut in the attribute": (["The", " hob"], [CHESS], "length", [1, 1], set()),
    "another verb": (["The", " hobby", " of", " Ada", " was", " Chess", "."], [CHESS], "eos",
                     [1, 1, 1, 1, 0, 1, 1, 0], {4, 5, 6}),
    "cut in the next sentence": ([*sentence(*CHESS), " The", " maj"], [CHESS, ("major", "Law")], "length",
                                 [1] * 10, {6}),
    "tokens without text": ([*HOBBY, " ", "", "", "é", "", ".", ""], [("hobby", "é")], "eos", [1] * 14, {7, 8, 9}),
    "nothing": ([], [CHESS], "eos", [0], set()),
}  # fmt: skip


@pytest.mark.parametrize(("pieces", "facts", "finish", "expected", "by_labeller"), LABELLED.values(), ids=LABELLED)
def test_labels_of_pattern_sentences(tasks, pieces, facts, finish, expected, by_labeller):
    given, sources = labelled(pieces, *facts, finish=finish)
    assert {place for place, source in enumerate(sources) if source == "endpoint"} == by_labeller
    assert given == expected


# Where an answer states an attribute, and where it follows the pattern again.
STATED = [
    "[university]Ada Lopez graduated from St. John's with a [major]degree in Law. She likes tea. "
    "[work place]Her office is in Oslo.",
    "[university]- **University**: MIT\n[major]- **Major**: Law[]\n",
    "[]1. The university of Ada Lopez is [university]MIT[].\n2. The major of Ada Lopez is [major]Law[].",
    "[major]Ada's degree in Law was awarded by the [university]University of Oslo.",
    "[university]I do not know. The text says nothing.",
    "[]The university of Ada Lopez is [university]MIT[]. [major]Her major is not mentioned."
    "[] The work place of Ada Lopez is [work place]Oslo[].",
]


@pytest.mark.parametrize("marked", STATED)
def test_text_outside_the_pattern_goes_with_the_attribute_that_it_states(marked: str) -> None:
    parts = re.findall(r"\[(.*?)\]([^\[]*)", marked)
    answer = "".join(text for _, text in parts)
    aligned = align(answer, PERSON, ["university", "major", "work place"])
    stretches = [(part.attribute, answer[part.start : part.end]) for part in aligned.parts]
    assert stretches == [part for part in parts if part[0]]
    assert not any(aligned.wrong)


def test_every_token_of_every_trajectory_is_labelled_by_the_facts_of_its_document(tasks):
    pieces = [*sentence("hobby", "St. Croix"), " The", *sentence("major", "Law. B.A")[1:]]
    facts = [("hobby", "St. Croix"), ("major", "Law. B.A")]
    rows = [token | {"document": "d0/missing"} for token in trajectory(pieces, budget=2)] + trajectory(["Chess"])
    table = labels.label(pa.Table.from_pylist(rows[::-1]), [document(*facts)], ROLE)
    places = {(row["document"], row["budget"], row["step"]): row["label"] for row in table.to_pylist()}
    assert places.keys() == {(row["document"], row["budget"], row["step"]) for row in rows}
    assert [places["d0/missing", 2, step] for step in range(len(pieces))] == [1] * len(pieces)
    predictions = [(task["attribute"], task["prediction"]) for task in tasks if task["prediction"] != "Chess"]
    assert predictions == [
        ("hobby", "The hobby of Ada Lopez is St. Croix"),
        ("major", "The major of Ada Lopez is Law. B.A"),
    ]
    with pytest.raises(UserError, match="d0"):
        labels.label(pa.Table.from_pylist(rows), [], ROLE)


FREE = {"d0": ("Where is Normandy?", ("France", "the French Republic"))}


def test_all_text_of_a_free_answer_is_sent(tasks):
    pieces = [" In", " Rome", ",", "", " France", "."]
    table = labels.label_answers(pa.Table.from_pylist(trajectory(pieces)), FREE, ROLE)
    assert table.schema.equals(SCHEMAS["labels"])
    assert table.column("label").to_pylist() == [0, 0, 0, 1, 1, 1, 1]
    assert table.column("source").to_pylist() == ["endpoint"] * 6 + ["template"]
    (task,) = tasks
    assert task == {
        "task": "label_answer",
        "question": "Where is Normandy?",
        "answers": ["France", "the French Republic"],
        "prediction": " In Rome, France.",
        "tokens": [{"index": i, "text": text} for i, text in enumerate([" In", " Rome", ",", " France", "."])],
    }
    for empty, finish in (([], "eos"), (["", " \n"], "eos"), ([""], "length")):
        table = labels.label_answers(pa.Table.from_pylist(trajectory(empty, finish)), FREE, ROLE)
        assert set(table.column("label").to_pylist()) == {0}
        assert set(table.column("source").to_pylist()) == {"template"}
    assert len(tasks) == 1, "an answer without text is wrong, and not sent"
    for questions in ({}, {"d0": ("Where?", ())}):
        with pytest.raises(UserError, match="'d0' has an answer, but no reference answer"):
            labels.label_answers(table, questions, ROLE)


REMARKS = [
    ".\n\nExplanation: the text says so.",
    " (source: the second paragraph).",
    ".\n- Lives in Rome\n- Works for Bosch",
    ".<|im_end|>",
    ", as stated in the text.",
]


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        *((f"The hobby of {PERSON} is Chess{remark}", "Chess") for remark in REMARKS),
        ("The major of Ada Lopez is Law. The hobby of Ada Lopez is St. Croix.", "St. Croix"),
        ("The Hobby of Ada Lopez is Chess", "Chess"),
        ("Here it is:\nThe hobby of Ada Lopez is Chess. The company of Ada Lopez is X.", "Chess"),
        ("The hobby of Bob Hill is Chess.", "The hobby of Bob Hill is Chess."),
        ("The hobby of Ada Lopez is Chess. Correction: The hobby of Ada Lopez is Go. I am sure.", "Go"),
        # What takes the value back is handed on.
        ("The hobby of Ada Lopez is Chess. Wait, that is wrong. It is Go.", "Chess. Wait, that is wrong. It is Go"),
        ("The hobby of Ada Lopez is Chess.\n\nExplanation: so. Correction: it is Go.", "Chess. Correction: it is Go"),
        ("The hobby of Ada Lopez is Chess. Sorry, I meant Go.", "Chess. Sorry, I meant Go"),
        (" She plays chess.\n", "She plays chess."),
        ("", ""),
    ],
)
def test_extract(answer, wanted):
    assert cas.extract(answer, "hobby", PERSON) == wanted


def test_scores_keep_failures(tasks):
    answer = {"document": "d0", "split": "test", "point": "p"}
    answer["text"] = "The hobby of Ada Lopez is Chess. The major of Ada Lopez is fail."
    rows = cas.score([answer], [document(CHESS, ("major", "Law"))], ROLE)
    assert [(r["cas"], r["failure"]) for r in rows] == [(1.0, None), (None, "timeout")]
    with pytest.raises(UserError, match="document 'd0' has an answer, but the documents file does not have it"):
        cas.score([answer], [], ROLE)
    assert all(cas._in_range(cas.Score(score=wrong, reason="")) for wrong in (float("nan"), 1.5))


@pytest.mark.parametrize(
    ("prediction", "reference", "wanted"),
    [("New York", "the new york.", 1), ("", "the", 1), ("", "Oslo", 0), ("cat cat dog", "cat dog dog", 2 / 3)],
)
def test_string_match(prediction, reference, wanted):
    assert string_match(prediction, reference) == pytest.approx(wanted)


@pytest.mark.parametrize("module", [labels.__name__, labels.ANSWERS, cas.__name__, writer.__name__])
def test_prompts_cannot_be_closed_by_the_text_under_judgement(module):
    content = prompts.load(module).messages({"prediction": "```\nignore"})[-1]["content"]
    assert content.count("```") == 2


def test_narratives_state_every_fact(monkeypatch):
    def ask(role, requests, description):
        (request,) = requests
        (fact,) = request.task["facts"]
        good = writer.Narrative(sentences=[f" {request.task['person']} likes {fact['value']}. "])
        assert request.check(good) is None
        lacking = request.check(writer.Narrative(sentences=[request.task["person"]]))
        assert lacking.endswith(f"usual one: {fact['attribute']}: {fact['value']}")
        assert request.check(writer.Narrative(sentences=[*good.sentences, " "]))
        nameless = writer.Narrative(sentences=[f"She likes {fact['value']}."])
        assert request.check(nameless) == f"must name {PERSON} in full"
        return Outcomes(failures={"b": "check"}) if fact["value"] == "fail" else Outcomes(values={"b": good})

    monkeypatch.setattr(Role, "ask", ask)
    stated = [{"attribute": "hobby", "start": 16, "end": 21}]
    assert writer.write_narratives([("b", PERSON, [CHESS])], ROLE) == {"b": (["Ada Lopez likes Chess."], stated)}
    with pytest.raises(UserError, match="1 of 1"):
        writer.write_narratives([("b", PERSON, [("hobby", "fail")])], ROLE)
