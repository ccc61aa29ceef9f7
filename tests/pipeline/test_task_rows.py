"""Tasks of a row a line: prompts to the character, cut as officially, files of other layouts, metrics to the digit."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from transformers import AutoTokenizer

from utaca.errors import UserError
from utaca.readers.prompts import SEPARATOR, Prompts
from utaca.settings.schema import TaskSetSettings
from utaca.tasks.metrics import rouge_l, rouge_lsum, token_f1
from utaca.tasks.registry import files_of, task_of
from utaca.tasks.task import Example

TINY = ROOT / "data" / "readers" / "tiny"
BOOK = {"id": 7, "context": "Call me {input}.\nSome {years} ago.", "input": "Who?", "answer": ["Ishmael", "him"]}
STORY = {"_id": "a1", "context": " A tale. \n\n", "input": "Who {context}?", "answers": ["Nell"], "length": 2}
MEETING = {
    "topic_list": [],
    "general_query_list": [{"query": "Summarize it.", "answer": "They met."}],
    "specific_query_list": [{"query": "What did B say?", "answer": "Yes.", "relevant_text_span": [["0", "1"]]}],
    "meeting_transcripts": [{"speaker": "A", "content": "Well ? {vocalsound}"}, {"speaker": "Dr B", "content": ""}],
}
ROWS = {
    "longbook_sum_eng": BOOK | {"input": ""},
    "longbook_qa_eng": BOOK,
    "narrativeqa": STORY,
    "qmsum": STORY,
    "meetings": MEETING,
}
QMSUM = (
    "You are given a meeting transcript and a query containing a question or instruction. Answer the query in one or "
    "more sentences.\n\nTranscript:\n{}\n\nNow, answer the query based on the above meeting transcript in one or more "
    "sentences.\n\nQuery: {}\nAnswer:"
)


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts(AutoTokenizer.from_pretrained(TINY))


@pytest.fixture
def ask(tmp_path: Path, prompts: Prompts) -> Callable[..., list[Example]]:
    """The examples of a task from rows, or from the lines of a file."""

    def ask(name: str, rows: Sequence[Mapping[str, Any] | str], **settings: Any) -> list[Example]:
        path = tmp_path / "rows.jsonl"
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("\n".join(lines), encoding="utf-8")
        chosen = TaskSetSettings(name, files={"rows": str(path)}, **settings)
        task = task_of(chosen)
        return task.examples(chosen, files_of(chosen, "elsewhere"), prompts)

    return ask


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("longbook_sum_eng", "Summarize the book below.\n\nCall me {input}.\nSome {years} ago.\n\nSummary:"),
        (
            "longbook_qa_eng",
            "Read the book and answer the question. Be very concise in your answer.\n\nCall me {input}.\nSome {years} "
            "ago.\n\nQuestion: Who?\nAnswer:",
        ),
        (
            "narrativeqa",
            "You are given a story, which can be either a novel or a movie script, and a question. Answer the question "
            "asconcisely as you can, using a single phrase if possible. Do not provide any explanation.\n\nStory:  A "
            "tale. \n\n\n\nNow, answer the question based on the story asconcisely as you can, using a single phrase "
            "if possible. Do not provide any explanation.\n\nQuestion: Who {context}?\n\nAnswer:",
        ),
        ("qmsum", QMSUM.format(" A tale. \n\n", "Who {context}?")),
        ("meetings", QMSUM.format("A: Well ? {vocalsound}\nDr B: ", "Summarize it.")),
    ],
)
def test_prompts_are_the_official_ones(ask: Callable[..., list[Example]], name: str, wanted: str) -> None:
    example = ask(name, [ROWS[name]])[0]
    assert example.text + SEPARATOR + example.question == wanted


def test_rows_keep_their_names_and_answers_and_share_books(ask: Callable[..., list[Example]]) -> None:
    other = BOOK | {"id": 9, "context": "Another book.", "answer": "one, not in a list"}
    first, second, third = ask("longbook_qa_eng", [BOOK, "", BOOK | {"id": 8, "input": "When?"}, other])
    assert [first.id, second.id, third.id] == ["7", "8", "9"]
    assert first.references == ("Ishmael", "him")
    assert third.references == ("one, not in a list",)
    assert first.document == second.document != third.document
    assert (first.query, second.query) == ("Who?", "When?")
    assert ask("longbook_sum_eng", [BOOK])[0].query == "Summarize the book below."
    assert [first.id] == [example.id for example in ask("longbook_qa_eng", [BOOK, other], examples=1)]


@pytest.mark.parametrize("name", list(ROWS))
def test_cut_is_the_official_one(ask: Callable[..., list[Example]], prompts: Prompts, name: str) -> None:
    draw, tokenizer = random.Random(name), AutoTokenizer.from_pretrained(TINY)
    for _ in range(20):
        story = " ".join(draw.choice(["the", "University", "of\n", "Lund,", "1937.", "whale-"]) for _ in range(400))
        said = {"context": story, "meeting_transcripts": [{"speaker": "A", "content": story}]}
        row = ROWS[name] | said
        whole = ask(name, [row])[0]
        prompt = whole.text + SEPARATOR + whole.question
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
        length = draw.randrange(len(ids) // 2, len(ids) + 3)
        if len(ids) > length:
            half = length // 2
            prompt = tokenizer.decode(ids[:half]) + tokenizer.decode(ids[-half:])
        part = ask(name, [row], length=length)[0]
        assert part.text + SEPARATOR + part.question == prompt
        assert part.question == whole.question
        assert len(part.text) < len(whole.text) or len(ids) <= length


@pytest.mark.parametrize(
    ("name", "rows", "settings", "said"),
    [
        ("longbook_qa_eng", [BOOK, "{not json"], {}, r"rows\.jsonl, line 2, is not JSON \(.*docs/benchmarks\.md"),
        ("longbook_qa_eng", [], {}, r"rows\.jsonl has no rows"),
        ("longbook_qa_eng", [BOOK, "", BOOK | {"context": None}], {}, r"line 3, has no text under 'context'"),
        ("longbook_qa_eng", [BOOK | {"answer": []}], {}, r"line 1, has no answer under 'answer'"),
        ("longbook_qa_eng", [BOOK | {"answer": [1]}], {}, r"line 1, has no list of texts under 'answer'"),
        ("longbook_qa_eng", [BOOK, BOOK], {}, r"has 2 rows with the id '7'; give each row its own"),
        ("meetings", [MEETING | {"meeting_transcripts": []}], {}, r"line 1, has nothing under 'meeting_transcripts'"),
        ("meetings", [MEETING], {"examples": 3}, r"has 2 rows, but the set has examples=3; lower examples"),
        ("narrativeqa", [STORY | {"context": "tale " * 100}], {"length": 20},
         r"does not fit into half of a prompt of 20 tokens"),
        ("squad", [], {}, r"there is no task 'squad'; choose one of longbook_sum_eng, "),
    ],
)  # fmt: skip
def test_rows_and_settings_that_cannot_be_are_named(ask, name: str, rows, settings, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ask(name, rows, **settings)


def test_a_mark_at_the_start_and_halves_of_characters_are_read(ask: Callable[..., list[Example]]) -> None:
    row = json.dumps(STORY | {"context": "A mill \ud83d stood\u2028there."}, ensure_ascii=False)
    (example,) = ask("qmsum", ["\ufeff" + row.replace("\ud83d", "\\ud83d") + "\r"])
    assert "A mill \ufffd stood\u2028there." in example.text


def test_fewer_queries_are_spread_over_the_meetings(ask: Callable[..., list[Example]]) -> None:
    queries = [{"query": f"Query {number}?", "answer": "x"} for number in range(3)]
    rows = [MEETING | {"general_query_list": queries[:1], "specific_query_list": queries[1:n]} for n in (3, 1, 2)]
    every = ["1-1", "1-2", "1-3", "2-1", "3-1", "3-2"]
    for count, names in {0: every, 2: ["1-1", "2-1"], 4: ["1-1", "1-2", "2-1", "3-1"]}.items():
        examples = ask("meetings", rows, examples=count)
        assert [example.id for example in examples] == names
        assert [example.document for example in examples] == [name[0] for name in names]


def test_files_lie_below_the_folder(tmp_path: Path) -> None:
    own, absolute, task = tmp_path / "InfiniteBench" / "longbook_qa_eng.jsonl", tmp_path / "other", "longbook_qa_eng"
    own.parent.mkdir()
    own.touch()
    absolute.touch()
    assert files_of(TaskSetSettings(task, files={"rows": str(absolute)}), "elsewhere") == {"rows": absolute}
    pooled = files_of(TaskSetSettings(task, pool=["other"]), str(tmp_path))
    assert pooled == {"rows": own, "other": absolute}
    with pytest.raises(UserError, match=r"elsewhere/InfiniteBench/longbook_qa_eng\.jsonl.*docs/benchmarks\.md"):
        files_of(TaskSetSettings(task), "elsewhere")
    with pytest.raises(UserError, match=r"task longbook_qa_eng has no file 'row'; its files are rows"):
        files_of(TaskSetSettings(task, files={"row": "x"}), str(tmp_path))


# Metrics


@pytest.mark.parametrize(
    ("score", "prediction", "reference", "wanted"),
    [
        (token_f1, "cat cat dog", "cat dog dog", 200 / 3),
        (token_f1, "“Paris”", "Paris", 0),
        (token_f1, "An  apple\nand\tthe\u00a0pear", "apple and pear", 100),
        # Line breaks count.
        (rouge_lsum, "c d\na b", "a b\nc d", 100),
        (rouge_lsum, "c d a b", "a b c d", 50),
        (rouge_l, "Cat", "cat", 0),
        # Words count once, and what one sentence has in common with another's counts for both.
        (rouge_l, "cat cat dog", "cat dog dog", 100),
        (rouge_l, "c d. a b", "a b. c d", 100),
        # Nothing in common but the empty word behind the last full stop.
        (rouge_l, "one two three four five. ", "six seven eight. ", 20),
        # The official code gives up on a sentence of about 1,000 words.
        pytest.param(rouge_l, "cat " + "dog " * 900, "cat", 200 / 3, id="long"),
        pytest.param(rouge_l, "cat " + "dog " * 1100, "cat", 0, id="longer"),
    ],
)
def test_scores_to_the_digit(score, prediction: str, reference: str, wanted: float) -> None:
    assert score(prediction, [reference]) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("score", [token_f1, rouge_lsum, rouge_l])
def test_references_are_several_and_the_best_counts(score: Callable[[str, Sequence[str]], float]) -> None:
    assert score("cat sat", ("dog", "cat sat", "cat")) == score("cat sat", ["cat sat"]) == pytest.approx(100)
    with pytest.raises(TypeError, match="sequence of texts"):
        score("cat", "cat")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(package: str) -> str:
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(UserError, match=r"rouge-score 0\.1\.2, which is not installed here"):
        rouge_lsum("cat", ["cat"])
