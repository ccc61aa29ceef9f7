"""Recall of the gold block: which step and which blocks count, against hand-made traces and a restatement."""

import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import factories
import numpy as np
import pyarrow as pa
import pytest
from configs import decoding, point, reference_config
from conftest import ROOT
from small import SmallTokenizer, make_reader

from utaca.decoding.loop import generate
from utaca.errors import UserError
from utaca.layout import Layout
from utaca.memory import prefill
from utaca.readers.prompts import Prompts
from utaca.readers.tokenizer import load_tokenizer
from utaca.records import SCHEMAS, write
from utaca.reporting.registry import Files
from utaca.reporting.table import Table
from utaca.reporting.tables import retrieval
from utaca.settings import schema

PERSON, QUESTION = "Ada Lopez", "Which?"
MEMORY = schema.MemorySettings(block_size=4, n_init=4, n_local=8)
POINTS = [point("infllm", 4), point("infllm", 1), point("utaca", 2, "sub.1")]
# In SmallTokenizer a character is a token, and its template writes one before the document.
TEXT = "." * 20 + "Chess" + "." * 35 + "Law" + "." * 37


@pytest.fixture
def config() -> schema.Config:
    reader = schema.ReaderSettings(name="tiny", path=str(ROOT / "data/readers/tiny"), memory=MEMORY)
    return reference_config(reader=reader, **decoding(test=POINTS))


@pytest.fixture(scope="module")
def letters() -> Prompts:
    return Prompts(SmallTokenizer())


document = factories.long_document
Given = dict[tuple[str, str], tuple[Sequence[str], Sequence[Sequence[Sequence[int]]]]]
"""By point and document, the texts of an answer's tokens and what each layer retrieved for each."""


def files(folder: Path, documents, given: Given, reader: Prompts, cas=None, lengths=None) -> Files:
    """Files of a run; CAS is 1 except as in ``cas``."""
    by_id = {one["id"]: one for one in documents}
    lengths = lengths or {name: len(reader.document(one["text"])) for name, one in by_id.items()}
    about = {one.label: one for one in POINTS}
    answers = [
        factories.answer(name, about[label], question=QUESTION, text="".join(texts), n_context=lengths[name])
        for (label, name), (texts, _) in given.items()
    ]
    scores = [
        factories.score(name, label, fact["attribute"], (cas or {}).get((label, name, fact["attribute"]), 1.0))
        for label, name in given
        for fact in by_id[name]["facts"]
    ]
    steps = [
        factories.step(name, label, number, text, selected=blocks)
        for (label, name), (texts, selected) in given.items()
        for number, (text, blocks) in enumerate(zip(texts, selected, strict=True))
    ]
    random.Random(0).shuffle(steps)
    of_documents, *traces = (folder / f"{name}.parquet" for name in ("documents", "traces-0", "traces-1"))
    write(of_documents, "documents", documents)
    for number, path in enumerate(traces):
        write(path, "traces", [row for row in steps if (row["document"] == min(by_id)) == (number == 0)])
    made = factories.inputs(*factories.saved(folder, answers, scores))
    return made | {"test_documents": [of_documents], "test_traces": traces}


def said(*values: tuple[str, str], cut: int = 0) -> list[str]:
    """An answer, a token a character."""
    text = " ".join(f"The {attribute} of {PERSON} is {value}." for attribute, value in values)
    return list(text[: len(text) - cut])


@pytest.mark.parametrize(
    ("start", "n_local", "near"),
    # Blocks before the first, and those in the window, cannot be drawn; of the last value only block 17 is far.
    [(20, 8, {3, 4, 5, 6}), (3, 8, {0, 1, 2}), (13, 8, {1, 2, 3, 4}), (71, 60, {16, 17})],
)
def test_chance_is_that_of_blocks_drawn_at_random(tmp_path, config, letters, start, n_local, near) -> None:
    config.reader.memory = schema.MemorySettings(block_size=4, n_init=4, n_local=n_local)
    text, texts = "." * start + "Chess" + "." * (95 - start), said(("hobby", "Go"))
    given: Given = {("infllm-K4", "d"): (texts, [[[0, 7, 8, 9]]] * len(texts))}
    made = files(tmp_path, [document("d", text, {"hobby": "Chess"})], given, letters)
    (fact,) = retrieval.facts(made, letters, config)
    # The token before the value's first is the position that retrieves.
    position = len(f"[{text}\n\n{QUESTION}]The hobby of {PERSON} is ") - 1
    n_far = (position + 1 - n_local - MEMORY.n_init) // MEMORY.block_size
    rng = random.Random(start)
    drawn = [bool(near & set(rng.sample(range(n_far), 4))) for _ in range(40000)]
    assert fact.chance == pytest.approx(sum(drawn) / len(drawn), abs=0.01)


# By hand


def test_the_table_by_hand(tmp_path, config, letters) -> None:
    """Two documents of two facts, under K=1 and K=4 in three layers; the adaptive point answers one fact alone."""
    # A token a character, and one before the document: "Chess" is the tokens 21 to 25. Behind 4 initial tokens, in
    # blocks of 4, these are of the blocks (21 - 4) // 4 = 4 and (25 - 4) // 4 = 5; gold are 3 to 6. "Law" is the tokens
    # 61 to 63, of block 14; gold are 13 to 15.
    documents = [document(name, TEXT, {"hobby": "Chess", "major": "Law"}) for name in "ab"]
    texts = said(("hobby", "Go"), ("major", "Latin"))
    answer = f"The hobby of {PERSON} is Go. The major of {PERSON} is Latin."
    assert "".join(texts) == answer
    hobby, major = answer.index("Go."), answer.index("Latin.")

    def layers(of_hobby: list[list[int]], of_major: list[list[int]]) -> list[list[list[int]]]:
        """At every other step gold blocks of both facts are retrieved, which must not count."""
        selected = [[[4, 14]] * 3 for _ in texts]
        selected[hobby], selected[major] = of_hobby, of_major
        return selected

    given: Given = {
        # In "a" the second layer finds the hobby and the third both; in "b" the third finds the hobby.
        ("infllm-K1", "a"): (texts, layers([[2], [3], [4]], [[12], [16], [14]])),
        ("infllm-K1", "b"): (texts, layers([[0], [7], [6]], [[1], [0], [12]])),
        # The first layer finds all, the second the major of "b", the third nothing.
        ("infllm-K4", "a"): (texts, layers([[0, 1, 2, 3], [7, 8, 9, 10], [0, 1, 2, 7]],
                                           [[0, 1, 2, 13], [0, 1, 2, 12], [9, 10, 11, 12]])),
        ("infllm-K4", "b"): (texts, layers([[5, 14, 15, 16], [0, 1, 2, 14], [0, 1, 2, 7]],
                                           [[1, 2, 3, 15], [1, 2, 3, 15], [10, 11, 12, 16]])),
        ("utaca-K2-sub1", "a"): (texts[: major - 1], layers([[0, 4], [0, 1], [0, 2]], [])[: major - 1]),
    }  # fmt: skip
    cas = {
        ("infllm-K1", "a", "major"): 0.25,
        ("infllm-K1", "b", "hobby"): None,
        ("infllm-K1", "b", "major"): 0.0,
        ("infllm-K4", "b", "major"): 0.5,
        ("utaca-K2-sub1", "a", "hobby"): 0.75,
    }
    found = retrieval.facts(files(tmp_path, documents, given, letters, cas), letters, config)
    table = Table.of("retrieval", retrieval.recall(found, config), config)
    assert "Recall of the gold block" in table.title
    one, four, adaptive = (row for _, row in table.frame.iterrows())

    # Of four facts the first layer finds none, the second one, the third three: "a" has both, "b" the hobby.
    assert (one["point"], one["adaptive"], one["k"], one["layers"]) == ("infllm-K1", False, 1, 3)
    assert (one["n_documents"], one["n_asked"], one["n_facts"]) == (2, 4, 4)
    assert (one["best_layer"], one["recall_pct"], one["any_recall_pct"]) == (3, 75, 75)
    assert one["mean_recall_pct"] == pytest.approx(100 * (0 + 1 + 3) / 12)
    # A resample of two documents is "a" twice (100 %), both (75 %) or "b" twice (50 %); each end is a fourth of them.
    assert (one["recall_pct_low"], one["recall_pct_high"]) == (50, 100)
    # Recalled and judged are both facts of "a" (1 and 0.25); of "b" the hobby was not judged, the major was missed.
    assert (one["n_failed_judgements"], one["n_recalled"], one["n_missed"]) == (1, 2, 1)
    assert (one["cas_recalled_pct"], one["cas_missed_pct"]) == (62.5, 0)
    # The value is step 26 behind 110 tokens, decoded by the pass at position 135; the major's, step 56, at 165. Far
    # from there are (135 + 1 - 8 - 4) // 4 = 31 blocks, and (165 + 1 - 8 - 4) // 4 = 38; one of them is drawn.
    assert (len(letters.document(TEXT)) + len(letters.question(QUESTION)), hobby, major) == (110, 26, 56)
    assert one["chance_pct"] == pytest.approx(100 * (4 / 31 + 3 / 38) / 2)

    assert (four["point"], four["k"], four["n_facts"], four["best_layer"]) == ("infllm-K4", 4, 4, 1)
    assert (four["recall_pct"], four["any_recall_pct"]) == (100, 100)
    assert four["mean_recall_pct"] == pytest.approx(100 * (4 + 1 + 0) / 12)
    assert np.isnan([four["recall_pct_low"], four["recall_pct_high"]]).all(), "all documents are alike"
    assert (four["n_failed_judgements"], four["n_recalled"], four["n_missed"]) == (0, 4, 0)
    assert four["cas_recalled_pct"] == 87.5
    assert np.isnan(four["cas_missed_pct"])
    # None of four blocks is gold: of 31 the 4, or of 38 the 3.
    none = [27 * 26 * 25 * 24 / (31 * 30 * 29 * 28), 35 * 34 * 33 * 32 / (38 * 37 * 36 * 35)]
    assert four["chance_pct"] == pytest.approx(100 * (1 - sum(none) / 2))

    # The answer ends before the major is said.
    assert (adaptive["point"], adaptive["adaptive"], adaptive["k"]) == ("utaca-K2-sub1", True, 2)
    assert (adaptive["n_asked"], adaptive["n_facts"], adaptive["n_not_said"]) == (2, 1, 1)
    assert (adaptive["best_layer"], adaptive["recall_pct"], adaptive["cas_recalled_pct"]) == (1, 100, 75)
    assert adaptive["mean_recall_pct"] == pytest.approx(100 / 3)
    assert adaptive["chance_pct"] == pytest.approx(100 * (1 - (27 * 26) / (31 * 30)))


# What counts apart

FACTS = {"hobby": "Chess", "major": "Law"}
BOTH = said(("hobby", "Go"), ("major", "unknown"))
HOBBY, MAJOR = document("d", TEXT, FACTS)["evidence"]
NOWHERE = {"attribute": "major", "text": None, "start": None, "end": None}
NOT_ASKED = {"attribute": "company", "text": ".", "start": 0, "end": 1}
INITIAL = {"attribute": "hobby", "text": "...", "start": 0, "end": 3}
"""In the tokens that are attended to without retrieval."""


@pytest.mark.parametrize(
    ("texts", "evidence", "n_local", "hobby", "major"),
    [
        (BOTH, [HOBBY, NOWHERE], 8, "", "n_no_evidence"),
        (BOTH, None, 8, "n_no_evidence", "n_no_evidence"),
        (BOTH, [HOBBY, MAJOR, NOT_ASKED], 8, "", ""),
        (said(("major", "Law")), [HOBBY, MAJOR], 8, "n_not_said", ""),
        (said(("hobby", "Go"), ("major", ""), cut=1), [HOBBY, MAJOR], 8, "", "n_not_said"),
        (said(("hobby", "Go"), ("major", "L"), cut=1), [HOBBY, MAJOR], 8, "", ""),
        (list(f"The hobby of Eve is Go. The major of {PERSON} was Law."), [HOBBY, MAJOR], 8, *["n_not_said"] * 2),
        ([], [HOBBY, MAJOR], 8, "n_not_said", "n_not_said"),
        # A fact that is stated twice is in view if one statement is.
        (BOTH, [HOBBY, INITIAL, MAJOR], 8, "n_in_view", ""),
        (BOTH, [HOBBY, MAJOR], 110, "", "n_in_view"),
    ],
)
def test_facts_that_do_not_count_are_counted_apart(tmp_path, config, letters, texts, evidence, n_local, hobby, major):
    config.reader.memory = schema.MemorySettings(block_size=4, n_init=4, n_local=n_local)
    given: Given = {("infllm-K1", "d"): (texts, [[[0]] * 2] * len(texts))}
    made = files(tmp_path, [document("d", TEXT, FACTS, evidence=evidence)], given, letters)
    found = retrieval.facts(made, letters, config)
    assert [fact.excluded for fact in found] == [hobby, major]
    table = retrieval.recall(found, config).set_index("point").loc["infllm-K1"]
    for reason in ("n_no_evidence", "n_not_said", "n_in_view"):
        assert table[reason] == [hobby, major].count(reason)
    assert (table["n_asked"], table["n_facts"]) == (2, [hobby, major].count(""))
    unknown = table[["best_layer", "recall_pct", "mean_recall_pct"]].isna()
    assert set(unknown) == {not table["n_facts"]}


@pytest.mark.parametrize(
    ("texts", "value", "blocks", "evidence", "recalled"),
    [
        # Either statement of a fact will do.
        (said(("hobby", "Go")), -3, [[12], [5], [9]], [HOBBY, INITIAL | {"start": 50, "end": 53}], [True, True, False]),
        # A value may begin with bytes that are no text yet.
        (["The hobby of ", PERSON, " is ", "", "", "É", "checs", "."], 3, [[4]], [HOBBY], [True]),
    ],
)
def test_the_step_before_a_value_retrieves_it(tmp_path, config, letters, texts, value, blocks, evidence, recalled):
    selected = [[[0]] * len(blocks) for _ in texts]
    selected[value] = blocks
    one = document("d", TEXT, {"hobby": "Chess"}, evidence=evidence)
    (fact,) = retrieval.facts(files(tmp_path, [one], {("infllm-K1", "d"): (texts, selected)}, letters), letters, config)
    assert list(fact.recalled) == recalled


# Against a restatement


@pytest.mark.parametrize("layers", [1, 6, 30])
@pytest.mark.parametrize("kind", ["letters", "tiny"])
def test_recall_against_brute_force(tmp_path, config, letters, monkeypatch, kind: str, layers: int) -> None:
    monkeypatch.setattr(retrieval, "_BATCH", 7)  # files are read in parts
    rng = random.Random(f"{kind}{layers}")
    tokenizer = load_tokenizer(config.reader.path) if kind == "tiny" else None
    reader = Prompts(tokenizer) if tokenizer else letters
    words = ["the", "river", "bank", "of", "old", "stones", "and", "quiet", "lakes", "where", "people"]
    facts = {"hobby": "Playing Chess", "major": "Law", "birth date": "1 May 1913", "work place": "Lyon, France"}
    documents, given, cas = [], {}, {}
    for name in ("a", "b", "c"):
        filler = rng.choices(words, k=150)
        for value in facts.values():
            filler.insert(rng.randrange(len(filler)), value)
        text = " ".join(filler)
        documents.append(document(name, text, facts))
    for of, one in product(POINTS, documents):
        answered = rng.sample(list(facts.items()), rng.randint(2, 4))
        sentences = " ".join(f"The {a} of {PERSON} is {rng.choice([v, 'unknown'])}." for a, v in answered)
        cuts = sorted(rng.sample(range(1, len(sentences)), len(sentences) // 3))
        texts = [sentences[a:b] for a, b in zip([0, *cuts], [*cuts, len(sentences)], strict=True)]
        far = (len(reader.document(one["text"])) - 12) // 4
        selected = [[sorted(rng.sample(range(far), min(far, 4))) for _ in range(layers)] for _ in texts]
        given[of.label, one["id"]] = texts, selected
        cas |= {(of.label, one["id"], attribute): rng.choice([0.0, 0.5, 1.0, None]) for attribute in facts}
    made = files(tmp_path, documents, given, reader, cas)
    found = retrieval.facts(made, reader, config)
    rows = []
    for (label, name), (texts, selected) in given.items():
        one = next(d for d in documents if d["id"] == name)
        for attribute in facts:
            outcome = brute(one, attribute, texts, selected, reader, tokenizer)
            rows.append((label, name, cas[label, name, attribute], outcome))
    for fact, (label, name, score, outcome) in zip(found, rows, strict=True):
        assert (fact.point, fact.document) == (label, name)
        assert fact.cas == score or (score is None and np.isnan(fact.cas))
        assert (fact.excluded or list(fact.recalled)) == outcome
    assert {row[-1] if isinstance(row[-1], str) else "" for row in rows} >= {"", "n_not_said"}
    frame = retrieval.retrieval(made, config) if tokenizer else retrieval.recall(found, config)
    table = Table.of("retrieval", frame, config)
    assert table.cells(folded=False)[0][:3] == ["Point", "Facts", "Best layer"]
    assert list(table.frame["point"]) == ["infllm-K1", "infllm-K4", "utaca-K2-sub1"]
    figures = table.frame.set_index("point")
    for of in POINTS:
        own = [(score, outcome) for label, _, score, outcome in rows if label == of.label and isinstance(outcome, list)]
        recall = [sum(outcome[layer] for _, outcome in own) / len(own) for layer in range(layers)]
        best = recall.index(max(recall))
        row = figures.loc[of.label]
        assert row["best_layer"] == best + 1
        assert row["adaptive"] == (of.method == "utaca")
        assert row["recall_pct"] == pytest.approx(100 * recall[best])
        # Where all documents are alike there is no interval.
        assert np.isnan(row["recall_pct_low"]) or row["recall_pct_low"] <= row["recall_pct"] <= row["recall_pct_high"]
        assert row["n_failed_judgements"] == sum(score is None for score, _ in own)
        assert row["mean_recall_pct"] == pytest.approx(100 * sum(recall) / layers)
        assert row["any_recall_pct"] == pytest.approx(100 * sum(any(outcome) for _, outcome in own) / len(own))
        for hit, name in ((True, "recalled"), (False, "missed")):
            judged = [score for score, outcome in own if outcome[best] == hit and score is not None]
            assert row[f"n_{name}"] == len(judged)
            assert row[f"cas_{name}_pct"] == pytest.approx(100 * np.mean(judged or [np.nan]), nan_ok=True)


def brute(one, attribute: str, texts, selected, reader: Prompts, tokenizer) -> str | list[bool]:
    """Why a fact is left out, or which layers recalled it; for texts in ASCII, token by token."""
    answer = "".join(texts)
    opening = f"The {attribute} of {PERSON} is "
    if opening not in answer:
        return "n_not_said"
    place, step = answer.index(opening) + len(opening), 0
    while sum(len(text) for text in texts[: step + 1]) <= place:
        step += 1
    tokens = reader.document(one["text"])
    written = [tokenizer.decode(tokens[:n]) if tokenizer else "[" * min(n, 1) + one["text"][: max(n - 1, 0)]
               for n in range(len(tokens) + 1)]  # fmt: skip
    whole = reader.before + one["text"]
    assert written[-1] == whole
    (span,) = (e for e in one["evidence"] if e["attribute"] == attribute)
    first, last = (len(reader.before) + span[edge] for edge in ("start", "end"))
    gold = [n for n in range(len(tokens)) if len(written[n]) < last and len(written[n + 1]) > first]
    position = len(tokens) + len(reader.question(QUESTION)) - 1 + step
    # Far: blocks whose last token lies before the window of the last n_local tokens.
    far = {n for n in gold if n >= 4 and 4 + 4 * ((n - 4) // 4 + 1) - 1 < position + 1 - 8}
    if not far:
        return "n_in_view"
    return [any(abs((n - 4) // 4 - block) <= 1 for n in far for block in layer) for layer in selected[step]]


def test_far_blocks_are_those_of_the_engine() -> None:
    """Under a budget above all blocks the engine retrieves each that is far, at the position that is assumed here."""
    reader = make_reader()
    memory = reader.settings.memory
    document, question = "Some words about nothing, and more of them. " * 3, "Who was it?"
    answer = generate(prefill(reader, document), question, budget=1000, max_new_tokens=20)
    prompts, layout = Prompts(SmallTokenizer()), Layout(memory.n_init, memory.n_local, memory.block_size)
    first = len(prompts.document(document)) + len(prompts.question(question)) - 1
    for step, token in enumerate(answer.trace):
        assert token.selected.tolist() == [list(range(layout.n_far(first + step)))] * 3
    assert len({token.k for token in answer.trace}) > 1


# Bad input


def one_fact(folder: Path, reader: Prompts, lengths: dict[str, int] | None = None, **columns: Any) -> Files:
    texts = said(("hobby", "Go"))
    given: Given = {("infllm-K1", "d"): (texts, [[[0]]] * len(texts))}
    return files(folder, [document("d", TEXT, {"hobby": "Chess"}, **columns)], given, reader, lengths=lengths)


def test_other_files_are_sentences(tmp_path, config, letters) -> None:
    with pytest.raises(UserError, match=r"d has 101 tokens, but its answers were made when it had 90; generate them"):
        retrieval.facts(one_fact(tmp_path, letters, lengths={"d": 90}), letters, config)
    for start in (19, 21, -5, 500):
        made = one_fact(tmp_path, letters, evidence=[HOBBY | {"start": start, "end": start + 5}])
        with pytest.raises(UserError, match=r"ts\.parquet: the evidence of attribute 'hobby' is not in .* make it ag"):
            retrieval.facts(made, letters, config)
    made = one_fact(tmp_path, letters)
    before = document("d", TEXT, {"hobby": "Chess"})
    del before["evidence"]
    older = pa.schema([field for field in SCHEMAS["documents"] if field.name != "evidence"])
    write(made["test_documents"][0], "documents", [before], schema=older)
    with pytest.raises(UserError, match=r"has no column evidence, so another version made it"):
        retrieval.facts(made, letters, config)
    write(made["test_documents"][0], "documents", [document("e", TEXT, {"hobby": "Chess"})])
    with pytest.raises(UserError, match=r"has an answer about document d, which .* does not have; remove both files"):
        retrieval.facts(made, letters, config)
    write(made["test_scores"][0], "scores", [])
    with pytest.raises(UserError, match=r"scores\.parquet was made from other data"):
        retrieval.facts(made, letters, config)
    write(made["test_answers"][0], "answers", [])
    with pytest.raises(UserError, match=r"has no answers"):
        retrieval.facts(made | {"test_scores": []}, letters, config)
