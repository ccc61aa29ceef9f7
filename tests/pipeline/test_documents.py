"""Hard documents: sentences apart, a crowd, numbers for names, revisions, other forms; and evidence that is lost."""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES, draw_value
from utaca.biographies.corpora.embedded import articles
from utaca.biographies.dataset import biographies
from utaca.biographies.evidence import condition_of, original, variants
from utaca.biographies.forms import other_form
from utaca.biographies.hard import APART, CROWD, REVISED, alike, another, crowd
from utaca.biographies.padding import SEPARATOR, Padder
from utaca.biographies.people import LOCALES, normalised, split_of
from utaca.biographies.templates import write
from utaca.errors import UserError
from utaca.judging.rules.judge import equivalent, score
from utaca.judging.strings import string_match
from utaca.records.schemas import SCHEMAS
from utaca.reporting.words import corpus_in_words
from utaca.settings import schema
from utaca.settings.compose import compose

ROOT = Path(__file__).parents[2]
ROWS = articles(("Jazz", "Law", "Nile", "DNA"), 0, paragraphs=12)
SPLITS = ("train", "validation", "test")
OF_SPLIT = {split: list(biographies(split, 24, 3, write, "reference")) for split in SPLITS}


def pieces(text: str) -> int:
    # Words in parts of four letters, blank lines and marks apart: several tokens a word.
    return len(re.findall(r"\n\n|[^\W\d_]{1,4}|\d|[^\s\w]", text))


def document(
    biography: dict[str, Any], n_tokens: int = 9000, seed: int = 0, documents: Literal["paper", "hard"] = "hard"
) -> dict[str, Any]:
    return Padder(ROWS, pieces, "embedded", documents).document(biography, n_tokens, random.Random(seed))


def told(row: dict[str, Any], *kinds: str) -> list[str]:
    return [row["text"][span["start"] : span["end"]] for span in row["spans"] if span["kind"] in kinds]


def check(row: dict[str, Any], n_tokens: int, found: int) -> None:
    """What every document keeps; ``found``: facts that have evidence."""
    assert row["n_tokens"] == pieces(row["text"])
    assert abs(row["n_tokens"] - n_tokens) <= 0.01 * n_tokens
    spans = row["spans"]
    assert (spans[0]["start"], spans[-1]["end"]) == (0, len(row["text"]))
    assert all(row["text"][a["end"] : b["start"]] == SEPARATOR for a, b in pairwise(spans))
    assert [each["attribute"] for each in row["evidence"]] == [fact["attribute"] for fact in row["facts"]][:found]
    own = [span for span in spans if span["kind"] == "biography"]
    for each in row["evidence"]:
        assert row["text"][each["start"] : each["end"]] == each["text"]
        assert any(span["start"] <= each["start"] and each["end"] <= span["end"] for span in own)
    # Paragraphs are whole but for the last one, parted at most at their sentences' ends.
    padding = " ".join(" ".join(told(row, "article")).split())
    whole = [text for article in ROWS for text in article["text"].split("\n\n")]
    assert sum(map(padding.count, whole)) >= len(padding) // max(map(len, whole)) - 1


def test_the_papers_documents_are_what_they_were() -> None:
    # Written down before there were options.
    digest = hashlib.sha256()
    for facts, sentences in ((1, 3), (6, 6), (6, 12)):
        names = [{"attribute": f"attribute {i}", "value": f"value {i}"} for i in range(facts)]
        biography = {
            "id": "test-0001",
            "split": "test",
            "person": "Ida Borbach",
            "locale": "de_DE",
            "facts": names,
            "sentences": [f"Sentence {i} tells of Ida Borbach, and of value {i}." for i in range(sentences)],
        }
        for seed in range(4):
            row = Padder(ROWS, pieces, "embedded").document(biography, 700 + 900 * seed, random.Random(seed))
            digest.update(row["text"].encode())
    assert digest.hexdigest() == "b6cc34ff5da37042f4e0fba8e18413ff4b45942bf3811c4ec23a4304625e6793"


@settings(max_examples=30, deadline=None)
@given(split=st.sampled_from(SPLITS), at=st.integers(0, 23), seed=st.integers(0, 10**6))
def test_hard_documents_are_whole(split: str, at: int, seed: int) -> None:
    person = OF_SPLIT[split][at]
    row = document(person, seed=seed)
    check(row, 9000, len(person["facts"]))
    assert row == document(person, seed=seed)
    assert row["facts"] == person["facts"]
    for fact, each in zip(row["facts"], row["evidence"], strict=True):
        assert equivalent(each["text"], fact["value"], fact["attribute"])
    assert len({span["source"] for span in row["spans"] if span["kind"] == "crowd"}) == CROWD
    assert all(person["person"] not in text for text in told(row, "crowd"))
    assert set(SCHEMAS["documents"].names) == row.keys()


def test_hard_documents_fit_the_default_scale_and_name_their_run() -> None:
    settings = compose({"documents": "hard"}, ROOT)
    assert settings["run"] == "quick-hard"
    assert compose({}, ROOT)["documents"] == "paper"
    assert compose({"documents": "hard", "seed": "3"}, ROOT)["run"].startswith("quick-hard-")
    for split in SPLITS:
        least = settings["scale"][split]["tokens"][0]
        row = document(OF_SPLIT[split][0], 2 * least, 1)
        check(row, 2 * least, len(OF_SPLIT[split][0]["facts"]))


def test_each_sentence_has_a_depth_of_its_own() -> None:
    rows = [document(OF_SPLIT["test"][0], seed=seed) for seed in range(20)]
    depths = [span["start"] / len(row["text"]) for row in rows for span in row["spans"] if span["kind"] == "biography"]
    assert len(depths) >= 20 * (len(OF_SPLIT["test"][0]["sentences"]) + 6)
    assert all(sum(a / 4 <= depth < (a + 1) / 4 for depth in depths) > 0.15 * len(depths) for a in range(4))


def test_one_fact_is_not_spread() -> None:
    for person in OF_SPLIT["train"][:6]:
        *fillers, _ = sorted(person["sentences"], key=lambda sentence: person["person"] in sentence)
        (passage,) = [text for text in told(document(person), "biography") if fillers[0] in text]
        assert all(filler in passage for filler in fillers)


@settings(max_examples=40, deadline=None)
@given(split=st.sampled_from(SPLITS), at=st.integers(0, 23), seed=st.integers(0, 10**6))
def test_crowd(split: str, at: int, seed: int) -> None:
    person = OF_SPLIT[split][at]
    found = crowd(person, random.Random(seed))
    names = [other.name for other in found]
    assert len({*map(normalised, names), normalised(person["person"])}) == CROWD + 1
    assert {split_of(name) for name in names} == {split}
    values = {fact["attribute"]: fact["value"] for fact in person["facts"]}
    for other in found:
        own, its = normalised(other.name), normalised(person["person"])
        shared = {own.split()[0] == its.split()[0], own.split()[-1] == its.split()[-1]}
        letters = sum(a != b for a, b in zip(own, its, strict=False))
        assert True in shared or (len(own) == len(its) and letters == 1)
        assert own not in its
        assert its not in own
        assert [attribute for attribute, _ in other.facts] == list(values)
        for attribute, value in other.facts:
            assert not equivalent(value, values[attribute], attribute)
            assert not equivalent(other_form(attribute, value, random.Random(0)), values[attribute], attribute)
            assert any(value in sentence for sentence in other.sentences)


def test_crowd_is_spread_over_the_document() -> None:
    row = document(OF_SPLIT["test"][1])
    depths = [span["start"] / len(row["text"]) for span in row["spans"] if span["kind"] == "crowd"]
    assert min(depths) < 0.1
    assert max(depths) > 0.9
    assert [span["kind"] for span in row["spans"]] != sorted(span["kind"] for span in row["spans"])


def test_every_kind_of_likeness_is_drawn() -> None:
    names = list(islice(alike("Ida Borbach", "de_DE", "test", random.Random(0)), 30))
    assert any(name.startswith("Ida ") and not name.endswith("Borbach") for name in names)
    assert any(name.endswith(" Borbach") and not name.startswith("Ida") for name in names)
    assert any(sum(a != b for a, b in zip(name, "Ida Borbach", strict=True)) == 1 for name in names if len(name) == 11)


@settings(max_examples=25, deadline=None)
@given(split=st.sampled_from(SPLITS), at=st.integers(0, 23), seed=st.integers(0, 10**6))
def test_name_and_value_are_apart(split: str, at: int, seed: int) -> None:
    person = OF_SPLIT[split][at]
    row = document(person, seed=seed)
    own = [row["text"][s["start"] : s["end"]] for s in row["spans"] if s["kind"] == "biography"]
    naming = [text for text in own if person["person"] in text]
    (number,) = {re.search(r"no\. (\d{4})", text)[1] for text in naming}  # type: ignore[index]
    for each in row["evidence"]:
        span = next(s for s in row["spans"] if s["start"] <= each["start"] < s["end"])
        passage = row["text"][span["start"] : span["end"]]
        assert person["person"] not in passage
        assert re.search(rf"\b[Nn]o\. {number}\b", passage)
        before = [s for s in row["spans"] if s["end"] <= span["start"]]
        names = [s for s in before if row["text"][s["start"] : s["end"]] in naming]
        # As tokens are taken to be spread evenly over a paragraph, a few may be missing.
        distances = [
            sum(pieces(row["text"][s["start"] : s["end"]]) for s in before[before.index(n) :] if s["kind"] == "article")
            for n in names
        ]
        assert any(0.8 * APART <= distance <= APART + 120 for distance in distances)


def test_crowds_have_numbers_of_their_own() -> None:
    row = document(OF_SPLIT["test"][2])
    by_name: dict[str, set[str]] = {}
    for span in row["spans"]:
        text = row["text"][span["start"] : span["end"]]
        if span["kind"] != "article":
            by_name.setdefault(span["source"], set()).update(re.findall(r"\b[Nn]o\. (\d{4})\b", text))
    assert all(len(numbers) == 1 for numbers in by_name.values())
    assert len({*map(min, by_name.values())}) == CROWD + 1


@pytest.mark.parametrize("split", SPLITS)
def test_revised_facts_are_stated_and_then_corrected(split: str) -> None:
    outdated = re.compile(r"is not (.+?), as was|and not (.+?)\.$|to be (.+?); the|that (.+?) was given")
    revised, facts = 0, 0
    for at, person in enumerate(OF_SPLIT[split]):
        row = document(person, seed=at)
        facts += len(row["facts"])
        for fact, each in zip(row["facts"], row["evidence"], strict=True):
            span = next(s for s in row["spans"] if s["start"] <= each["start"] < s["end"])
            correction = row["text"][span["start"] : span["end"]]
            if not re.search("Correction:|is wrong|have since shown|to be corrected", correction):
                continue
            revised += 1
            assert fact["attribute"] in correction
            # The outdated value is what both the correction and an earlier passage state.
            old = next(filter(None, outdated.search(correction).groups()))  # type: ignore[union-attr]
            before = [s for s in row["spans"] if s["end"] < span["start"] and s["kind"] == "biography"]
            assert old.lower() in " ".join(row["text"][s["start"] : s["end"]] for s in before).lower()
            assert not equivalent(old, fact["value"], fact["attribute"])
    assert 0.3 * REVISED <= revised / facts <= 1.8 * REVISED


@pytest.mark.parametrize("attribute", [*HELD_OUT_ATTRIBUTES, *TRAINING_ATTRIBUTES])
def test_other_forms_mean_the_reference(attribute: str) -> None:
    rng = random.Random(f"forms of {attribute}")
    for _ in range(150):
        value = draw_value(attribute, rng, rng.choice(LOCALES))
        form = other_form(attribute, value, rng)
        for written in {form, form[0].upper() + form[1:]}:
            answer = f"The {attribute} of Ida Borbach is {written}."
            assert equivalent(written, value, attribute)
            assert score(f"What is the {attribute} of Ida Borbach?", attribute, answer, value)[0] == 1


def test_other_forms_part_string_match_and_judge() -> None:
    rng = random.Random(4)
    by_attribute = {}
    for attribute in HELD_OUT_ATTRIBUTES:
        values = [draw_value(attribute, rng, rng.choice(LOCALES)) for _ in range(300)]
        by_attribute[attribute] = [string_match(other_form(attribute, value, rng), value) for value in values]
    share = {attribute: sum(s == 0 for s in scores) / len(scores) for attribute, scores in by_attribute.items()}
    assert share["birth date"] > 0.7
    assert sum(share.values()) / len(share) > 0.12
    means = {attribute: sum(scores) / len(scores) for attribute, scores in by_attribute.items()}
    assert max(means[attribute] for attribute in ("birth place", "company", "work place")) < 0.85


def test_another_value_is_of_another_meaning() -> None:
    rng = random.Random(0)
    for attribute in (*HELD_OUT_ATTRIBUTES, "marital status"):
        for _ in range(100):
            value = draw_value(attribute, rng, "fr_FR")
            assert not equivalent(another(attribute, [value], "fr_FR", rng), value, attribute)


def test_too_short_for_what_is_told() -> None:
    person, mend = OF_SPLIT["test"][0], r"; raise scale\.test\.tokens or take documents=paper$"
    fits = r"^biography test-0000 has \d+ tokens with its crowd of 12 and does not fit into a document of 3000"
    with pytest.raises(UserError, match=fits + mend) as fault:
        document(person, 3000)
    size = int(re.search(r"has (\d+)", str(fault.value))[1])  # type: ignore[index]
    with pytest.raises(UserError, match=r"leaves no 96 tokens of padding between a name and its value" + mend):
        document(person, size + 60)


@pytest.mark.parametrize("value", ["free", {"crowd": 3}])
def test_documents_are_the_papers_or_hard(value: object) -> None:
    with pytest.raises(UserError, match=r'documents .*"paper", "hard"'):
        compose({"documents": value}, ROOT)


def test_a_model_s_words_are_kept() -> None:
    # It names the person by a part of the name too; the other part is also a value.
    person = OF_SPLIT["test"][0] | {
        "person": "Ida Law",
        "facts": [{"attribute": "major", "value": "Law"}, {"attribute": "company", "value": "Law Brothers"}],
        "sentences": ["Ida Law's life began early.", "Ida read Law.", "When Ida left, she joined Law Brothers."],
    }
    row = document(person)
    number = re.search(r"no\. (\d{4})", " ".join(told(row, "biography")))[1]  # type: ignore[index]
    sentences = [text for text in told(row, "biography") if "Ida Law" not in text]
    assert f"No. {number}'s life began early." in sentences
    assert any(text.startswith(f"No. {number} read ") for text in sentences)
    assert any(text.startswith(f"When no. {number} left, she joined ") for text in sentences)


def test_a_fact_that_a_model_wrote_otherwise_has_no_evidence() -> None:
    person = OF_SPLIT["test"][0]
    row = document(person | {"sentences": ["Much is told elsewhere."]})
    assert row["evidence"] == []


def test_captions_say_that_documents_are_hard() -> None:
    plain = schema.Config(corpus=schema.Corpus(name="own", source="folder"))
    assert corpus_in_words(plain) == "own"
    assert corpus_in_words(replace(plain, documents="hard")) == "own, hard documents"


# Evidence


@pytest.mark.parametrize("documents", ["paper", "hard"])
@pytest.mark.parametrize("split", SPLITS)
def test_documents_lose_what_states_their_facts_and_nothing_else(
    split: str, documents: Literal["paper", "hard"]
) -> None:
    for at in range(12):
        row = document(OF_SPLIT[split][at], seed=at, documents=documents)
        complete, partial, missing = variants(row, schema.EVIDENCE)
        assert complete == {key: row[key] for key in ("id", "person", "facts", "text")}
        if len(row["facts"]) == 1:
            assert len(missing["text"]) < len(partial["text"]) < len(row["text"])
        assert [original(one["id"]) for one in (complete, partial, missing)] == [row["id"]] * 3
        assert [condition_of(one["id"]) for one in (complete, partial, missing)] == list(schema.EVIDENCE)
        lines = [text for text in told(row, "biography") if text in missing["text"]]
        for place in row["evidence"]:
            stated = re.compile(rf"(?<!\w){re.escape(place['text'])}(?!\w)")
            assert not any(map(stated.search, lines))
        others = [text for text in told(row, "crowd", "article") for text in text.split(SEPARATOR)]
        for lost, least in ((partial, -(-len(row["evidence"]) // 2)), (missing, len(row["evidence"]))):
            assert all(text in lost["text"] for text in others), "what is told of others stays"
            assert "\n\n\n" not in lost["text"]
            fewer = [one for one in row["evidence"] if lost["text"].count(one["text"]) < row["text"].count(one["text"])]
            assert len(fewer) >= least
        again = [one["text"] for one in variants(row, ["missing", "partial"])]
        assert again == [missing["text"], partial["text"]], "the order of conditions decides nothing"


def test_partial_evidence_is_half_of_the_facts_drawn_by_document() -> None:
    row = document(OF_SPLIT["test"][0])
    drawn = set()
    for number in range(12):
        (partial,) = variants(row | {"id": f"test-{number:04}"}, ["partial"])
        before = {one["attribute"]: row["text"][one["start"] - 20 : one["end"]] for one in row["evidence"]}
        gone = tuple(attribute for attribute, text in before.items() if text not in partial["text"])
        assert 3 <= len(gone) < 6
        drawn.add(gone)
    assert len(drawn) > 4
