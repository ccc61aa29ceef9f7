"""What documents may hold beside the paper's: sentences apart, crowds, numbers for names, revisions, other forms."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES, draw_value
from utaca.biographies.corpora.embedded import articles
from utaca.biographies.crowd import alike, another, crowd
from utaca.biographies.dataset import biographies
from utaca.biographies.evidence import condition_of, original, variants
from utaca.biographies.forms import other_form
from utaca.biographies.padding import SEPARATOR, Padder
from utaca.biographies.people import LOCALES, normalised, split_of
from utaca.errors import UserError
from utaca.judging.strings import string_match
from utaca.records.schemas import SCHEMAS
from utaca.reference.judge import equivalent, score
from utaca.reference.writer import write
from utaca.reporting.tables import corpus_in_words
from utaca.settings import schema
from utaca.settings.checks import build
from utaca.settings.compose import compose

ROOT = Path(__file__).parents[1]
ROWS = articles(("Jazz", "Law", "Nile", "DNA"), 0, paragraphs=12)
SPLITS = ("train", "validation", "test")
OF_SPLIT = {split: list(biographies(split, 24, 3, write, "reference")) for split in SPLITS}
HARD = schema.Documents(name="hard", spread="sentences", crowd=12, apart=6, revised=0.25, formats="varied")


def pieces(text: str) -> int:
    # Words in parts of four letters, blank lines and marks apart: several tokens a word.
    return len(re.findall(r"\n\n|[^\W\d_]{1,4}|\d|[^\s\w]", text))


def padder(count: Callable[[str], int] = pieces, **options: Any) -> Padder:
    return Padder(ROWS, count, "embedded", schema.Documents(name="own", **options))


def document(biography: dict[str, Any], n_tokens: int = 4000, seed: int = 0, **options: Any) -> dict[str, Any]:
    return padder(**options).document(biography, n_tokens, random.Random(seed))


def told(row: dict[str, Any], *kinds: str) -> list[str]:
    return [row["text"][span["start"] : span["end"]] for span in row["spans"] if span["kind"] in kinds]


def check(row: dict[str, Any], n_tokens: int, found: int) -> None:
    """What every document keeps, whatever the options; ``found``: facts that have evidence."""
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
@given(
    split=st.sampled_from(SPLITS),
    at=st.integers(0, 23),
    spread=st.sampled_from(["groups", "sentences"]),
    number=st.integers(0, 6),
    apart=st.integers(0, 12),
    revised=st.sampled_from([0.0, 0.5, 1.0]),
    formats=st.sampled_from(["reference", "varied"]),
    seed=st.integers(0, 10**6),
)
def test_options_together(
    split: str, at: int, spread: str, number: int, apart: int, revised: float, formats: str, seed: int
) -> None:
    options = {"spread": spread, "crowd": number, "apart": apart, "revised": revised, "formats": formats}
    person = OF_SPLIT[split][at]
    row = document(person, 7000, seed, **options)
    check(row, 7000, len(person["facts"]))
    assert row == document(person, 7000, seed, **options)
    assert row["facts"] == person["facts"]
    for fact, each in zip(row["facts"], row["evidence"], strict=True):
        assert equivalent(each["text"], fact["value"], fact["attribute"])
        assert formats == "varied" or each["text"] == fact["value"]
    names = {span["source"] for span in row["spans"] if span["kind"] == "crowd"}
    assert len(names) == number
    assert all(person["person"] not in text for text in told(row, "crowd"))
    assert set(SCHEMAS["documents"].names) == row.keys()


def test_hard_is_every_option_and_fits_the_default_scale() -> None:
    settings = compose({"documents": "hard"}, ROOT)
    assert build(schema.Documents, settings["documents"], "documents") == HARD
    assert settings["run"] == "quick-hard"
    assert compose({}, ROOT)["documents"] == vars(schema.Documents())
    for split in SPLITS:
        least = settings["scale"][split]["tokens"][0]
        row = Padder(ROWS, pieces, "embedded", HARD).document(OF_SPLIT[split][0], 2 * least, random.Random(1))
        check(row, 2 * least, len(OF_SPLIT[split][0]["facts"]))


def test_each_sentence_has_a_depth_of_its_own() -> None:
    person = OF_SPLIT["test"][0]
    rows = [document(person, seed=seed, spread="sentences") for seed in range(40)]
    for row in rows:
        leads = re.compile(r"^(?:[^:]*: )?")
        assert [leads.sub("", text) for text in told(row, "biography")] == [
            leads.sub("", text) for text in person["sentences"]
        ]
        # Where a sentence states something, it says of whom.
        for each in row["evidence"]:
            own = next(s for s in row["spans"] if s["start"] <= each["start"] < s["end"])
            assert person["person"] in row["text"][own["start"] : own["end"]]
    firsts = [row["spans"][0]["kind"] == "biography" for row in rows]
    assert any(firsts)
    assert not all(firsts)
    depths = [span["start"] / len(row["text"]) for row in rows for span in row["spans"] if span["kind"] == "biography"]
    assert all(sum(a / 4 <= depth < (a + 1) / 4 for depth in depths) > 0.15 * len(depths) for a in range(4))


def test_one_fact_is_not_spread() -> None:
    person = OF_SPLIT["train"][0]
    assert document(person, spread="sentences")["text"].count(" ".join(person["sentences"])) == 1


@settings(max_examples=40, deadline=None)
@given(split=st.sampled_from(SPLITS), at=st.integers(0, 23), seed=st.integers(0, 10**6))
def test_crowd(split: str, at: int, seed: int) -> None:
    person = OF_SPLIT[split][at]
    found = crowd(person, 9, random.Random(seed))
    names = [other.name for other in found]
    assert len({*map(normalised, names), normalised(person["person"])}) == 10
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
    assert crowd(person, 4, random.Random(seed)) == found[:4]


def test_crowd_is_spread_over_the_document() -> None:
    row = document(OF_SPLIT["test"][1], 8000, crowd=10)
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
@given(split=st.sampled_from(SPLITS), at=st.integers(0, 23), apart=st.integers(1, 20), seed=st.integers(0, 10**6))
def test_name_and_value_are_apart(split: str, at: int, apart: int, seed: int) -> None:
    person = OF_SPLIT[split][at]
    row = document(person, 5000, seed, apart=apart)
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
        assert any(0.8 * 16 * apart <= distance <= 16 * apart + 120 for distance in distances)


def test_crowds_have_numbers_of_their_own() -> None:
    row = document(OF_SPLIT["test"][2], 9000, crowd=8, apart=2)
    by_name: dict[str, set[str]] = {}
    for span in row["spans"]:
        text = row["text"][span["start"] : span["end"]]
        if span["kind"] != "article":
            by_name.setdefault(span["source"], set()).update(re.findall(r"\b[Nn]o\. (\d{4})\b", text))
    assert all(len(numbers) == 1 for numbers in by_name.values())
    assert len({*map(min, by_name.values())}) == 9


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("spread", ["groups", "sentences"])
def test_revised_facts_are_stated_and_then_corrected(split: str, spread: str) -> None:
    for person in OF_SPLIT[split][:6]:
        row = document(person, 5000, revised=1.0, spread=spread, crowd=2)
        corrected = [text for text in told(row, "biography") if re.search("orrect|wrong|have since shown", text)]
        for fact, each in zip(row["facts"], row["evidence"], strict=True):
            span = next(s for s in row["spans"] if s["start"] <= each["start"] < s["end"])
            correction = row["text"][span["start"] : span["end"]]
            assert any(fact["attribute"] in text and fact["value"] in text for text in corrected)
            assert person["person"] in correction
            assert not re.search(rf"(?:not|be|that) {re.escape(each['text'])}(?:,|\.|;| was given)", correction)
            before = [s for s in row["spans"] if s["end"] < span["start"] and s["kind"] == "biography"]
            first = " ".join(row["text"][s["start"] : s["end"]] for s in before)
            # The outdated value is what both the correction and an earlier passage state.
            found = re.search(
                r"is not (.+?), as was|and not (.+?)\.$|to be (.+?); the|that (.+?) was given", correction
            )
            assert found is not None
            old = next(filter(None, found.groups()))
            assert old in first
            assert not equivalent(old, fact["value"], fact["attribute"])


def test_share_of_revised_facts() -> None:
    rows = [document(person, 3000, revised=0.25) for person in OF_SPLIT["test"]]
    texts = [" ".join(told(row, "biography")) for row in rows]
    count = sum(len(re.findall("Correction:|is wrong|have since shown|to be corrected", text)) for text in texts)
    assert 0.15 <= count / (6 * len(rows)) <= 0.35


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


def test_too_short_for_the_crowd() -> None:
    with pytest.raises(
        UserError,
        match=r"^biography test-0000 and its crowd of 40 have \d+ tokens and do not fit into a document of 3000; "
        r"raise scale\.test\.tokens or lower documents\.crowd$",
    ):
        document(OF_SPLIT["test"][0], 3000, crowd=40)


def test_too_short_for_what_stands_between() -> None:
    with pytest.raises(UserError, match=r"leaves no 4800 tokens of padding between a name .* lower documents\.apart$"):
        document(OF_SPLIT["test"][0], 3000, apart=300)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("crowd", 41, "documents.crowd"),
        ("crowd", -1, "documents.crowd"),
        ("apart", -1, "documents.apart"),
        ("revised", 1.5, "documents.revised"),
        ("spread", "words", 'one of "groups", "sentences"'),
        ("formats", "free", 'one of "reference", "varied"'),
        ("name", "a/b", "documents.name"),
        ("crowds", 3, "crowd"),
    ],
)
def test_bad_values(key: str, value: object, says: str) -> None:
    with pytest.raises(UserError, match=says):
        compose({"documents": {key: value}}, ROOT)


def test_a_model_s_words_are_kept() -> None:
    # It names the person by a part of the name too; the other part is also a value.
    person = OF_SPLIT["test"][0] | {
        "person": "Ida Law",
        "facts": [{"attribute": "major", "value": "Law"}, {"attribute": "company", "value": "Law Brothers"}],
        "sentences": ["Ida Law's life began early.", "Ida read Law.", "When Ida left, she joined Law Brothers."],
    }
    row = document(person, 2000, apart=3, spread="sentences")
    number = re.search(r"no\. (\d{4})", " ".join(told(row, "biography")))[1]  # type: ignore[index]
    sentences = [text for text in told(row, "biography") if "Ida Law" not in text]
    assert sentences == [
        f"No. {number}'s life began early.",
        f"No. {number} read Law.",
        f"When no. {number} left, she joined Law Brothers.",
    ]


def test_a_fact_that_a_model_wrote_otherwise_has_no_evidence() -> None:
    person = OF_SPLIT["test"][0]
    first = replace(HARD, crowd=1)
    row = Padder(ROWS, pieces, "embedded", first).document(
        person | {"sentences": ["Much is told elsewhere."]}, 3000, random.Random(0)
    )
    assert row["evidence"] == []


def test_captions_name_the_options() -> None:
    plain = schema.Config(corpus=schema.Corpus(name="own", source="folder"))
    assert corpus_in_words(plain) == "own"
    other = replace(plain, documents=schema.Documents(name="mine", crowd=3, formats="varied"))
    assert corpus_in_words(other) == "own, documents with crowd 3, formats varied"


# Evidence


@pytest.mark.parametrize("options", [{}, {**vars(HARD)}], ids=["groups", "hard"])
@pytest.mark.parametrize("split", SPLITS)
def test_documents_lose_what_states_their_facts_and_nothing_else(split: str, options: dict[str, Any]) -> None:
    options.pop("name", None)
    for at in range(12):
        row = document(OF_SPLIT[split][at], 9000, seed=at, **options)
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
    row = document(OF_SPLIT["test"][0], spread="sentences")
    drawn = set()
    for number in range(12):
        (partial,) = variants(row | {"id": f"test-{number:04}"}, ["partial"])
        before = {one["attribute"]: row["text"][one["start"] - 20 : one["end"]] for one in row["evidence"]}
        gone = tuple(attribute for attribute, text in before.items() if text not in partial["text"])
        assert 3 <= len(gone) < 6
        drawn.add(gone)
    assert len(drawn) > 4
