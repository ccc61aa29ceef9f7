"""Where a text states a fact in whatever form: faithful paraphrases are found, absent and wrong values are not."""

import random

import pytest

from utaca.biographies import templates
from utaca.biographies.dataset import drafts
from utaca.judging.rules import judge, tasks
from utaca.judging.rules.passages import passages

PERSON = "Ida Maria Borbach"
DATE, PLACE, WORK, MIT = "birth date", "birth place", "work place", "Massachusetts Institute of Technology"
SEOUL, BAY, YORK = "Seoul, South Korea", "San Francisco Bay Area", "University of York"


@pytest.mark.parametrize(
    ("attribute", "value", "sentence", "stated"),
    [
        (DATE, "12/29/1880", "She was born on December 29, 1880.", "December 29, 1880"),
        (DATE, "12/29/1880", "She was born on the 29th of December 1880 in Bonn.", "29th of December 1880"),
        (DATE, "12/29/1880", "On the twenty-ninth of December 1880 she was born.", "twenty-ninth of December 1880"),
        (DATE, "12/29/1880", "She was born on 1880-12-29.", "1880-12-29"),
        (DATE, "12/29/1880", "She was born on Dec. 29, 1880, in Bonn.", "Dec. 29, 1880"),
        (DATE, "12/29/1880", "She was born on December 28, 1880.", None),
        (DATE, "12/29/1880", "She was born in December 1880.", None),
        (DATE, "12/29/1880", "She was born in 1880.", None),
        (DATE, "12/29/1880", "She was born on December 29.", None),
        ("university", MIT, "She studied at MIT, then left.", "MIT"),
        ("university", MIT, "She studied at M.I.T. for years.", "M.I.T"),
        ("university", "MIT", f"She studied at the {MIT}.", MIT),
        ("university", MIT, "She studied at the Massachusetts Institute of Design.", None),
        ("university", "Stanford University", "She went to Stanford in spring.", "Stanford"),
        ("university", "Stanford University", "At Stanford University Borbach read Law.", "Stanford University"),
        ("university", "University of Sheffield", "She told us of Sheffield.", None),
        ("university", "University of Sheffield", "She loved the US and us.", None),
        ("university", "Boston University", "She moved to Boston.", None),
        ("university", YORK, "She went to the University of York.", YORK),
        ("university", YORK, "She went to the University of York St John.", None),
        ("university", "University of Chicago", "She left the University of Illinois Chicago.", None),
        (PLACE, SEOUL, "She was born in Seoul.", "Seoul"),
        (PLACE, SEOUL, "She was born in Seoul, Ida says.", "Seoul"),
        (PLACE, SEOUL, "She was born in Seoul, the capital of South Korea.", "Seoul"),
        (PLACE, SEOUL, "Born in Seoul in South Korea, she left early.", "Seoul in South Korea"),
        (PLACE, SEOUL, "Born in Seoul (South Korea), she left early.", "Seoul (South Korea)"),
        (PLACE, SEOUL, "Born in Seoul, North Korea, she left early.", None),
        (PLACE, SEOUL, "She went to Seoul National University.", None),
        (PLACE, "Seoul", "She went to Seoul National University.", None),
        (PLACE, SEOUL, "She was born in South Korea.", None),
        (PLACE, "York, England", "She was born in New York.", None),
        (PLACE, "De Heen, Netherlands", "She was born in De Heen in Netherlands.", "De Heen in Netherlands"),
        (WORK, BAY, "She works in the San Francisco Bay Area today.", BAY),
        (WORK, BAY, "She works in the SF Bay Area today.", "SF Bay Area"),
        (WORK, BAY, "She works in San Francisco.", None),
        (WORK, "Munich, Germany", "She works in München.", "München"),
        ("company", "Acme Inc.", "She works for Acme.", "Acme"),
        ("company", "Acme Inc.", "She works for Acme Incorporated in Bonn.", "Acme Incorporated"),
        ("company", "Acme Inc.", "She works for Acme Foods.", None),
        ("company", "International Business Machines", "She works for IBM.", "IBM"),
        ("company", "Wagner, Arnold and Stein", "She joined Wagner, Arnold & Stein.", "Wagner, Arnold & Stein"),
        ("company", "Wagner, Arnold and Stein", "She was at work.", None),
        ("company", "Borbach GmbH", "She works for Borbach GmbH.", "Borbach GmbH"),
        ("company", "Borbach GmbH", "Borbach works hard.", None),
        ("company", "Borbach", "Borbach works for Borbach.", "Borbach"),
        ("major", "Computer Science", "She read computer science.", "computer science"),
        ("major", "Computer Science", "She liked computers.", None),
        ("major", "Mathematics", "She took a degree in maths.", "maths"),
        ("major", "Physics", "She holds a Bachelor of Science in Physics.", "Physics"),
        ("major", "Physics", "She liked physical exercise.", None),
        ("major", "Political Science", "She loved political debates.", None),
        ("major", "Medicine", "She became a Doctor of Medicine.", "Medicine"),
        ("major", "Law", "She studied at Ghent Law School.", None),
        ("major", "Mechanical Engineering", "She studied mechanical engineering in Bonn.", "mechanical engineering"),
        ("major", "Mechanical Engineering", "She studied electrical engineering.", None),
    ],
)
def test_faithful_forms_are_found_and_other_values_are_not(attribute, value, sentence, stated) -> None:
    text = f"{PERSON} is known. {sentence}"
    place = passages(text, PERSON, [(attribute, value)]).get(attribute)
    assert (text[slice(*place)] if place else None) == stated
    if value == "Borbach":
        assert place[0] == text.rindex("Borbach"), "the firm, not the surname"


def test_each_fact_has_a_place_of_its_own_where_there_are_several() -> None:
    facts = [(PLACE, SEOUL), (WORK, SEOUL), ("company", "Seoul Metal Ltd"), ("university", "Seoul University")]
    text = "She left Seoul University. Born in Seoul, she works for Seoul Metal in Seoul, South Korea."
    places = {name: text[slice(*place)] for name, place in passages(text, PERSON, facts).items()}
    assert places == {PLACE: "Seoul", WORK: SEOUL, "company": "Seoul Metal", "university": "Seoul University"}
    once = passages("She was born and works in Seoul.", PERSON, facts[:2])
    assert once[PLACE] == once[WORK]


def test_the_offline_writer_varies_forms_and_the_judge_takes_each() -> None:
    varied = 0
    for draft in drafts("test", 40, 5):
        facts = [{"attribute": attribute, "value": value} for attribute, value in draft.facts]
        text = " ".join(tasks.answer({"task": "biography", "person": draft.person.name, "facts": facts})["sentences"])
        places = passages(text, draft.person.name, draft.facts)
        assert draft.person.name in text
        for attribute, value in draft.facts:
            stated = text[slice(*places[attribute])]
            assert judge.score("", attribute, stated, value)[0] == 1
            varied += stated != value
    assert varied > 20


def test_forms_of_values_and_names() -> None:
    assert templates.forms(DATE, "3 Feb, 1990") == ["1990-02-03", "02/03/1990", "February 3, 1990", "3 February 1990"]
    assert templates.forms("company", "Acme Inc.") == ["Acme"]
    assert (
        templates.forms("company", "Acme Foods")
        == templates.forms("major", "Law")
        == templates.forms(PLACE, SEOUL)
        == []
    )
    drawn = {templates.in_another_form("company", "Acme Inc.", random.Random(seed)) for seed in range(20)}
    assert drawn == {"Acme", "Acme Inc."}
    facts = [(DATE, "1990-02-03"), ("company", "Roche"), ("major", "Law")]
    texts = {name: " ".join(templates.write(name, facts)) for name in ("Anna Roche", "Anna Maria Bosch")}
    assert texts["Anna Roche"].count("Roche") == texts["Anna Roche"].count("Anna Roche") + 1, (
        "a firm's name is no surname"
    )
    assert any(
        "Bosch" in sentence.replace("Anna Maria Bosch", "") for sentence in templates.write("Anna Maria Bosch", facts)
    )


def test_a_form_that_the_judge_would_not_take_is_not_written(monkeypatch) -> None:
    monkeypatch.setattr(templates, "forms", lambda attribute, value: ["Utopia"])
    task = {"task": "biography", "person": PERSON, "facts": [{"attribute": PLACE, "value": SEOUL}]}
    for person in ("Ann Lee", "Bo Ek", "Cy Day", "Di Fox"):
        assert SEOUL in " ".join(tasks.answer(task | {"person": person})["sentences"])
