"""People, facts and biographies: fictitious, disjoint between splits, and the same for the same seed."""

import os
import random
import re
import subprocess
import sys
from collections import Counter
from itertools import islice

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.narratives import narrative, wordings
from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES, draw_value
from utaca.biographies.dataset import biographies
from utaca.biographies.people import LOCALES, SPLITS, draw_person, normalised, people, split_of
from utaca.biographies.sentences import summary
from utaca.biographies.templates import templates
from utaca.errors import UserError
from utaca.records import SCHEMAS

ATTRIBUTES = TRAINING_ATTRIBUTES + HELD_OUT_ATTRIBUTES


def test_a_value_depends_on_its_number_alone():
    first = [draw_value(a, random.Random(3), locale) for a in ATTRIBUTES for locale in LOCALES]
    draw_value("company", random.Random(9), "en_US")
    assert first == [draw_value(a, random.Random(3), locale) for a in ATTRIBUTES for locale in LOCALES]
    code = (
        "import random; from utaca.biographies.attributes import *; from utaca.biographies.people import *\n"
        "attributes = TRAINING_ATTRIBUTES + HELD_OUT_ATTRIBUTES\n"
        "print([draw_value(a, random.Random(3), locale) for a in attributes for locale in LOCALES])"
    )
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, text=True).strip() == repr(first)


def test_people_of_the_splits_are_disjoint():
    assert list(islice(people("train", 4), 50)) == (first := list(islice(people("train", 4), 50)))
    assert first != list(islice(people("train", 5), 50))
    names = {split: [normalised(p.name) for p in islice(people(split, 0), 2000)] for split in SPLITS}
    assert all(split_of(name) == split for split, of_split in names.items() for name in of_split)
    distinct = set().union(*names.values())
    assert len(distinct) == 2000 * len(SPLITS)
    assert not any(re.search(r"[.,\n]", name) for name in distinct)
    assert normalised("Inés  NOVOA Sarabia") == "ines novoa sarabia"


@given(st.text(st.characters(max_codepoint=0x24F), max_size=30))
def test_spelling_does_not_move_a_name_to_another_split(name):
    assert split_of(name) in SPLITS
    assert split_of(name) == split_of(normalised(name)) == split_of(f"  {name}\t") == split_of(name.casefold())


def test_unknown_names_are_refused():
    for facts, said in (([("height", "2 m")], "wordings"), ([("hobby", "Chess"), ("hobby", "Tango")], "twice")):
        with pytest.raises(UserError, match=said):
            narrative("Ana Díaz", facts, random.Random(0))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(ATTRIBUTES), min_size=1, max_size=27, unique=True))
def test_values_fit_the_summary_pattern_and_a_narrative_states_them_and_the_name(seed, attributes):
    rng = random.Random(seed)
    person = draw_person(rng)
    facts = [(attribute, draw_value(attribute, rng, person.locale)) for attribute in attributes]
    sentences = narrative(person.name, facts, random.Random(seed))
    assert sentences == narrative(person.name, facts, random.Random(seed))
    assert any(person.name in sentence for sentence in sentences)
    for attribute, value in facts:
        assert any(value in sentence for sentence in sentences)
        assert len(value) <= 100
        assert not re.search(r"^\s|\n|[.\s]$|unknown", value, re.IGNORECASE)
        pattern = re.fullmatch(r"The (.+?) of (.+) is (.+)\.", summary(attribute, "Ana Díaz", value), re.ASCII)
        assert pattern.groups() == (attribute, "Ana Díaz", value)
    for sentence in sentences:
        assert sentence.endswith(".")
        assert not re.search(r"[{}|\n]|  ", sentence)


@pytest.mark.parametrize(("split", "attributes"), [("train", TRAINING_ATTRIBUTES), ("validation", HELD_OUT_ATTRIBUTES)])
def test_pattern_biographies(split, attributes):
    rows = list(biographies(split, 2 * len(attributes), 0))
    assert Counter(row["facts"][0]["attribute"] for row in rows) == dict.fromkeys(attributes, 2)
    for row in rows:
        (fact,) = row["facts"]
        assert row["sentences"] == [summary(fact["attribute"], row["person"], fact["value"])]
        (place,) = row["stated"]
        assert row["sentences"][0][place["start"] : place["end"]] == fact["value"]
        assert row["writer"] == "pattern"
        assert split_of(row["person"]) == split
    assert len({row["person"] for row in rows}) == len(rows)
    assert rows[3]["id"] == f"{split}-0003"
    assert rows[:5] == list(biographies(split, 5, 0))
    assert pa.Table.from_pylist(rows, schema=SCHEMAS["biographies"]).to_pylist() == rows


def _texts(table):
    """The strings in nested tables."""
    if isinstance(table, str):
        return [table]
    return [text for entry in (table.values() if isinstance(table, dict) else table) for text in _texts(entry)]


def _blanked(wording):
    """The wording without its slots, by either way of writing a verb that agrees with the person."""
    bare = re.sub(r"\{[^{}|]*\}('s)?", "_", wording.casefold().strip(" .,"))
    return {re.sub(r"\{([^{}|]*)\|[^{}]*\}", verb, bare) for verb in ("_", r"\1")}


def test_no_wording_of_the_readers_training_is_one_of_the_reference_writer():
    held_out = set().union(*(_blanked(text) for text in _texts(templates().model_dump())))
    assert len(held_out) > 100
    assert [wording for wording in _texts(wordings().model_dump()) if _blanked(wording) & held_out] == []
