"""RULER's qa_1 and qa_2: prompts to the character, their length, what evidence is left, and scores."""

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

Paragraph = tuple[str, Sequence[tuple[str, Sequence[str]]]]
"""Its text, and its questions with their answers."""


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


def squad_file(path: Path, articles: Mapping[str, Sequence[Paragraph]]) -> Path:
    data = []
    for title, paragraphs in articles.items():
        data.append({"title": title, "paragraphs": []})
        for n, (context, questions) in enumerate(paragraphs):
            qas = [
                {"id": f"{title}-{n}-{m}", "question": asked, "is_impossible": not answers,
                 "answers": [{"text": answer} for answer in answers]}
                for m, (asked, answers) in enumerate(questions)
            ]  # fmt: skip
            data[-1]["paragraphs"].append({"context": context, "qas": qas})
    return write(path, {"version": "v2.0", "data": data})


def numbered(count: int, first: int = 100, words: int = 6) -> list[Paragraph]:
    """Paragraphs of one length, each with a question to which its own number is the answer."""
    said = " ".join(["grain"] * words)
    return [
        (f"The mill {n} ground {said}. It stood by river {n}.", [(f"Which mill is {n}?", [f"river {n}"])])
        for n in range(first, first + count)
    ]


def hotpot_rows(count: int = 4) -> list[dict[str, Any]]:
    """HotpotQA's official layout; the first and the third paragraph support the answer, which the third tells."""
    rows = []
    for n in range(count):
        house = [f"House {n}", [f"House {n} has a door.", " It is green."]]
        roof = [f"Roof {n}", ["A roof.", f" It is no work of Painter {n}."]]
        door = [f"Door {n}", ["A door.", f" Painter {n} painted it."]]
        fields = [[f"Field {n}{m}", [f"Field {m} lies near.", " It is flat."]] for m in range(7)]
        row = {"_id": f"q{n}", "question": f"Who painted the door of house {n}?", "answer": f"Painter {n}"}
        facts = [[f"House {n}", 0], [f"Door {n}", 1], [f"House {n}", 1]]
        rows.append(row | {"supporting_facts": facts, "context": [house, roof, door, *fields]})
    return rows


def simple(row: Mapping[str, Any]) -> dict[str, Any]:
    """The same row in the layout of files that have paragraphs whole."""
    return {
        "index": row["_id"],
        "question": row["question"],
        "answer": row["answer"],
        "supporting_titles": [title for title, _ in row["supporting_facts"]],
        "context": [[title, "".join(sentences)] for title, sentences in row["context"]],
    }


def context_of(texts: Sequence[str]) -> str:
    return "\n\n".join(f"Document {number}:\n{text}" for number, text in enumerate(texts, 1))


def documents(example: Example) -> list[str]:
    """A prompt's documents, the prompt being the official template to the character."""
    context = example.text.partition("The following are given documents.\n\n")[2]
    found = re.split(r"(?:^|\n\n)Document \d+:\n", context)[1:]
    query = example.question.partition("\n\nQuestion: ")[2]
    assert example.text + SEPARATOR + example.question == OFFICIAL.format(context=context_of(found), query=query)
    return found


def titles(example: Example) -> set[str]:
    """Of a prompt's documents from HotpotQA."""
    return {document.partition("\n")[0] for document in documents(example)}


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


def test_documents_are_gold_then_the_article_then_random_before_they_are_shuffled(tmp_path, made, prompts):
    others = [("Another\n\ntext. ", []), ("A third text.", [])]
    file = squad_file(tmp_path / "squad.json", {"Mills": numbered(4), "Other": others})
    own = [context for context, _ in numbered(4)]
    whole = made(QA1(), file, length=EVERYTHING)
    first = whole[0]
    assert (first.id, first.document, first.references) == ("Mills-0-0", "Mills/1", ("river 100",))
    assert first.query == "Which mill is 100?"
    every = shuffled(sorted([*own, *(context for context, _ in others)]))
    prompt = OFFICIAL.format(context=context_of(every), query="Which mill is 100?")
    assert first.text + SEPARATOR + first.question == prompt
    fewer = made(QA1(), file, length=tokens(prompts, first) - 1)
    assert len(fewer) == 4
    for n, example in enumerate(fewer):
        ordered = [own[n], *own[:n], *own[n + 1 :]]
        assert documents(example) in [shuffled([*ordered, other]) for other, _ in others]
    for n, example in enumerate(made(QA1(), file, length=tokens(prompts, first) - 40, examples=2)):
        assert len(documents(example)) == 3
        assert {own[n]} < set(documents(example)) < set(own)


@pytest.mark.parametrize(("count", "rank"), [(50, 20), (100, 71)])
def test_number_of_documents_is_the_most_and_the_gold_one_has_one_rank(count, rank, tmp_path, made, prompts):
    file = squad_file(tmp_path / "squad.json", {"Mills": numbered(3), "More": numbered(120, 200)})
    chosen = [context for context, _ in [*numbered(3), *numbered(count - 3, 200)]]
    prompt = OFFICIAL.format(context=context_of(chosen), query="Which mill is 100?")
    text, question = prompt.rsplit("\n\nAnswer", 1)
    length = tokens(prompts, Example("", "", text, "Answer" + question, ()))
    examples = made(QA1(), file, length=length, examples=30)
    assert {len(documents(example)) for example in examples} == {count}
    assert {tokens(prompts, example) for example in examples} == {length}
    gold = [context for context, _ in [*numbered(3), *numbered(27, 200)]]
    assert {documents(example).index(text) + 1 for example, text in zip(examples, gold, strict=True)} == {rank}
    # With a token less, the first holds one fewer; its distractors are the same whatever the length.
    shorter = made(QA1(), file, length=length - 1, examples=2)
    assert [len(documents(example)) for example in shorter] == [count - 1, count - 1]
    assert set(documents(shorter[0])) < set(documents(examples[0]))


def test_official_samples_are_permuted_alike_and_shuffled_ones_not(tmp_path, made):
    file = squad_file(tmp_path / "squad.json", {"Mills": numbered(40)})
    gold = {f"Mills-{n}-0": context for n, (context, _) in enumerate(numbered(40))}
    official, shuffled = (made(QA1(), file, length=900, examples=20, shuffled=shuffled) for shuffled in (False, True))
    ranks = [[documents(one).index(gold[one.id]) for one in examples] for examples in (official, shuffled)]
    assert len(set(ranks[0])) == 1
    assert len(set(ranks[1])) > 3
    assert [example.id for example in official] == list(gold)[:20] != [example.id for example in shuffled]
    assert made(QA1(), file, length=900, examples=5, shuffled=True) == shuffled[:5]


# Files


def test_pool_distracts_without_what_the_questions_file_has(tmp_path, made):
    articles = {"Mills": numbered(2), "Unasked": [("Not for this set.", [])], "More": numbered(1, 200)}
    file = squad_file(tmp_path / "squad.json", articles)
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
    found = made(QA1(), file, length=EVERYTHING, pool=paths, articles=["More", "Mills"])
    assert [example.document for example in found] == ["More/1", "Mills/1", "Mills/2"], "in the set's order"
    asked = [context for title in ("Mills", "More") for context, _ in articles[title]]
    assert sorted(documents(found[0])) == sorted([*asked, "New text.", "Paragraph.", "From HotpotQA."])
    hotpot = write(tmp_path / "q.json", hotpot_rows(1))
    titled = documents(made(QA2(), hotpot, length=EVERYTHING, pool=paths)[0])
    assert {"P\nParagraph.", "New\nNew text."} < set(titled)


@pytest.mark.parametrize(
    ("task", "settings", "said"),
    [
        (QA1(), {"length": 600}, r"question Long-0-0 .* does not fit into length=600; raise the set's length"),
        (QA1(), {"length": 32}, r"needs a length above 32, .* has length=32; raise length"),
        (QA1(), {"length": EVERYTHING, "articles": ["Mills", "Gone"]}, "has no article 'Gone'"),
        (QA1(), {"length": EVERYTHING, "examples": 4}, "has 3 questions for task qa_1, but its set asks for 4"),
        (QA2(), {"length": EVERYTHING, "articles": ["A"]}, "articles is only for qa_1"),
    ],
)
def test_settings_that_cannot_be(task, settings, said, tmp_path, made):
    file = squad_file(tmp_path / "squad.json", {"Mills": numbered(2), "Long": numbered(1, 500, words=900)})
    with pytest.raises(UserError, match=said):
        made(task, file, **settings)


PARAGRAPH = {"context": "A text.", "qas": [{"id": "x", "question": "?", "answers": [{"text": "text"}]}]}


@pytest.mark.parametrize(
    ("task", "rows", "said"),
    [
        (QA1(), {"data": [{"title": "A"}]}, ", row 1, has no list of objects under 'paragraphs'"),
        (QA1(), {"data": [{"title": "A", "paragraphs": [{"context": "x"}]}]},
         ", article A, paragraph 1, has no list of objects under 'qas'"),
        (QA1(), {"data": [{"title": "A", "paragraphs": [PARAGRAPH, PARAGRAPH]}]},
         " has two questions with the same id"),
        (QA1(), {"data": [{"title": "A", "paragraphs": [{"context": "x", "qas": [
            {"id": "y", "question": "?", "is_impossible": False, "answers": []}]}]}]}, ", question y, has no answer"),
        (QA1(), {"data": 3}, " is not a list of rows"),
        (QA2(), [{**hotpot_rows(1)[0], "answer": " "}], ", row 1, has no text under 'answer'"),
        (QA2(), [hotpot_rows(1)[0], {"question": "?"}], ", row 2, has no titled paragraphs under 'context'"),
        (QA2(), [{**hotpot_rows(1)[0], "supporting_facts": 1}], ", row 1, has no titles under 'supporting_facts'"),
    ],
)  # fmt: skip
def test_files_of_another_layout(task, rows, said, tmp_path, made):
    file = write(tmp_path / "bad.json", rows)
    with pytest.raises(UserError, match=rf"bad\.json{said}.*; "):
        made(task, file, length=EVERYTHING)


def test_both_layouts_of_hotpotqa_are_one_and_all_paragraphs_of_one_title_stand_in_the_prompt(tmp_path, made):
    first, *others = hotpot_rows(3)
    door = first["context"][2]
    first["context"] += [[door[0], ["Another door", " stands in Leeds."]], door]
    kinds = {"length": EVERYTHING, "evidence": ["complete", "missing"]}
    found = made(QA2(), write(tmp_path / "a.json", [first, *others]), **kinds)
    assert found == made(QA2(), write(tmp_path / "b.jsonl", map(simple, [first, *others]), lines=True), **kinds)
    whole, missing = documents(found[0]), documents(found[1])
    assert "House 0\nHouse 0 has a door. It is green." in whole
    assert whole.count("Door 0\nA door. Painter 0 painted it.") == 1
    assert whole.count("Door 0\nAnother door stands in Leeds.") == 1
    assert not any(document.startswith("Door 0\n") for document in missing)
    assert (found[0].id, found[0].document, found[0].references) == ("q0", "q0", ("Painter 0",))


# Evidence


def test_evidence_of_hotpotqa(tmp_path, made):
    no = hotpot_rows(1)[0] | {"_id": "no", "answer": "no"}
    file = write(tmp_path / "a.json", [*hotpot_rows(5), no])
    stray = [{"title": "Stray", "text": "Here painter 0 lives."}, {"title": "Other", "text": "Nobody lives here."}]
    pool = [str(write(tmp_path / "pool.jsonl", stray, lines=True))]
    found = made(QA2(), file, length=EVERYTHING, evidence=list(EVIDENCE), pool=pool)
    assert [example.id for example in found[:6]] == ["q0", "q0/partial", "q0/missing", "q1", "q1/partial", "q1/missing"]
    complete, partial, missing = map(titles, found[:3])
    assert {"House 0", "Roof 0", "Door 0", "Stray"} <= complete
    assert complete - partial == {"Roof 0", "Door 0", "Stray"}
    assert complete - missing == {"House 0", "Roof 0", "Door 0", "Stray"}
    assert "Stray" in titles(found[5]), "it tells nothing of the second question"
    assert complete - titles(found[-1]) == {"House 0", "Door 0"}, "a no leaves no other paragraph out"
    # What is left out is replaced by distractors.
    counts = [len(documents(example)) for example in made(QA2(), file, length=1200, evidence=list(EVIDENCE))]
    assert counts[::3] == counts[1::3] == counts[2::3]
    assert min(counts) > 12


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


def test_score_is_the_official_substring_test():
    for prediction, references, score in (
        ("Norway", ["No"], 100),
        (" the FRANCE of old", ["Spain", "france"], 100),
        ("The U.S.", ["US"], 0),
        ("a\tb", ["a\nb"], 100),
        ("\x01 France \x1f", ["France"], 100),
        ("France", [" France"], 0),
    ):
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


def test_the_small_questions_are_whole_and_calibration_has_people_of_its_own(made) -> None:
    root = Path(__file__).parents[2]
    sets = yaml.safe_load((root / "config" / "tasks" / "small.yaml").read_text(encoding="utf-8"))["sets"]
    tasks = {"qa_1": QA1(), "qa_2": QA2()}
    seen: dict[str, set[str]] = {}
    for name, keys in sets.items():
        keys = {key: value for key, value in keys.items() if key not in ("task", "files", "budgets")}
        task, path = tasks[sets[name]["task"]], root / "data" / "tasks" / sets[name]["files"]["questions"]
        assert not task.is_official({"questions": path}), "tables say protocol"
        # Every question that the file has for the set, too.
        examples = [*made(task, path, **keys), *made(task, path, **keys | {"examples": 0})]
        for example in examples:
            stated = any(task.score(document, example.references) for document in documents(example))
            # What is left of the evidence stands behind a question's name, unless all is.
            assert stated == ("/" not in example.id), example.id
        seen[name] = {document for example in examples for document in documents(example)}
    # Partial evidence is a text of its own.
    assert (len(seen["qa_1-1k"]), len(seen["qa_1-calibration"])) == (12, 2 * 12)
    assert not seen["qa_1-calibration"] & (seen["qa_1-1k"] | {x.partition("\n")[2] for x in seen["qa_2-1k"]})
