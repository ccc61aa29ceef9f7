from __future__ import annotations

import datetime
import inspect
import json
import random
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest

from bench import rules
from utaca import data_files
from utaca.biographies import templates
from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES, Values, draw_value
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
    sentences = templates.write(person, FACTS[:count])
    assert sentences == templates.write(person, FACTS[:count])
    assert 8 <= len(sentences) <= 16
    assert person in sentences[0]
    text = " ".join(sentences)
    assert all(text.count(value) == 1 for _, value in FACTS[:count])
    assert ".." not in text
    assert all(sentence[0].isupper() or not sentence[0].isascii() for sentence in sentences)


def labels(answer: str, tokens: list[str], sentence: str = "The birth date of P Q is v.") -> list[int]:
    return [value for _, value, _ in labeller.label("P Q", "birth date", answer, sentence, list(enumerate(tokens)))]


@pytest.mark.parametrize(
    ("answer", "tokens", "expected"),
    [
        ("Iraq", [" Ira", "pua", "1", "1", "."], [1, 0, 0, 0, 0]),
        ("March 22, 1985", [" March", " ", "2", "2", ",", " ", "1", "9", "7", "5"], [1, 1, 1, 1, 1, 1, 1, 1, 0, 0]),
        ("March 22, 1985", ["1", "9", "8", "5", "-", "0", "3", "-", "2", "2"], [1] * 10),
        ("1988-06-03", ["1", "2", "/", "0", "3", "/", "1988"], [0, 0, 0, 1, 1, 1, 1]),
        ("03/04/1980", [" April", " 3", ", 1980"], [1, 1, 1]),
        ("07703087971", ["077", "04", "087971"], [1, 0, 0]),
        ("Stanford University", [" Stanford", " College"], [1, 0]),
        ("Iraq", [" Iraq", " and", " Iran"], [1, 0, 0]),
        ("Iraq", [" unknown", "."], [2, 2]),
        ("Iraq", [" not", " mentioned", " in", " the", " text", "."], [2] * 6),
    ],
)
def test_labels(answer: str, tokens: list[str], expected: list[int]) -> None:
    assert labels(answer, tokens) == expected


def test_labels_of_another_person_or_attribute() -> None:
    assert labels("Iraq", [" Iraq", "."], "The birth date of P R is Iraq.") == [0, 0]
    assert labels("Iraq", [" Iraq"], "The birth place of P Q is Iraq.") == [0]
    assert labels("Iraq", [" unknown"], "The birth place of P Q is unknown.") == [2]


NORMANDY = "In what country is Normandy located?"
SAME = "Were Scott Derrickson and Ed Wood of the same nationality?"
OLDER = "Who is older, Ann Hart or Bob Hill?"
DIED = "When did he die?"


@pytest.mark.parametrize(
    ("question", "answers", "prediction", "expected"),
    [
        (NORMANDY, ["France"], "Normandy| is| located| in| France|.", [1] * 6),
        (NORMANDY, ["France"], "France| is| the| country| Normandy| is| located| in|.", [1] * 9),
        (NORMANDY, ["France"], "Normandy| is| located| in| Germany|.", [0] * 6),
        (NORMANDY, ["France"], "Fr|ank|ia", [1, 0, 0]),
        (NORMANDY, ["France"], "France|,| near| Belgium|.", [1, 1, 0, 0, 0]),
        (NORMANDY, ["France"], "Rouen| is| not| in| France", [0] * 5),
        (NORMANDY, ["the French Republic", "France"], "It| is| in| France", [1] * 4),
        (NORMANDY, ["United States", "the Elbe"], "It| is| the| USA|.", [1] * 5),
        (NORMANDY, ["unknown"], " unknown|.", [1, 1]),
        (NORMANDY, ["France"], "The| documents| do| not| mention| where| Normandy| is| located|.", [2] * 10),
        (NORMANDY, ["France"], "Unknown|,| perhaps| France", [2, 2, 1, 1]),
        (NORMANDY, ["France"], "\n", [0]),
        (NORMANDY, ["in the tower"], "He| fell| in| the| forest", [0] * 5),
        (DIED, ["10 May 1990"], "He| died| on| May| |1|0|,| 1990|.", [1] * 10),
        (DIED, ["10 May 1990"], "He| died| on| May| |1|2|,| 1990", [1, 1, 1, 1, 1, 1, 0, 0, 1]),
        (DIED, ["7"], " seven|.", [1, 1]),
        (DIED, ["2"], " 2nd", [0]),
        (SAME, ["no"], "No|,| they| were| not| of| the| same| nationality|.", [1] * 10),
        (SAME, ["no"], "Yes|,| they| were| of| the| same| nationality|.", [0] * 9),
        (OLDER, ["Ann Hart"], "Ann| Hart| is| older| than| Bob| Hill|.", [1] * 8),
        (OLDER, ["Ann Hart"], "Bob| Hill", [0, 0]),
    ],
)
def test_labels_of_answers_in_free_words(
    question: str, answers: list[str], prediction: str, expected: list[int]
) -> None:
    found = labeller.label_answer(question, answers, list(enumerate(prediction.split("|"))))
    assert [index for index, _, _ in found] == list(range(len(expected)))
    assert [value for _, value, _ in found] == expected


CASES = {
    3: (
        [
            ("birth date", "June 3, 1888", "1888-06-03"),
            ("birth place", "Sydney, NSW", "Sydney, NSW"),
            ("university", "MIT", "Mass. Inst. Tech."),
            ("major", "Medicine", "Medicine"),
            ("company", "Mayo Clinic", "Mayo Clinic"),
            ("work place", "Beijing, CN", "Mayo's Beijing"),
        ],
        1.0,
    ),
    17: (
        [
            ("birth date", "10 Nov, 1907", "1976"),
            ("birth place", "Mexico City", "Madrid, Spain"),
            ("university", "NUS", "Complutense Madrid"),
            ("major", "Intl. Rel.", "Chem. Eng."),
            ("company", "UN", "UN"),
            ("work place", "Seattle, WA", "Pacific NW"),
        ],
        1 / 6,
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", ["value", "sentence", "answer"])
def test_case_studies_of_the_paper(case: int, form: str) -> None:
    rows, mean = CASES[case]
    sentences = [f"The {attribute} of Harper Coleman is {prediction}." for attribute, _, prediction in rows]
    scores = []
    for (attribute, wanted, prediction), sentence in zip(rows, sentences, strict=True):
        said = {"value": prediction, "sentence": sentence, "answer": " ".join(sentences)}[form]
        scores.append(judge.score(f"What is the {attribute} of Harper Coleman?", attribute, said, wanted)[0])
    assert sum(scores) / 6 == mean


@pytest.mark.parametrize(
    ("prediction", "wanted", "expected"),
    [
        ("the Massachusetts Institute of Technology", "MIT", 1.0),
        ("Portland, ME", "Portland, OR", 0.25),
        ("The company of Bo Ek is Guichard S.A.", "Guichard S.A", 1.0),
        ("Stanford", "Stanford University", 0.5),
        ("22nd of March 1985", "1985/03/22", 1.0),
        ("March 1985", "March 22, 1985", 2 / 3),
        ("between March 22, 1985 and March 23, 1985", "March 22, 1985", 0.0),
        ("The company of Bo Ek is unknown.", "Google", 0.0),
        ("The company of Bo Li is Google.", "Google", 0.0),
        ("The major of Bo Ek is Google.", "Google", 0.0),
        ("The major of Bo Ek is Law. The company of Bo Ek is The Tech Corp.", "The Tech Corp.", 1.0),
        ("", "Google", 0.0),
    ],
)
def test_scores(prediction: str, wanted: str, expected: float) -> None:
    assert judge.score("What is the company of Bo Ek?", "company", prediction, wanted)[0] == expected


DATA = Path(__file__).parents[1] / "data"
PAIRS = rules.read_pairs()
# Scores by hand are not changed to suit the rules. A job with a word more is narrower as a rule, and that make-up is
# another thing than make takes more than rules.
KNOWN_FALSE_PASSES = {
    "Make-up artist",
    # Of the part that was kept apart, so not mended.
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


@pytest.mark.parametrize("attribute", TRAINING_ATTRIBUTES + HELD_OUT_ATTRIBUTES)
@pytest.mark.parametrize("denial", ["no {}", "not {}", "{} is wrong", "{} is not correct.", "I doubt that it is {}."])
def test_a_denied_value_is_wrong_whatever_it_is(attribute: str, denial: str) -> None:
    value = draw_value(attribute, random.Random(attribute), LOCALES[0])
    question = f"What is the {attribute} of Clara Weiss?"
    if denial != "no {}" or value[0].isalpha():  # "No 7" is a number.
        assert judge.score(question, attribute, denial.format(value), value)[0] == 0, value
    assert judge.score(question, attribute, f"no doubt {value}", value)[0] == 1, value


@pytest.mark.parametrize(
    ("attribute", "said", "slip", "value"),
    [
        ("birth place", "Bolton", "Bostton", "Boston, Massachusetts"),
        ("birth place", "Austria", "Pearth", "Perth, Australia"),
        ("major", "Astrology", "Astronmy", "Astronomy"),
        ("hobby", "Biking", "Bakking", "Baking"),
        ("company", "Nikon", "Nokai", "Nokia"),
    ],
)
def test_a_near_name_is_no_slip_of_the_pen(attribute: str, said: str, slip: str, value: str) -> None:
    question = f"What is the {attribute} of Clara Weiss?"
    assert judge.score(question, attribute, said, value)[0] == 0
    assert judge.score(question, attribute, slip, value)[0] == 0.75, slip


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("the last day of 1999", "31 December 1999"),
        ("٢٢ مارس ١٩٨٥", "22 March 1985"),
        ("22 березня 1985", "22 March 1985"),
    ],
)
def test_days_in_words_and_scripts(said: str, value: str) -> None:
    assert judge.score("What is the birth date of Clara Weiss?", "birth date", said, value)[0] == 1
    assert judge.score("What is the birth date of Clara Weiss?", "birth date", said, "4 March 1985")[0] == 0


def test_a_part_of_a_date_is_not_completed_by_the_day_of_reading() -> None:
    today = datetime.date.today()
    whole = f"{today.day} {today:%B} {today.year}"
    assert judge.score("What is the birth date of A B?", "birth date", f"{today:%B}", whole)[0] == pytest.approx(1 / 3)


def test_nothing_wrong_passes() -> None:
    assert {pair.prediction for pair in PAIRS if pair.false_pass} == KNOWN_FALSE_PASSES


VALUES = data_files.read("biographies/values.yaml", Values)
LABEL_CASES = json.loads((DATA / "label_cases.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", LABEL_CASES, ids=lambda case: f"{case['answer']}:{''.join(case['tokens'])}")
def test_labels_by_hand(case: dict[str, Any]) -> None:
    said = case.get("sentence", f"The {case['attribute']} of Clara Weiss is{''.join(case['tokens'])}")
    given = labeller.label("Clara Weiss", case["attribute"], case["answer"], said, list(enumerate(case["tokens"])))
    assert [label for _, label, _ in given] == case["labels"]


@pytest.mark.parametrize("attribute", TRAINING_ATTRIBUTES + HELD_OUT_ATTRIBUTES)
def test_drawn_values_are_themselves_and_no_other(attribute: str) -> None:
    rng = random.Random(attribute)
    question = f"What is the {attribute} of Clara Weiss?"
    values = [draw_value(attribute, rng, rng.choice(LOCALES)) for _ in range(30)]
    for value in values:
        for said in (value, f"The {attribute} of Clara Weiss is {value}.", value.upper(), f"**{value}**"):
            assert judge.score(question, attribute, said, value)[0] == 1, said
        labels = labeller.label("Clara Weiss", attribute, value, f"It is {value}", list(enumerate(value)))
        assert {label for _, label, _ in labels} == {1}, value
    passed = [
        (said, value)
        for said, value in pairwise(values)
        # One day, file type or name may be drawn twice in two notations.
        if judge.score(question, attribute, said, value)[0] == 1 and not judge.equivalent(said, value, attribute)
    ]
    assert not passed


@pytest.mark.parametrize(("attribute", "values"), [("hobby", VALUES.hobbies), ("company", VALUES.companies)])
def test_no_value_passes_for_another(attribute: str, values: tuple[str, ...]) -> None:
    question = f"What is the {attribute} of Clara Weiss?"
    passed = [pair for pair in permutations(values, 2) if judge.score(question, attribute, *pair)[0] >= rules.PASS]
    assert not passed


def test_the_labeller_decides_without_the_judge() -> None:
    used, waiting = set(), [labeller]
    while waiting:
        module = waiting.pop()
        found = {value for value in vars(module).values() if inspect.ismodule(value)}
        waiting += [own for own in found - used if own.__name__.startswith("utaca.")]
        used |= found
    assert "utaca.judging.rules.names" in {module.__name__ for module in used}
    assert "utaca.judging.rules.judge" not in {module.__name__ for module in used}


@pytest.mark.parametrize(
    ("attribute", "answer", "said", "right"),
    [
        ("birth place", "Portland, Oregon", " Portland, USA", True),
        ("birth place", "Portland, Oregon", " Portland, Maine", False),
        ("lucky number", "1200", " 1,200", True),
        ("isbn code", "1-12-1990", " 11-2-1990", False),
        ("major", "Mathematics and Statistics", " Statistics and Mathematics", True),
        ("company", "NBC", " National Broadcasting Company", True),
        ("university", "York University", " University of York", False),
        ("marriage date", "7 April 2008", " Montag, der 7. April 2008", True),
    ],
)
def test_the_labeller_knows_other_notations_by_itself(attribute: str, answer: str, said: str, right: bool) -> None:
    given = labeller.label("A B", attribute, answer, f"The {attribute} of A B is{said}", [(0, said)])
    assert [value == labeller.CORRECT for _, value, _ in given] == [right]
