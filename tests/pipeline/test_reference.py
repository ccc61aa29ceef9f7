import datetime
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bench import rules
from utaca.biographies import templates
from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES, draw_value
from utaca.biographies.people import LOCALES
from utaca.judging.rules import judge, labeller

FACTS = [
    ("birth date", "12/29/1880"),
    ("birth place", "Tokyo, Japan"),
    ("university", "Harvard University"),
    ("major", "Computer Science"),
    ("company", "Acme Inc."),
    ("work place", "San Francisco Bay Area"),
]


@pytest.mark.parametrize("person", ["Emma Thompson", "Jens Klaus", "Zoé Chauvet", "Erdal Mälzer", "李 娜"])
@pytest.mark.parametrize("count", [1, 3, 6])
def test_biography_states_every_value(person: str, count: int) -> None:
    sentences, plain = templates.write(person, FACTS[:count]), templates.write(person, FACTS[:count], varied=False)
    assert sentences == templates.write(person, FACTS[:count])
    assert 8 <= len(sentences) <= 16
    assert len(plain) == len(sentences), "the same wordings"
    assert person in sentences[0]
    text = " ".join(plain)
    assert all(text.count(value) == 1 for _, value in FACTS[:count])
    assert ".." not in text + " ".join(sentences)
    assert all(sentence[0].isupper() or not sentence[0].isascii() for sentence in [*sentences, *plain])


NORMANDY = "In what country is Normandy located?"
SAME = "Were Scott Derrickson and Ed Wood of the same nationality?"
OLDER = "Who is older, Ann Hart or Bob Hill?"
DIED = "When did he die?"


@pytest.mark.parametrize(
    ("question", "answers", "prediction", "expected"),
    [
        (NORMANDY, ["France"], "France| is| the| country| Normandy| is| located| in|.", [1] * 9),
        (NORMANDY, ["France"], "Fr|ank|ia", [1, 0, 0]),
        (NORMANDY, ["France"], "France|,| near| Belgium|.", [1, 1, 0, 0, 0]),
        (NORMANDY, ["France"], "Rouen| is| not| in| France", [0] * 5),
        (NORMANDY, ["the French Republic", "France"], "It| is| in| France", [1] * 4),
        (NORMANDY, ["United States", "the Elbe"], "It| is| the| USA|.", [1] * 5),
        (NORMANDY, ["France"], "The| documents| do| not| mention| where| Normandy| is| located|.", [2] * 10),
        (NORMANDY, ["France"], "Unknown|,| perhaps| France", [2, 2, 1, 1]),
        (NORMANDY, ["in the tower"], "He| fell| in| the| forest", [0] * 5),
        (DIED, ["10 May 1990"], "He| died| on| May| |1|2|,| 1990", [1, 1, 1, 1, 1, 1, 0, 0, 1]),
        (DIED, ["7"], " seven|.", [1, 1]),
        (DIED, ["2"], " 2nd", [0]),
        (SAME, ["no"], "Yes|,| they| were| of| the| same| nationality|.", [0] * 9),
        (OLDER, ["Ann Hart"], "Ann| Hart| is| older| than| Bob| Hill|.", [1] * 8),
    ],
)
def test_labels_of_answers_in_free_words(question, answers, prediction: str, expected: list[int]) -> None:
    found = labeller.label_answer(question, answers, list(enumerate(prediction.split("|"))))
    assert [index for index, _, _ in found] == list(range(len(expected)))
    assert [value for _, value, _ in found] == expected


# Values and predictions of the six attributes, and the mean score, of the paper's case studies.
CASES = [
    (
        ["June 3, 1888", "Sydney, NSW", "MIT", "Medicine", "Mayo Clinic", "Beijing, CN"],
        ["1888-06-03", "Sydney, NSW", "Mass. Inst. Tech.", "Medicine", "Mayo Clinic", "Mayo's Beijing"],
        1.0,
    ),
    (
        ["10 Nov, 1907", "Mexico City", "NUS", "Intl. Rel.", "UN", "Seattle, WA"],
        ["1976", "Madrid, Spain", "Complutense Madrid", "Chem. Eng.", "UN", "Pacific NW"],
        1 / 6,
    ),
]


@pytest.mark.parametrize(("values", "predictions", "mean"), CASES)
def test_case_studies_of_the_paper(values: list[str], predictions: list[str], mean: float) -> None:
    stated = zip(HELD_OUT_ATTRIBUTES, predictions, strict=True)
    sentences = [f"The {attribute} of Harper Coleman is {prediction}." for attribute, prediction in stated]
    for said in (predictions, sentences, [" ".join(sentences)] * 6):
        scores = [
            judge.score(f"What is the {attribute} of Harper Coleman?", attribute, prediction, value)[0]
            for attribute, prediction, value in zip(HELD_OUT_ATTRIBUTES, said, values, strict=True)
        ]
        assert sum(scores) / 6 == mean


DATA = Path(__file__).parents[1] / "data"
PAIRS = rules.read_pairs()
DATE_OF_BIRTH = "What is the birth date of A B?"
# Scores by hand are not changed to suit the rules. A job with a word more is narrower as a rule, and that make-up is
# another thing than make takes more than rules.
KNOWN_FALSE_PASSES = {
    "Make-up artist",
    # From the part that was kept apart, so the rules were not changed for it.
    "any university but Tufts University",
    "Before the war her family lived in Kaunas and after it, for a time, in Tartu, yet for the last thirty years Clara "
    "Weiss, now a widow, has lived in Malmö, in a yellow house not far from the harbour and the old library.",
}


@pytest.mark.parametrize(
    ("part", "floor"),
    [("development", 0.96), ("held out", 0.95), ("later", 0.85), ("second development", 0.95), ("kept", 0.9)],
)
def test_rules_agree_with_scores_by_hand(part: str, floor: float) -> None:
    pairs = [pair for pair in PAIRS if pair.part == part]
    assert sum(pair.agrees for pair in pairs) / len(pairs) >= floor, rules.table_of_pairs(pairs)


def test_nothing_wrong_passes() -> None:
    assert {pair.prediction for pair in PAIRS if pair.false_pass} == KNOWN_FALSE_PASSES


@pytest.mark.parametrize("attribute", TRAINING_ATTRIBUTES + HELD_OUT_ATTRIBUTES)
@pytest.mark.parametrize("denial", ["no {}", "not {}", "{} is wrong", "{} is not correct.", "I doubt that it is {}."])
def test_a_denied_value_is_wrong_whatever_it_is(attribute: str, denial: str) -> None:
    value = draw_value(attribute, random.Random(attribute), LOCALES[0])
    question = f"What is the {attribute} of Clara Weiss?"
    if denial != "no {}" or value[0].isalpha():  # "No 7" is a number.
        assert judge.score(question, attribute, denial.format(value), value)[0] == 0, value
    assert judge.score(question, attribute, f"no doubt {value}", value)[0] == 1, value


def test_a_part_of_a_date_is_not_completed_by_the_day_of_reading() -> None:
    today = datetime.date.today()
    whole = f"{today.day} {today:%B} {today.year}"
    assert judge.score(DATE_OF_BIRTH, "birth date", f"{today:%B}", whole)[0] == pytest.approx(1 / 3)


@pytest.mark.parametrize("between", ["; ", " | "])
def test_facts_that_share_a_line_are_told_apart(between: str) -> None:
    line = between.join(("Birth date: 10 May 1964", "Marriage date: 3 June 1990", "Birth place: Leeds"))
    for attribute, value in (("birth date", "May 10, 1964"), ("marriage date", "1990-06-03"), ("birth place", "Leeds")):
        assert judge.score(f"What is the {attribute} of A B?", attribute, line, value)[0] == 1
    assert judge.score("What is the company of A B?", "company", f"Hobby: Go{between}company: I think Or", "Or")[0] == 1
    assert judge.score("The cup of tea of A B?", "cup of tea", "The cup of tea of A B is Mint.", "Mint")[0] == 1


@pytest.mark.parametrize("reference", ["the tenth of May 1964", "May the tenth, nineteen sixty-four"])
def test_a_reference_in_words_is_a_date(reference: str) -> None:
    assert judge.equivalent(reference, reference, "birth date")
    for said, wanted in (("May 10, 1964", 1), ("1964-05-10", 1), ("1964", 1 / 3), ("May 19, 1964", 0)):
        assert judge.score(DATE_OF_BIRTH, "birth date", said, reference)[0] == pytest.approx(wanted)
        labels = labeller.label("A B", "birth date", reference, f"It is {said}", list(enumerate(said)))
        assert ({label for _, label, _ in labels} == {1}) == (wanted > 0)


LABEL_CASES = json.loads((DATA / "label_cases.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", LABEL_CASES, ids=lambda case: f"{case['answer']}:{''.join(case['tokens'])}")
def test_labels_by_hand(case: dict[str, Any]) -> None:
    said = case.get("sentence", f"The {case['attribute']} of Clara Weiss is{''.join(case['tokens'])}")
    given = labeller.label("Clara Weiss", case["attribute"], case["answer"], said, list(enumerate(case["tokens"])))
    assert [label for _, label, _ in given] == case["labels"]
    if "score" in case:
        assert judge.score("", case["attribute"], "".join(case["tokens"]), case["answer"])[0] == case["score"]


@pytest.mark.parametrize("attribute", TRAINING_ATTRIBUTES + HELD_OUT_ATTRIBUTES)
def test_drawn_values_are_themselves_and_no_other(attribute: str) -> None:
    rng = random.Random(attribute)
    question = f"What is the {attribute} of Clara J. O'Weiss, Jr.?"
    values = [draw_value(attribute, rng, rng.choice(LOCALES)) for _ in range(30)]
    for value in values:
        for said in (value, f"The {attribute} of Clara J. O'Weiss, Jr. is {value}.", value.upper(), f"**{value}**"):
            assert judge.score(question, attribute, said, value)[0] == 1, said
        labels = labeller.label("Clara J. O'Weiss, Jr.", attribute, value, f"It is {value}", list(enumerate(value)))
        assert {label for _, label, _ in labels} == {1}, value
    passed = [
        (said, value)
        for said, value in pairwise(values)
        # One day, file type or name may be drawn twice in two notations.
        if judge.score(question, attribute, said, value)[0] == 1 and not judge.equivalent(said, value, attribute)
    ]
    assert not passed
