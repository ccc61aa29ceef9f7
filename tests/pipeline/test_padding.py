"""Documents around biographies: length, order, spans, paragraphs used once; and documents without their evidence."""

import random
import re
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utaca.biographies.corpora.embedded import articles
from utaca.biographies.dataset import biographies
from utaca.biographies.evidence import condition_of, original, sentence, variants, verbatim
from utaca.biographies.fillers import Filler, Fillers
from utaca.biographies.padding import SEPARATOR, Padder
from utaca.biographies.templates import write
from utaca.data_files import read
from utaca.errors import UserError
from utaca.judging.rules.passages import passages
from utaca.settings.schema import EVIDENCE

ROWS = articles(("Jazz", "Law", "Nile", "DNA"), 0, paragraphs=12)
PARAGRAPHS = [text for row in ROWS for text in row["text"].split("\n\n")]


def words(text: str) -> int:
    return len(text.split())


def pieces(text: str) -> int:
    # Words in parts of four letters, blank lines and marks apart: several tokens a word.
    return len(re.findall(r"\n\n|[A-Za-z]{1,4}|\d|[^\sA-Za-z\d]", text))


COUNTS = [words, len, pieces]
PADDERS = [Padder(ROWS, count, "embedded") for count in COUNTS]


def biography(facts: int, sentences: int) -> dict[str, Any]:
    return {
        "id": "test-0001",
        "split": "test",
        "person": "Ida Borbach",
        "locale": "de_DE",
        "facts": [{"attribute": f"attribute {i}", "value": f"value {i}"} for i in range(facts)],
        "sentences": [f"Sentence {i} tells of Ida Borbach, and it is the {i}th of its kind." for i in range(sentences)],
        "stated": [],
        "writer": "pattern",
    }


@settings(max_examples=40, deadline=None)
@given(
    kind=st.integers(0, 2),
    facts=st.sampled_from([1, 6]),
    sentences=st.integers(1, 8),
    extra=st.integers(60, 5000),
    seed=st.integers(0, 10**6),
)
def test_document(kind: int, facts: int, sentences: int, extra: int, seed: int) -> None:
    person = biography(facts, sentences)
    count = COUNTS[kind]
    n_tokens = count(" ".join(person["sentences"])) + extra
    row = PADDERS[kind].document(person, n_tokens, random.Random(seed))
    text, spans = row["text"], row["spans"]

    assert row["n_tokens"] == count(text)
    assert abs(row["n_tokens"] - n_tokens) <= 0.01 * n_tokens

    told = [span for span in spans if span["kind"] == "biography"]
    assert {span["source"] for span in told} == {"test-0001"}
    assert " ".join(text[span["start"] : span["end"]] for span in told) == " ".join(person["sentences"])
    assert len(told) == 1 if facts == 1 or sentences == 1 else 1 <= len(told) <= 4

    # Spans tile the text, with separators between them.
    assert spans[0]["start"] == 0
    assert spans[-1]["end"] == len(text)
    assert all(text[a["end"] : b["start"]] == "\n\n" for a, b in pairwise(spans))

    # Paragraphs are whole and of the article that their span names, but for one that is cut; runs keep their order.
    of_title = {article["title"]: article["text"].split("\n\n") for article in ROWS}
    seen: Counter[str] = Counter()
    cut: list[str] = []
    last: dict[str, int] = {}
    for title, part in (
        (span["source"], part)
        for span in spans
        if span["kind"] == "article"
        for part in text[span["start"] : span["end"]].split("\n\n")
    ):
        places = [number for number, whole in enumerate(of_title[title]) if whole.startswith(part)]
        # A cut paragraph may be so short that several paragraphs begin with it.
        following = last.get(title, -1) + 1
        position = following if following in places else places[0]
        if part == of_title[title][position]:
            seen[part] += 1
        else:
            cut.append(part)
        if count(text) < sum(map(count, PARAGRAPHS)):
            assert position == last.get(title, position - 1) + 1
        last[title] = position
    assert len(cut) <= 1
    assert max(seen.values(), default=0) <= 1 or set(seen) == set(PARAGRAPHS)


def test_groups_are_at_varied_depths_the_same_for_the_same_seed() -> None:
    def document(seed: int, padder: Padder) -> dict[str, Any]:
        return padder.document(biography(6, 6), 2000, random.Random(seed))

    rows = [document(seed, PADDERS[0]) for seed in range(60)]
    told = [[span for span in row["spans"] if span["kind"] == "biography"] for row in rows]
    assert {len(spans) for spans in told} == {2, 3, 4}
    depths = [span["start"] / len(row["text"]) for row, spans in zip(rows, told, strict=True) for span in spans]
    assert min(depths) < 0.1
    assert max(depths) > 0.9
    fresh = Padder(ROWS, words, "embedded")
    fresh.document(biography(1, 3), 900, random.Random(0))
    assert document(4, fresh) == rows[4] != rows[5]


def test_biography_that_fills_the_document_stands_alone() -> None:
    person = biography(6, 8)
    size = len(" ".join(person["sentences"]))
    row = PADDERS[1].document(person, size + 2, random.Random(0))
    assert row["text"] == " ".join(person["sentences"])
    assert row["n_tokens"] == size


def test_no_usable_paragraph_or_too_long_a_biography_or_no_cut() -> None:
    with pytest.raises(UserError, match="no usable paragraph"):
        Padder([{"title": "A", "text": "Short."}], words, "own")
    with pytest.raises(UserError, match=r"test-0001 has \d+ tokens and does not fit .* of 20; raise scale\.test"):
        PADDERS[0].document(biography(6, 6), 20, random.Random(0))
    chinese = [{"title": "A", "text": "江水流过群山，流向大海。" * 300}]  # no spaces to cut at
    assert Padder(chinese, len, "own").document(biography(1, 1), 2000, random.Random(0))["n_tokens"] > 1980
    with pytest.raises(UserError, match="within 1 %"):
        Padder(ROWS, lambda text: 50 * len(text.split()), "own").document(biography(1, 1), 775, random.Random(0))


def test_evidence_is_where_the_biography_states_a_value() -> None:
    word = PARAGRAPHS[0].split()[0]  # it stands in the padding too
    facts = {"major": "Law", "university": "Ghent Law College", "hobby": "Chess", "company": word, "age": "4",
             "birth place": "Lyon", "work place": "Lyon", "school": "北京大学"}  # fmt: skip
    sentences = ["Ida Borbach left Ghent Law College.", "Her major was Law.", "Her office is in Lyon.",
                 f"Born in Lyon in 1944, aged 4, she is at {word}.", "她在北京大学学习。"]  # fmt: skip
    stated = [{"attribute": attribute, "value": value} for attribute, value in facts.items()]
    places = verbatim(" ".join(sentences), "Ida Borbach", stated)
    told = {"facts": stated, "sentences": sentences, "stated": places}
    row = PADDERS[0].document(biography(1, 1) | told, 600, random.Random(0))
    evidence = {each["attribute"]: each for each in row["evidence"]}
    assert list(evidence) == [attribute for attribute in facts if attribute != "hobby"]
    told = [span for span in row["spans"] if span["kind"] == "biography"]
    for each in row["evidence"]:
        assert row["text"][each["start"] : each["end"]] == each["text"]
        assert any(span["start"] <= each["start"] and each["end"] <= span["end"] for span in told)
    for attribute, before in (("major", "Her major was "), ("age", "aged ")):
        assert row["text"][: evidence[attribute]["start"]].endswith(before)
    assert evidence["birth place"]["end"] < evidence["work place"]["start"], "a place each"


def test_evidence_is_where_a_form_of_the_value_stands() -> None:
    facts = {"birth date": "12/29/1880", "birth place": "Lyon, France", "work place": "Lyon, France", "major": "Law"}
    sentences = ["Ida Borbach was born on December 29, 1880, in Lyon.", "She read Law.", "Lyon in France is her home."]
    places = passages(" ".join(sentences), "Ida Borbach", [*facts.items()])
    stated = [{"attribute": name, "start": start, "end": end} for name, (start, end) in places.items()]
    values = [{"attribute": attribute, "value": value} for attribute, value in facts.items()]
    told = biography(1, 1) | {"facts": values, "sentences": sentences, "stated": stated}
    for seed in range(8):
        row = PADDERS[0].document(told, 600, random.Random(seed))
        evidence = {each["attribute"]: each for each in row["evidence"]}
        assert {name: each["text"] for name, each in evidence.items()} == {
            "birth date": "December 29, 1880", "birth place": "Lyon", "work place": "Lyon in France", "major": "Law"
        }  # fmt: skip
        assert all(row["text"][each["start"] : each["end"]] == each["text"] for each in row["evidence"])
        assert evidence["birth place"]["end"] < evidence["work place"]["start"]
        assert sentence(row, "12/29/1880") == sentences[0]
        (missing,) = variants(row, ["missing"])
        assert not any(one in missing["text"] for one in sentences)


# Documents of simple sentences

SIMPLE = read("biographies/fillers.yaml", Fillers).fillers


@settings(max_examples=40, deadline=None)
@given(kind=st.integers(0, 2), n_tokens=st.integers(700, 6000), seed=st.integers(0, 10**6))
def test_a_fact_stands_among_whole_simple_sentences(kind: int, n_tokens: int, seed: int) -> None:
    count, (person,) = COUNTS[kind], biographies("train", 1, seed)
    n_tokens *= 5 if count is len else 1
    (row,) = Filler(count).documents([person], n_tokens, random.Random(seed))
    text, spans, (told,) = row["text"], row["spans"], person["sentences"]
    assert [row] == Filler(count).documents([person], n_tokens, random.Random(seed))
    assert (row["n_tokens"], row["corpus"]) == (count(text), "fillers")
    assert abs(row["n_tokens"] - n_tokens) <= 0.01 * n_tokens
    assert (spans[0]["start"], spans[-1]["end"]) == (0, len(text))
    assert all(text[a["end"] : b["start"]] == " " for a, b in pairwise(spans))
    kinds = [span["kind"] for span in spans]
    assert kinds.count("biography") == 1
    assert set(kinds) <= {"biography", "filler"}
    (place,) = row["evidence"]
    assert (place["text"], place["attribute"]) == (person["facts"][0]["value"], person["facts"][0]["attribute"])
    assert text[place["start"] : place["end"]] == place["text"]
    used: Counter[str] = Counter()
    for span in spans:
        part = text[span["start"] : span["end"]]
        if span["kind"] == "biography":
            assert part == told
        else:
            found = re.findall(r"[^.]+\.", part)
            used.update(one.strip() for one in found)
    assert set(used) <= {*SIMPLE}
    # In turn, but for the last one, which is chosen by its length.
    assert max(used.values()) - min((used[one] for one in SIMPLE), default=0) <= 2


def test_a_fact_is_at_any_depth_and_too_short_a_document_is_refused() -> None:
    filler = Filler(words)
    people = enumerate(biographies("train", 400, 0))
    rows = [row for n, person in people for row in filler.documents([person], 900, random.Random(n))]
    depths = sorted(row["evidence"][0]["start"] / len(row["text"]) for row in rows)
    assert all(abs(depth - (n + 0.5) / 400) < 0.08 for n, depth in enumerate(depths)), "uniform"
    (person,) = biographies("validation", 1, 0)
    with pytest.raises(
        UserError, match=r"validation-0000 cannot be filled .* to 4 tokens within 1 %; raise scale\.validation\.tokens"
    ):
        filler.documents([person], 4, random.Random(0))


def test_several_people_share_a_text_of_which_each_has_a_row() -> None:
    filler = Filler(words)
    people = list(biographies("train", 8, 3))
    rows = filler.documents(people, 900, random.Random(3))
    assert [row["id"] for row in rows] == [person["id"] for person in people]
    assert len({row["text"] for row in rows}) == 1
    for row, person in zip(rows, people, strict=True):
        own = [span for span in row["spans"] if span["kind"] == "biography"]
        assert [span["source"] for span in own] == [person["id"]]
        assert row["text"][own[0]["start"] : own[0]["end"]] == person["sentences"][0]
        assert {span["source"] for span in row["spans"] if span["kind"] == "other"} == {
            each["id"] for each in people if each is not person
        }
        (place,) = row["evidence"]
        assert row["text"][place["start"] : place["end"]] == person["facts"][0]["value"]
        # Evidence is taken from one person only.
        (missing,) = variants(row, ["missing"])
        assert person["sentences"][0] not in missing["text"]
        assert all(each["sentences"][0] in missing["text"] for each in people if each is not person)


# Documents that lost their evidence


def narrated(person: str, facts: list[tuple[str, str]]) -> tuple[list[str], list[dict[str, Any]]]:
    sentences = write(person, facts)
    places = passages(" ".join(sentences), person, facts)
    return sentences, [{"attribute": name, "start": start, "end": end} for name, (start, end) in places.items()]


DRAWN = {"train": list(biographies("train", 8, 3)), "test": list(biographies("test", 8, 3, narrated, "rules"))}


@pytest.mark.parametrize("split", DRAWN)
def test_documents_lose_what_states_their_facts_and_nothing_else(split: str) -> None:
    for at, person in enumerate(DRAWN[split]):
        row = PADDERS[2].document(person | {"id": f"people/{at}"}, 3000, random.Random(at))
        complete, partial, missing = variants(row, EVIDENCE)
        assert complete == {key: row[key] for key in ("id", "person", "facts", "text")}
        assert len(missing["text"]) < len(partial["text"]) < len(row["text"])
        assert [original(one["id"]) for one in (complete, partial, missing)] == [row["id"]] * 3
        assert [condition_of(one["id"]) for one in (complete, partial, missing)] == list(EVIDENCE)
        padding = [row["text"][span["start"] : span["end"]] for span in row["spans"] if span["kind"] == "article"]
        for lost, least in ((partial, -(-len(row["evidence"]) // 2)), (missing, len(row["evidence"]))):
            assert all(text in lost["text"] for whole in padding for text in whole.split(SEPARATOR))
            assert "\n\n\n" not in lost["text"]
            fewer = [one for one in row["evidence"] if lost["text"].count(one["text"]) < row["text"].count(one["text"])]
            assert len(fewer) >= least
        again = [one["text"] for one in variants(row, ["missing", "partial"])]
        assert again == [missing["text"], partial["text"]], "the order of conditions decides nothing"
