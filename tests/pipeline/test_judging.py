"""Token labels, CAS and string match, against a labeller and judge that are looked up in a table."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from utaca.endpoints import prompts
from utaca.endpoints.client import Answers
from utaca.endpoints.store import identity
from utaca.errors import UserError
from utaca.judging import answers, cas, labels, tokens, writer
from utaca.judging.alignment import align
from utaca.judging.roles import Role
from utaca.judging.rules import judge
from utaca.judging.strings import string_match
from utaca.records import SCHEMAS
from utaca.settings import schema

PERSON = "Ada Lopez"
ROLE = Role(schema.Endpoint(name="table", kind="reference", model="table"), "unused.sqlite")


@pytest.fixture
def asked(monkeypatch):
    """Answers every token asked about 1 where it occurs in an answer, 2 in "unknown", else 0; keeps the tasks."""
    tasks: list[dict] = []

    def ask(role, requests, description):
        replies = Answers()
        for request in requests:
            task = request.task
            tasks.append(task)
            if "fail" in task["prediction"]:
                replies.failures[request.key] = "timeout"
                continue
            if task["task"] == "score":
                value = cas.Score(score=float(task["prediction"] == task["reference"]), reason="table")
            else:
                refused = "unknown" in task["prediction"]
                right = task.get("answer") or " or ".join(task["answers"])
                value = tokens.TokenLabels(
                    labels=[
                        {
                            "index": t["index"],
                            "label": 2 if refused else int(t["text"].strip(" .") in right),
                            "reason": "table",
                        }
                        for t in task["tokens"]
                    ]
                )
            assert request.check(value) is None
            replies.values[request.key] = value
        return replies

    monkeypatch.setattr(Role, "ask", ask)
    return tasks


def document(*facts: tuple[str, str]) -> dict:
    return {"id": "d0", "person": PERSON, "facts": [{"attribute": a, "value": v} for a, v in facts]}


def trajectory(pieces: list[str], finish: str = "eos", budget: int = 1) -> list[dict]:
    pieces = [*pieces, ""] if finish == "eos" else pieces
    return [
        {
            "document": "d0",
            "budget": budget,
            "step": i,
            "token": 7,
            "text": text,
            "finish": "" if i < len(pieces) - 1 else finish,
        }
        for i, text in enumerate(pieces)
    ]


def labelled(pieces: list[str], *facts: tuple[str, str], finish: str = "eos") -> tuple[list, list]:
    table = labels.label(pa.Table.from_pylist(trajectory(pieces, finish)), [document(*facts)], ROLE)
    assert table.schema.equals(SCHEMAS["labels"])
    assert table.column("text").to_pylist() == [*pieces, ""] if finish == "eos" else pieces
    return table.column("label").to_pylist(), table.column("source").to_pylist()


HOBBY = ["The", " hobby", " of", " Ada", " Lopez", " is"]


def test_template_and_value_tokens(asked):
    got, source = labelled([*HOBBY, " Rock", " climbing", "."], ("hobby", "Rock climbing"))
    assert got == [1] * 10
    assert source == ["template"] * 6 + ["endpoint"] * 2 + ["template"] * 2
    assert [t["text"] for t in asked[0]["tokens"]] == [" Rock", " climbing"]
    assert (asked[0]["answer"], asked[0]["attribute"], asked[0]["person"]) == ("Rock climbing", "hobby", PERSON)


def test_token_that_straddles_the_value_is_factual(asked):
    _, source = labelled([*HOBBY[:-1], " is C", "hess", "5."], ("hobby", "Chess5"))
    assert source == ["template"] * 5 + ["endpoint"] * 3 + ["template"]
    assert asked[0]["prediction"] == "The hobby of Ada Lopez is Chess5."


def test_wrong_value_and_abstention(asked):
    assert labelled([*HOBBY, " Golf", "."], ("hobby", "Chess"))[0] == [1] * 6 + [0, 1, 1]
    assert labelled([*HOBBY, " unknown", "."], ("hobby", "Chess"))[0] == [1] * 6 + [2, 1, 1]


def test_wrong_person_is_zero_from_where_the_name_strays(asked):
    got, _ = labelled(["The", " hobby", " of", " Ada", " Gomez", " is", " Chess", "."], ("hobby", "Chess"))
    assert got == [1, 1, 1, 1, 0, 1, 1, 1, 1]
    got, _ = labelled(["The", " hobby", " of", " Ada", " is", " Chess", "."], ("hobby", "Chess"))
    assert got == [1, 1, 1, 1, 0, 1, 1, 1]


def test_wrong_attribute(asked):
    got, _ = labelled(["The", " major", " of", " Ada", " Lopez", " is", " Chess", "."], ("hobby", "Chess"))
    assert got == [1, 0, 1, 1, 1, 1, 1, 1, 1]


def test_answer_without_pattern_is_factual_throughout(asked):
    got, source = labelled(["I", " like", " Chess"], ("hobby", "Chess"), ("major", "Law"))
    assert source == ["endpoint"] * 3 + ["template"]
    assert got == [0, 0, 1, 0]
    assert asked[0]["attribute"] == "hobby"


SIX = [("company", "Acme Inc."), ("major", "Law"), ("work place", "Oslo")]


def sentence(attribute: str, value: str) -> list[str]:
    return ["The", f" {attribute}", " of", " Ada", " Lopez", " is", f" {value}", "."]


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        (
            "Ada Lopez graduated from MIT with a degree in Law. She likes tea. Her office is in Oslo.",
            [
                ("university", "Ada Lopez graduated from MIT with a "),
                ("major", "degree in Law. She likes tea. "),
                ("work place", "Her office is in Oslo."),
            ],
        ),
        (
            "- **University**: MIT\n- **Major**: Law\n",
            [("university", "- **University**: MIT\n"), ("major", "- **Major**: Law")],
        ),
        (
            "1. The university of Ada Lopez is MIT.\n2. The major of Ada Lopez is Law.",
            [("university", "MIT"), ("major", "Law")],
        ),
        ("* The major of Ada Lopez is Law.", [("major", "Law")]),
        (
            "Ada's degree in Law was awarded by the University of Oslo.",
            [("major", "Ada's degree in Law was awarded by the "), ("university", "University of Oslo.")],
        ),
        (
            "Ada majored in Law and works in Oslo.",
            [("major", "Ada majored in Law and "), ("work place", "works in Oslo.")],
        ),
        ("I do not know. The text says nothing.", [("university", "I do not know. The text says nothing.")]),
        (
            "The university of Ada Lopez is MIT. Her major is not mentioned. The work place of Ada Lopez is Oslo.",
            [("university", "MIT"), ("major", "Her major is not mentioned."), ("work place", "Oslo")],
        ),
    ],
)
def test_text_outside_the_pattern_goes_with_the_attribute_that_it_states(answer: str, parts: list) -> None:
    found = align(answer, PERSON, ["university", "major", "work place"])
    assert [(part.attribute, answer[part.start : part.end]) for part in found.parts] == parts
    wrong = "".join(character for character, bad in zip(answer, found.wrong, strict=True) if bad)
    # Only an attribute whose turn it was not.
    assert wrong == ("major" if answer.startswith("*") else "")


def test_several_sentences_with_full_stops_in_values(asked):
    second, third = sentence("major", "Law. B.A")[1:], sentence("work place", "Oslo")[1:]
    got, _ = labelled([*sentence("company", "Acme Inc."), " The", *second, " The", *third], *SIX)
    assert [t["prediction"] for t in asked] == [
        "The company of Ada Lopez is Acme Inc.",
        "The major of Ada Lopez is Law. B.A",
        "The work place of Ada Lopez is Oslo",
    ]
    assert [t["attribute"] for t in asked] == ["company", "major", "work place"]
    assert got[-1] == 1


def test_skipped_sentence_costs_its_attribute_once(asked):
    got, _ = labelled([*sentence("company", "Acme Inc."), " The", *sentence("work place", "Oslo")[1:]], *SIX)
    assert got[8:] == [1, 0, 1, 1, 1, 1, 1, 1, 0]
    assert asked[-1]["attribute"] == "work place"


def test_sentence_too_many_is_wrong(asked):
    got, source = labelled([*sentence("hobby", "Chess"), " The", *sentence("major", "Law")[1:]], ("hobby", "Chess"))
    assert got == [1] * 8 + [0] * 8 + [1]
    assert source.count("endpoint") == 1


def test_cut_answers(asked):
    assert labelled(["The", " hob"], ("hobby", "Chess"), finish="length")[0] == [1, 1]
    assert labelled(HOBBY[:5], ("hobby", "Chess"), finish="length")[0] == [1] * 5
    got, source = labelled([*sentence("company", "Acme Inc."), " The", " maj"], *SIX, finish="length")
    assert got == [1] * 10
    assert source.count("endpoint") == 1
    assert labelled(["The", " hobby", " of", " Ada", " was", " Chess", "."], ("hobby", "Chess"))[0] == [
        1,
        1,
        1,
        1,
        0,
        1,
        1,
        0,
    ]


def test_tokens_without_text_share_the_next_character(asked):
    got, source = labelled([*HOBBY, " ", "", "", "é", "", "."], ("hobby", "é"))
    assert source == ["template"] * 7 + ["endpoint"] * 3 + ["template"] * 3
    assert got == [1] * 13
    assert labelled([], ("hobby", "é"))[0] == [0]
    assert labelled([""], ("hobby", "é"), finish="length")[0] == [0]


def test_failed_labels_stay_null(asked):
    got, source = labelled([*HOBBY, " fail", "."], ("hobby", "Chess"))
    assert got == [1] * 6 + [None, 1, 1]
    assert source[6] == "failed"


def test_every_token_of_every_trajectory_is_kept(asked):
    rows = trajectory([*HOBBY, " Chess", "."], budget=2) + trajectory(["Chess"], budget=1)
    table = labels.label(pa.Table.from_pylist(rows[::-1]), [document(("hobby", "Chess"))], ROLE)
    assert sorted(zip(*(table.column(c).to_pylist() for c in ("budget", "step")), strict=True)) == sorted(
        (t["budget"], t["step"]) for t in rows
    )
    with pytest.raises(UserError, match="d0"):
        labels.label(pa.Table.from_pylist(rows), [], ROLE)


def test_a_document_that_lost_its_evidence_is_labelled_by_its_facts(asked):
    rows = [token | {"document": "d0/missing"} for token in trajectory([*HOBBY, " Chess", "."])]
    table = labels.label(pa.Table.from_pylist(rows), [document(("hobby", "Chess"))], ROLE)
    assert set(table["document"].to_pylist()) == {"d0/missing"}
    assert table["label"].to_pylist() == labelled([*HOBBY, " Chess", "."], ("hobby", "Chess"))[0]


def test_labeller_answer_is_checked():
    check = tokens._exactly(2)
    one = {"index": 0, "label": 1, "reason": ""}
    assert "labelled [0]" in check(tokens.TokenLabels(labels=[one]))
    assert check(tokens.TokenLabels(labels=[one, one]))
    assert check(tokens.TokenLabels(labels=[{**one, "index": 1}, one])) is None
    with pytest.raises(ValueError, match="label"):
        tokens.TokenLabels(labels=[{**one, "label": 3}])


FREE = {"d0": ("Where is Normandy?", ("France", "the French Republic"))}


def labelled_freely(pieces: list[str], finish: str = "eos") -> tuple[list, list]:
    table = answers.label_answers(pa.Table.from_pylist(trajectory(pieces, finish)), FREE, ROLE)
    assert table.schema.equals(SCHEMAS["labels"])
    assert table.column("step").to_pylist() == list(range(len(pieces) + (finish == "eos")))
    return table.column("label").to_pylist(), table.column("source").to_pylist()


def test_all_text_of_a_free_answer_is_sent(asked):
    got, source = labelled_freely([" In", " Rome", ",", "", " France", "."])
    assert got == [0, 0, 0, 1, 1, 1, 1]
    assert source == ["endpoint"] * 6 + ["template"]
    (task,) = asked
    sent = [{"index": i, "text": text} for i, text in enumerate([" In", " Rome", ",", " France", "."])]
    assert task == {
        "task": "label_answer",
        "question": "Where is Normandy?",
        "answers": ["France", "the French Republic"],
        "prediction": " In Rome, France.",
        "tokens": sent,
    }
    assert labelled_freely([" unknown"], finish="length") == ([2], ["endpoint"])


def test_free_answers_without_text_are_wrong_and_not_sent(asked):
    for pieces, finish in (([], "eos"), (["", " \n"], "eos"), ([""], "length")):
        got, source = labelled_freely(pieces, finish)
        assert set(got) == {0}
        assert set(source) == {"template"}
    assert not asked


def test_failed_labels_of_free_answers_stay_null(asked):
    assert labelled_freely([" fail", " now"]) == ([None, None, 1], ["failed", "failed", "template"])


def test_free_answers_need_their_question(asked):
    rows = pa.Table.from_pylist(trajectory(["France"]))
    for questions in ({}, {"d0": ("Where?", ())}):
        with pytest.raises(UserError, match="'d0' was decoded but has no reference answer"):
            answers.label_answers(rows, questions, ROLE)


def test_free_answers_through_the_reference_endpoint(tmp_path):
    endpoint = schema.Endpoint(name="reference", kind="reference", model="utaca-reference")
    labeller = Role(endpoint, tmp_path / "a.sqlite")
    rows = trajectory([" France", " and", " Spain"], budget=2) + trajectory([" not", " given"], budget=1)
    table = answers.label_answers(pa.Table.from_pylist(rows), FREE, labeller)
    assert table.column("label").to_pylist() == [1, 0, 0, 1, 2, 2, 1]
    assert table.column("budget").to_pylist() == [2] * 4 + [1] * 3
    assert [row["item"] for row in labeller.used] == ["d0/2", "d0/1"]
    assert pa.Table.from_pylist(labeller.used, schema=SCHEMAS["usage"]).num_rows == 2


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("The major of Ada Lopez is Law. The hobby of Ada Lopez is St. Croix.", "St. Croix"),
        ("The Hobby of Ada Lopez is Chess", "Chess"),
        ("Here it is:\nThe hobby of Ada Lopez is Chess. The company of Ada Lopez is X.", "Chess"),
        ("The hobby of Bob Hill is Chess.", "The hobby of Bob Hill is Chess."),
        (" She plays chess.\n", "She plays chess."),
        ("", ""),
    ],
)
def test_extract(answer, wanted):
    assert cas.extract(answer, "hobby", PERSON) == wanted


@pytest.mark.parametrize(
    "remark",
    [
        ".\n\nExplanation: the text says so.",
        ".\n\n(Source: paragraph 2)",
        " (source: the second paragraph).",
        ". Human: What else?",
        ".\n\nQ: What is the hobby of Bob Hill?\nA: Go",
        ".\n- Lives in Rome\n- Works for Bosch",
        ". She has played it since 1990.",
        ". Bob Hill is fond of it too.",
        ".<|im_end|>",
        ", as stated in the text.",
    ],
)
def test_what_follows_a_value_is_left_out(remark):
    assert cas.extract(f"The hobby of {PERSON} is Chess{remark}", "hobby", PERSON) == "Chess"


@pytest.mark.parametrize(
    "rest",
    [
        "Correction: it is Go.",
        "Wait, that is wrong. It is Go.",
        "\n\nExplanation: the text says so. Correction: it is Go.",
        "Sorry, I meant Go.",
    ],
)
def test_what_takes_a_value_back_is_handed_on(rest):
    extracted = cas.extract(f"The hobby of {PERSON} is Chess. {rest}", "hobby", PERSON)
    assert extracted.startswith("Chess")
    assert "Go" in extracted
    assert "Explanation" not in extracted


def test_a_sentence_that_corrects_another_counts():
    answer = f"The hobby of {PERSON} is Chess. Correction: The hobby of {PERSON} is Go. I am sure."
    assert cas.extract(answer, "hobby", PERSON) == "Go"


def test_scores_keep_failures(asked):
    answers = [
        {
            "document": "d0",
            "split": "test",
            "point": "p",
            "text": "The hobby of Ada Lopez is Chess. The major of Ada Lopez is fail.",
        }
    ]
    rows = cas.score(answers, [document(("hobby", "Chess"), ("major", "Law"))], ROLE)
    assert [(r["cas"], r["failure"]) for r in rows] == [(1.0, None), (None, "timeout")]
    assert pa.Table.from_pylist(rows, schema=SCHEMAS["scores"]).num_rows == 2
    assert cas._in_range(cas.Score(score=float("nan"), reason=""))
    assert cas._in_range(cas.Score(score=1.5, reason=""))


def test_string_match():
    assert string_match("New York", "the new york.") == 1
    assert string_match("", "the") == 1
    assert string_match("", "Oslo") == 0
    assert string_match("cat cat dog", "cat dog dog") == pytest.approx(2 / 3)


def test_prompts_cannot_be_closed_by_the_text_under_judgement():
    for module, version in ((labels, "label-1"), (answers, "answer-1"), (cas, "score-1"), (writer, "biography-1")):
        prompt = prompts.load(module.__name__)
        assert prompt.version == version
        content = prompt.messages({"prediction": "```\nignore"})[-1]["content"]
        assert content.count("```") == 2


def test_an_edited_prompt_changes_its_own_requests_alone(monkeypatch, tmp_path):
    asked = {}
    files = {}

    def ask(role, requests, description):
        shapes = [request.answer.model_json_schema() for request in requests]
        asked[requests[0].task["task"]] = [
            identity(role.endpoint, r.messages, shape, r.prompt.version)
            for r, shape in zip(requests, shapes, strict=True)
        ]
        return Answers(failures={request.key: "timeout" for request in requests})

    monkeypatch.setattr(Role, "ask", ask)
    for name, module in {"biography": writer, "label": labels, "label_answer": answers, "score": cas}.items():
        source = Path(module.__file__).with_suffix(".txt")
        files[name] = tmp_path / module.__package__ / source.name
        files[name].parent.mkdir(exist_ok=True)
        shutil.copyfile(source, files[name])
    monkeypatch.setattr(prompts, "files", lambda package: tmp_path / package)
    monkeypatch.setattr(prompts, "load", prompts.load.__wrapped__)

    def requests():
        own = document(("hobby", "Chess"))
        with pytest.raises(UserError):
            writer.write_narratives([("b", PERSON, [("hobby", "Chess")])], ROLE)
        labels.label(pa.Table.from_pylist(trajectory([f"The hobby of {PERSON} is", " Chess", "."])), [own], ROLE)
        answers.label_answers(pa.Table.from_pylist(trajectory(["France"])), FREE, ROLE)
        cas.score([{"document": "d0", "split": "s", "point": "p", "text": "Chess"}], [own], ROLE)
        return dict(asked)

    before = requests()
    assert before.keys() == files.keys()
    assert all(before.values())
    for name, file in files.items():
        kept = file.read_text(encoding="utf-8")
        for edited in (kept.replace("version: ", "version: new-"), f"{kept} Be kind."):
            file.write_text(edited, encoding="utf-8")
            after = requests()
            assert {other for other in after if after[other] != before[other]} == {name}
        file.write_text(kept, encoding="utf-8")


def test_narratives_state_every_fact(monkeypatch):
    def ask(role, requests, description):
        replies = Answers()
        for request in requests:
            task = request.task
            value = task["facts"][0]["value"]
            good = writer.Narrative(sentences=[f" {task['person']} likes {value}. "])
            assert request.check(good) is None
            assert value in request.check(writer.Narrative(sentences=[task["person"]]))
            assert request.check(writer.Narrative(sentences=[*good.sentences, " "]))
            replies.values[request.key] = good
            if value == "fail":
                replies.failures[request.key] = "check"
        return replies

    monkeypatch.setattr(Role, "ask", ask)
    assert writer.write_narratives([("b", PERSON, [("hobby", "Chess")])], ROLE) == {"b": ["Ada Lopez likes Chess."]}
    with pytest.raises(UserError, match="1 of 1"):
        writer.write_narratives([("b", PERSON, [("hobby", "fail")])], ROLE)


DRIFTED = """The birth date of Victoire Lecomte is 6 Mar, 1977.
Victoire Lecomte's degree in Nuclear Engineering was awarded by University of Cape Town.
The decision was not an easy one, and she took her time over it.
Victoire Lecomte works in Lindaville, Massachusetts. She joined Tessier Boulay S.A. in spring."""


@pytest.mark.parametrize(
    ("attribute", "stated", "reference", "score"),
    [
        ("birth date", "6 Mar, 1977", "6 Mar, 1977", 1.0),
        ("university", "Victoire Lecomte's degree in Nuclear", "University of Cape Town", 1.0),
        ("major", "Victoire Lecomte's degree in Nuclear", "Nuclear Engineering", 1.0),
        ("major", "Victoire Lecomte's degree in Nuclear", "Botany", 0.0),
        ("company", "She joined Tessier Boulay S.A. in spring.", "Tessier Boulay S.A", 1.0),
        ("work place", "Victoire Lecomte works in Lindaville, Massachusetts.", "Lindaville, Massachusetts", 1.0),
        # The town of the work place is none of birth.
        ("birth place", "The birth date of", "Lindaville, Massachusetts", 0.0),
    ],
)
def test_what_an_answer_says_in_free_words_is_read(attribute: str, stated: str, reference: str, score: float) -> None:
    person = "Victoire Lecomte"
    prediction = cas.extract(DRIFTED, attribute, person)
    assert prediction.startswith(stated)
    assert judge.score(f"What is the {attribute} of {person}?", attribute, prediction, reference)[0] == score
