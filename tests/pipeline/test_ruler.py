"""RULER's qa_1 and qa_2: prompts to the character, their length, what evidence is left, and scores."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from utaca.errors import UserError
from utaca.readers.prompts import SEPARATOR, Prompts
from utaca.readers.tokenizer import load_tokenizer
from utaca.settings.schema import EVIDENCE, TaskSetSettings
from utaca.tasks.ruler import QA1, QA2
from utaca.tasks.task import Example, Task

OFFICIAL = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
    "\n\nThe following are given documents.\n\n{context}\n\n"
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
    "\n\nQuestion: {query}"
)
EVERYTHING = 10**7
"""A length that holds every document."""

Squad = Mapping[str, Sequence[tuple[str, Sequence[tuple[str, Sequence[str]]]]]]
"""Articles: paragraphs, each with its questions and their answers."""


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts(load_tokenizer(str(Path(__file__).parents[2] / "data" / "readers" / "tiny"), ""))


@pytest.fixture
def made(prompts: Prompts) -> Callable[..., list[Example]]:
    """Examples of a task of a file."""

    def examples(task: Task, questions: Path, **settings: Any) -> list[Example]:
        files = {"questions": questions, **{name: Path(name) for name in settings.get("pool", [])}}
        return task.examples(TaskSetSettings(task=task.name, **settings), files, prompts)

    return examples


def write(path: Path, rows: object, *, lines: bool = False) -> Path:
    text = "\n".join(json.dumps(row) for row in rows) if lines else json.dumps(rows)  # type: ignore[attr-defined]
    path.write_text(text, encoding="utf-8")
    return path


def squad_file(path: Path, articles: Squad) -> Path:
    data = [
        {
            "title": title,
            "paragraphs": [
                {
                    "context": context,
                    "qas": [
                        {"id": f"{title}-{n}-{m}", "question": asked, "is_impossible": not answers,
                         "answers": [{"text": answer, "answer_start": context.find(answer)} for answer in answers]}
                        for m, (asked, answers) in enumerate(questions)
                    ],
                }
                for n, (context, questions) in enumerate(paragraphs)
            ],
        }
        for title, paragraphs in articles.items()
    ]  # fmt: skip
    return write(path, {"version": "v2.0", "data": data})


def numbered(count: int, first: int = 100, words: int = 6) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Paragraphs of one length, each with a question to which its own number is the answer."""
    said = " ".join(["grain"] * words)
    return [
        (f"The mill {n} ground {said}. It stood by river {n}.", [(f"Which mill is {n}?", [f"river {n}"])])
        for n in range(first, first + count)
    ]


def hotpot_rows(count: int = 4) -> list[dict[str, Any]]:
    """HotpotQA's official layout; the first and the third paragraph support the answer, which the third tells."""
    return [
        {
            "_id": f"q{n}",
            "question": f"Who painted the door of house {n}?",
            "answer": f"Painter {n}",
            "supporting_facts": [[f"House {n}", 0], [f"Door {n}", 1], [f"House {n}", 1]],
            "context": [
                [f"House {n}", [f"House {n} has a door.", " It is green."]],
                [f"Roof {n}", ["A roof.", f" It is no work of Painter {n}."]],
                [f"Door {n}", ["A door.", f" Painter {n} painted it."]],
                *([f"Field {n}{m}", [f"Field {m} lies near.", " It is flat."]] for m in range(7)),
            ],
        }
        for n in range(count)
    ]


def simple(row: Mapping[str, Any]) -> dict[str, Any]:
    """The same row in the layout of files that have paragraphs whole."""
    return {
        "index": row["_id"],
        "question": row["question"],
        "answer": row["answer"],
        "supporting_titles": [title for title, _ in row["supporting_facts"]],
        "context": [[title, "".join(sentences)] for title, sentences in row["context"]],
    }


def documents(example: Example) -> list[str]:
    """A prompt's documents, the prompt being the official template to the character."""
    context = example.text.partition("The following are given documents.\n\n")[2]
    found = re.split(r"(?:^|\n\n)Document \d+:\n", context)[1:]
    numbered = "\n\n".join(f"Document {number}:\n{document}" for number, document in enumerate(found, 1))
    query = example.question.partition("\n\nQuestion: ")[2]
    assert example.text + SEPARATOR + example.question == OFFICIAL.format(context=numbered, query=query)
    return found


def shuffled(given: Sequence[str], seed: int = 42) -> list[str]:
    order = list(given)
    random.Random(seed).shuffle(order)
    return order


def tokens(prompts: Prompts, example: Example) -> int:
    """Of prompt and answer together."""
    return len(prompts.document(example.text)) + len(prompts.question(example.question)) + len(
        prompts.text(" Answer:")
    ) + 32  # fmt: skip


# Prompts


def test_prompt_is_the_official_one(tmp_path, made):
    articles = {"Mills": numbered(3), "Rivers": [("A river\n\nruns. ", []), ("Another one.", [])]}
    file = squad_file(tmp_path / "squad.json", articles)
    every = sorted(context for paragraphs in articles.values() for context, _ in paragraphs)
    first, *_ = made(QA1(), file, length=EVERYTHING)
    context = "\n\n".join(f"Document {n}:\n{document}" for n, document in enumerate(shuffled(every), 1))
    prompt = OFFICIAL.format(context=context, query="Which mill is 100?")
    assert first.text + SEPARATOR + first.question == prompt
    assert (first.id, first.document, first.references) == ("Mills-0-0", "Mills/1", ("river 100",))
    assert first.query == "Which mill is 100?"


def test_documents_are_gold_then_the_article_then_random_before_they_are_shuffled(tmp_path, made, prompts):
    others = [("Another text.", []), ("A third text.", [])]
    file = squad_file(tmp_path / "squad.json", {"Mills": numbered(4), "Other": others})
    own = [context for context, _ in numbered(4)]
    whole = made(QA1(), file, length=EVERYTHING)
    fewer = made(QA1(), file, length=tokens(prompts, whole[0]) - 1)
    assert len(fewer) == 4
    for n, example in enumerate(fewer):
        ordered = [own[n], *own[:n], *own[n + 1 :]]
        assert documents(example) in [shuffled([*ordered, other]) for other in ("Another text.", "A third text.")]
    one_article = made(QA1(), file, length=tokens(prompts, whole[0]) - 40, examples=2)
    assert [len(documents(example)) for example in one_article] == [3, 3]
    assert all(set(documents(example)) < set(own) for example in one_article)
    assert [own[n] in documents(example) for n, example in enumerate(one_article)] == [True, True]


@pytest.mark.parametrize(("count", "rank"), [(50, 20), (100, 71)])
def test_number_of_documents_is_the_most_and_the_gold_one_has_one_rank(count, rank, tmp_path, made, prompts):
    file = squad_file(tmp_path / "squad.json", {"Mills": numbered(3), "More": numbered(120, 200)})
    chosen = [context for context, _ in [*numbered(3), *numbered(count - 3, 200)]]
    context = "\n\n".join(f"Document {n}:\n{document}" for n, document in enumerate(chosen, 1))
    prompt = OFFICIAL.format(context=context, query="Which mill is 100?")
    text, question = prompt.rsplit("\n\nAnswer", 1)
    length = tokens(prompts, Example("", "", text, "Answer" + question, ()))
    examples = made(QA1(), file, length=length, examples=30)
    assert {len(documents(example)) for example in examples} == {count}
    assert {tokens(prompts, example) for example in examples} == {length}
    gold = [context for context, _ in [*numbered(3), *numbered(27, 200)]]
    assert {documents(example).index(text) + 1 for example, text in zip(examples, gold, strict=True)} == {rank}
    # The first does not hold one more; with a token less, it holds one fewer.
    shorter = made(QA1(), file, length=length - 1, examples=2)
    assert [len(documents(example)) for example in shorter] == [count - 1, count - 1]
    assert len(documents(made(QA1(), file, length=length + 1, examples=1)[0])) == count
    # Each has distractors of its own, the same whatever the length.
    assert set(documents(examples[0])) - {gold[0]} != set(documents(examples[3])) - {gold[3]}
    assert set(documents(shorter[0])) < set(documents(examples[0]))


def test_longer_samples_have_ten_documents_fewer_and_then_one(tmp_path, made, prompts):
    long = numbered(1, 500, words=150)
    file = squad_file(tmp_path / "squad.json", {"Mills": numbered(1), "Long": long, "More": numbered(60, 200)})
    most, used = {}, {}
    for length in (650, 1000, 1800):
        first, second, *_ = made(QA1(), file, length=length)
        most[length], used[length] = len(documents(first)), len(documents(second))
        assert max(tokens(prompts, first), tokens(prompts, second)) <= length
        assert documents(second).count(long[0][0]) == 1
        # With as many documents as a step less has, it would have been too long.
        each = tokens(prompts, first) / most[length]
        step = 10 if used[length] > 10 else 1
        assert tokens(prompts, second) + (step + 1) * each > length
    assert most[1800] - used[1800] == 10
    assert 1 < used[650] < 10 < most[1800]


def test_official_samples_are_permuted_alike_and_mended_ones_not(tmp_path, made):
    file = squad_file(tmp_path / "squad.json", {"Mills": numbered(40)})
    own = {f"Mills-{n}-0": context for n, (context, _) in enumerate(numbered(40))}
    ranks = {}
    for mended in (False, True):
        examples = made(QA1(), file, length=900, examples=20, mended=mended)
        assert len({len(documents(example)) for example in examples}) == 1
        ranks[mended] = [documents(example).index(own[example.id]) for example in examples]
        if not mended:
            assert [example.id for example in examples] == list(own)[:20]
        else:
            drawn = [example.id for example in examples]
            assert drawn != list(own)[:20]
            assert len(set(drawn)) == 20
            assert [e.id for e in made(QA1(), file, length=900, examples=5, mended=True)] == drawn[:5]
            assert made(QA1(), file, length=900, examples=20, mended=True) == examples
    assert len(set(ranks[False])) == 1
    assert len(set(ranks[True])) > 3


# Files


def test_both_layouts_of_hotpotqa_are_one(tmp_path, made):
    rows = hotpot_rows()
    official = made(QA2(), write(tmp_path / "a.json", rows), length=1200, evidence=list(EVIDENCE))
    assert official == made(
        QA2(), write(tmp_path / "b.jsonl", map(simple, rows), lines=True), length=1200, evidence=list(EVIDENCE)
    )
    first = made(QA2(), tmp_path / "a.json", length=1200)[0]
    assert "House 0\nHouse 0 has a door. It is green." in documents(first)
    assert (first.id, first.document, first.references) == ("q0", "q0", ("Painter 0",))


def test_pool_distracts_without_what_the_questions_file_has(tmp_path, made):
    file = squad_file(tmp_path / "squad.json", {"Mills": numbered(2), "Unasked": [("Not for this set.", [])]})
    pool = [
        squad_file(tmp_path / "a.json", {"Mills": [("Another cut of mills.", [])], "New": [("New text.", [])]}),
        write(
            tmp_path / "b.jsonl",
            [{"title": "Copy", "text": numbered(2)[0][0].replace(" ", "  ")}, {"title": "P", "text": "Paragraph."},
             {"title": "Again", "text": "New text."}, {"title": "Elsewhere", "text": "Not for this set."}],
            lines=True,
        ),
        write(tmp_path / "c.json", [simple(hotpot_rows(1)[0]) | {"context": [["H", "From HotpotQA."]]}]),
    ]  # fmt: skip
    paths = list(map(str, pool))
    found = made(QA1(), file, length=EVERYTHING, pool=paths, articles=["Mills"])
    own = [context for context, _ in numbered(2)]
    assert sorted(documents(found[0])) == sorted([*own, "New text.", "Paragraph.", "From HotpotQA."])
    hotpot = write(tmp_path / "q.json", hotpot_rows(1))
    titled = documents(made(QA2(), hotpot, length=EVERYTHING, pool=paths)[0])
    assert "P\nParagraph." in titled
    assert "New\nNew text." in titled


def test_articles_in_their_order_and_no_other_paragraph(tmp_path, made):
    articles = {"A": numbered(2), "B": numbered(2, 200), "C": numbered(2, 300)}
    file = squad_file(tmp_path / "squad.json", articles)
    found = made(QA1(), file, length=EVERYTHING, articles=["C", "A"])
    assert [example.document for example in found] == ["C/1", "C/2", "A/1", "A/2"]
    assert sorted(documents(found[0])) == sorted(context for title in "AC" for context, _ in articles[title])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"length": 600}, r"question Long-0-0 does not fit into length=600.*; raise the set's length"),
        ({"length": 50}, "question Mills-0-0 does not fit into length=50"),
        ({}, "fills a prompt up to its set's length"),
        ({"length": 32}, "which is 32; give it one that holds more than an answer"),
        ({"length": EVERYTHING, "articles": ["Mills", "Gone"]}, "has no article 'Gone'"),
        ({"length": EVERYTHING, "examples": 4}, "has 3 questions for task qa_1, its set wants 4"),
    ],
)
def test_settings_that_cannot_be(settings, said, tmp_path, made):
    file = squad_file(tmp_path / "squad.json", {"Mills": numbered(2), "Long": numbered(1, 500, words=900)})
    with pytest.raises(UserError, match=said):
        made(QA1(), file, **settings)


def test_articles_are_squads(tmp_path, made):
    with pytest.raises(UserError, match="articles are qa_1's"):
        made(QA2(), write(tmp_path / "a.json", hotpot_rows()), length=EVERYTHING, articles=["A"])


PARAGRAPH = {"context": "A text.", "qas": [{"id": "x", "question": "?", "answers": [{"text": "text"}]}]}


@pytest.mark.parametrize(
    ("task", "rows", "said"),
    [
        (QA1(), {"data": [{"title": "A"}]}, ", row 1, has no list of objects under 'paragraphs'"),
        (QA1(), {"data": [{"title": "A", "paragraphs": [{"context": "x"}]}]},
         ", article A, paragraph 1, has no list of objects under 'qas'"),
        (QA1(), {"data": [{"title": "A", "paragraphs": [PARAGRAPH, PARAGRAPH]}]}, " has two questions of one id"),
        (QA1(), {"data": []}, " has 0 questions"),
        (QA1(), {"data": [{"title": "A", "paragraphs": [{"context": "x", "qas": [
            {"id": "y", "question": "?", "is_impossible": False, "answers": []}]}]}]}, ", question y, has no answer"),
        (QA1(), {"data": 3}, " is no list of rows"),
        (QA2(), [{**hotpot_rows(1)[0], "answer": " "}], ", row 1, has no text under 'answer'"),
        (QA2(), [hotpot_rows(1)[0], {"question": "?"}], ", row 2, has no titled paragraphs under 'context'"),
        (QA2(), [{**hotpot_rows(1)[0], "supporting_facts": 1}], ", row 1, has no titles under 'supporting_facts'"),
    ],
)  # fmt: skip
def test_files_of_another_layout(task, rows, said, tmp_path, made):
    file = write(tmp_path / "bad.json", rows)
    with pytest.raises(UserError, match=rf"bad\.json{said}.*; "):
        made(task, file, length=EVERYTHING)


@pytest.mark.parametrize("layout", [lambda row: row, simple])
def test_paragraphs_of_one_title_all_stand_in_the_prompt(
    layout: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path, made: Callable[..., list[Example]]
) -> None:
    first, *others = hotpot_rows(3)
    gold = first["context"][2]
    first["context"] += [[gold[0], ["Another door", " stands in Leeds."]], gold]
    rows = [layout(row) for row in (first, *others)]
    found = made(QA2(), write(tmp_path / "rows.json", rows), length=EVERYTHING, evidence=["complete", "missing"])
    whole, missing = documents(found[0]), documents(found[1])
    assert whole.count("Door 0\nA door. Painter 0 painted it.") == 1
    assert whole.count("Door 0\nAnother door stands in Leeds.") == 1
    assert not any(document.startswith("Door 0\n") for document in missing)


def test_official_by_the_number_of_answerable_questions_and_articles(tmp_path, monkeypatch):
    asked = [("Which?", ["text"]), ("What?", [])]
    squad = squad_file(tmp_path / "a.json", {"A": [("A text.", asked)], "B": [("B text.", asked)]})
    hotpot = write(tmp_path / "b.json", hotpot_rows(4))
    for task, file, counts in ((QA1, squad, {"rows": 2, "articles": 2}), (QA2, hotpot, {"rows": 4})):
        for name, count in counts.items():
            assert not task().is_official({"questions": file})
            monkeypatch.setattr(task, name, count)
        assert task().is_official({"questions": file})


# Evidence


def test_evidence_of_hotpotqa(tmp_path, made):
    file = write(tmp_path / "a.json", hotpot_rows(5))
    stray = [{"title": "Stray", "text": "Here painter 0 lives."}, {"title": "Other", "text": "Nobody lives here."}]
    pool = [str(write(tmp_path / "pool.jsonl", stray, lines=True))]
    found = made(QA2(), file, length=EVERYTHING, evidence=list(EVIDENCE), examples=2, pool=pool)
    assert [example.id for example in found] == ["q0", "q0/partial", "q0/missing", "q1", "q1/partial", "q1/missing"]
    complete, partial, missing = (
        {document.partition("\n")[0] for document in documents(example)} for example in found[:3]
    )
    assert {"House 0", "Roof 0", "Door 0", "Stray"} <= complete
    assert complete - partial == {"Roof 0", "Door 0", "Stray"}
    assert complete - missing == {"House 0", "Roof 0", "Door 0", "Stray"}
    # A stray paragraph tells nothing of the second question.
    assert "Stray" in {document.partition("\n")[0] for document in documents(found[5])}


def test_what_is_left_out_is_replaced_by_distractors(tmp_path, made):
    file = write(tmp_path / "a.json", hotpot_rows(6))
    for group in zip(*[iter(made(QA2(), file, length=1200, evidence=list(EVIDENCE)))] * 3, strict=True):
        counts = [len(documents(example)) for example in group]
        assert counts[0] > 12
        assert len(set(counts)) == 1


def test_yes_and_no_leave_no_paragraph_out(tmp_path, made):
    row = hotpot_rows(1)[0] | {"answer": "no"}
    found = made(QA2(), write(tmp_path / "a.json", [row]), length=EVERYTHING, evidence=["missing"])
    assert {document.partition("\n")[0] for document in documents(found[0])} == {
        title for title, _ in row["context"]
    } - {"House 0", "Door 0"}  # fmt: skip


@pytest.mark.parametrize(
    ("paragraph", "answers", "left"),
    [
        ("One stood here. Two were far. The tower fell in 1804. It was red.", ["1804", "in 1804"],
         "One stood here. Two were far."),
        ('He said "so." The tower fell.', ["tower"], 'He said "so."'),
        ("The very old tower fell in 1804. It was red.", ["1804"], "The very old"),
        # The score would find an answer wherever it stands.
        ("The 1804 ship sank. A tower fell in 1804.", ["1804"], "The"),
        ("1804 was dry.", ["1804"], None),
    ],
)  # fmt: skip
def test_partial_evidence_of_squad_ends_before_the_answer(paragraph, answers, left, tmp_path, made):
    near = [("The article tells of 1804 too.", []), ("The article tells of little.", [])]
    file = squad_file(
        tmp_path / "squad.json",
        {"A": [(paragraph, [("When?", answers)]), *near], "B": [("Elsewhere 1804 tower.", [])]},
    )
    complete, partial, missing = made(QA1(), file, length=EVERYTHING, evidence=list(EVIDENCE))
    kept = {"The article tells of little.", "Elsewhere 1804 tower."}
    told = {"The article tells of 1804 too."}
    stays = set() if "1804" in answers else told
    assert set(documents(complete)) == kept | told | {paragraph}
    assert set(documents(missing)) == kept | stays
    assert set(documents(partial)) == kept | stays | ({left} if left else set())


# Scores


@pytest.mark.parametrize(
    ("prediction", "references", "score"),
    [
        ("Norway", ["No"], 100),
        (" the FRANCE of old", ["Spain", "france"], 100),
        ("The U.S.", ["US"], 0),
        ("a\tb", ["a\nb"], 100),
        ("\x01 France \x1f", ["France"], 100),
        ("France", [" France"], 0),
        ("the France", ["a France", "e France"], 100),
    ],
)
def test_score_is_the_official_substring_test(prediction, references, score):
    assert QA1().score(prediction, references) == QA2().score(prediction, references) == score


@pytest.mark.parametrize(("kind", "task"), [("qa_1", QA1()), ("qa_2", QA2())])
def test_the_protocols_calibration_has_no_evidence_and_no_question_of_its_tests(kind: str, task: Task, made) -> None:
    root = Path(__file__).parents[2]
    folder = Path(os.environ.get("UTACA_DATA", root.parent / "shared" / "data"))
    sets = yaml.safe_load((root / "config" / "tasks" / "protocol.yaml").read_text(encoding="utf-8"))["sets"]

    def drawn(name: str) -> list[Example]:
        keys = {key: sets[name][key] for key in ("articles", "examples") if key in sets[name]}
        questions = folder / sets[name]["files"]["questions"]
        if not questions.is_file():
            pytest.skip("needs files of SQuAD and HotpotQA; UTACA_DATA names the folder that has them")
        return made(task, questions, length=16384, evidence=["complete", "missing"], **keys)

    def evidence(examples: list[Example]) -> set[str]:
        by_name: dict[str, list[set[str]]] = {}
        for example in examples:
            by_name.setdefault(example.id.partition("/")[0], []).append(set(documents(example)))
        return set().union(*(complete - missing for complete, missing in by_name.values()))

    test, calibration = drawn(f"{kind}-4k"), drawn(f"{kind}-calibration")
    assert len(evidence(test)) >= 20
    assert not evidence(test) & evidence(calibration)
    assert not {example.query for example in test} & {example.query for example in calibration}
