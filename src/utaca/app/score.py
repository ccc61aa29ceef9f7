"""``utaca score``: the scores of answers that are given, token by token, or of many in a CSV file."""

import csv
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import utaca
from utaca.app import documents
from utaca.app.ask import colours, printable, remembered
from utaca.app.choices import detector_of
from utaca.app.streams import tell
from utaca.decoding.score import AnswerScores
from utaca.detection.detector import Detector
from utaca.errors import UserError
from utaca.memory.block_memory import BlockMemory
from utaca.memory.saved import SavedDocuments
from utaca.readers.load import Reader
from utaca.settings.budgets import Budget

COLUMNS = ("document", "question", "answer")
"""Columns of the rows to score."""
TOTALS = ("tokens", "logprob", "mean_logprob", "min_margin", "mean_entropy", "max_hallucinated", "doubted", "spans")
"""Further columns of the file of scores."""
_PATH = re.compile(r"\S+\.\w{1,5}")
"""What a cell of column ``document`` looks like that names a file, and not a text."""


@dataclass(frozen=True)
class Wanted:
    """What a user asks for: the ``reader``'s name, path or hub id, the ``budget`` and the ``detector``.

    Budget and detector are the reader's if they are None. With ``json_lines`` the scores are JSON. ``saved`` keeps the
    documents that were read; None: they are not kept.
    """

    reader: str
    budget: Budget | None
    detector: str | None
    json_lines: bool
    saved: SavedDocuments | None


class _Scorer:
    """A loaded reader that scores answers as ``wanted``; raises :class:`UserError` for a faulty reader or detector."""

    def __init__(self, wanted: Wanted) -> None:
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        self.wanted = wanted
        self.reader: Reader = utaca.load_reader(wanted.reader)
        self.budget: Budget = wanted.budget or self.reader.settings.budget
        self.detector: Detector | None = detector_of(self.reader, wanted.detector)
        if self.detector is None:
            tell(
                f"No detector ships for reader {self.reader.settings.name}: tokens with a margin below "
                f"{self.reader.settings.margin:g} logits are marked."
            )

    def read(self, text: str) -> BlockMemory:
        """Read a document's text, or take it from the cache."""
        return remembered(self.reader, text, self.budget, self.wanted.saved)[0]

    def scored(self, memory: BlockMemory, question: str, answer: str) -> AnswerScores:
        """The scores of an answer."""
        return utaca.score(memory, question, answer, budget=self.budget, detector=self.detector)


def score(wanted: Wanted, files: Sequence[str], question: str, answer: str) -> None:
    """Score one answer: write it to standard output with its doubtful tokens marked, or as JSON lines."""
    if not question.strip() or not answer:
        raise UserError("the question or the answer is empty; write both in quotes")
    text = documents.read(files)
    scorer = _Scorer(wanted)
    scores = scorer.scored(scorer.read(text), question, answer)
    if wanted.json_lines:
        _show_json(scores)
        return
    print(_marked(scores, colours(sys.stdout)), flush=True)
    tell(_in_words(scores))


def score_rows(wanted: Wanted, path: Path, out: Path | None) -> None:
    """Score the rows of a CSV file; write them with their scores to ``out``, to standard output if that is None.

    A cell of column ``document`` is a text, or a file's path, relative to the folder of the CSV file. Each document is
    read once. With JSON lines, each line has its row's number instead. Raises :class:`UserError`, before the reader is
    loaded, if the file or a document cannot be read.
    """
    if out is not None and (wanted.json_lines or not out.absolute().parent.is_dir() or out.is_dir()):
        raise UserError(f"--out {out} must be a file in a folder that exists; with --json, leave --out out")
    rows = _rows(path)
    texts = [_text(path, number, row["document"]) for number, row in enumerate(rows, start=2)]
    scorer = _Scorer(wanted)
    scores: dict[int, AnswerScores] = {}
    for text in dict.fromkeys(texts):
        memory = scorer.read(text)
        for number, row in enumerate(rows):
            if texts[number] == text:
                scores[number] = scorer.scored(memory, row["question"], row["answer"])
    if wanted.json_lines:
        for number in range(len(rows)):
            _show_json(scores[number], row=number + 1)
        return
    with _written(out) as file:
        writer = csv.DictWriter(file, [*COLUMNS, *TOTALS], lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        for number, row in enumerate(rows):
            totals = _totals(scores[number])
            spans = json.dumps(totals["spans"], ensure_ascii=False)
            writer.writerow(row | totals | {"spans": spans})
    if out is not None:
        tell(f"{len(rows)} answers: {out}")


def _rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, by column; raises :class:`UserError` if it has none, or a fault."""
    columns = ", ".join(COLUMNS)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file, strict=True)
            missing = [name for name in COLUMNS if name not in (table.fieldnames or [])]
            if missing:
                raise UserError(
                    f"{path} has no column {missing[0]}; it needs the columns {columns}, separated by commas"
                )
            rows = list(table)
    except OSError as error:
        raise UserError(
            f"--csv {path} cannot be read ({error.strerror}); name a CSV file with the columns {columns}"
        ) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a CSV file in UTF-8 ({error}); export it again") from error
    if not rows:
        raise UserError(f"{path} has no rows; add one row for each answer")
    # The header is row 1, as in a spreadsheet.
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise UserError(f"{path}, row {number}, has more or fewer cells than the header; correct the row")
        empty = [name for name in COLUMNS if not row[name].strip()]
        if empty:
            raise UserError(f"{path}, row {number}, has no {empty[0]}; fill it in, or leave out the row")
    return rows


def _text(path: Path, number: int, cell: str) -> str:
    """The document of row ``number`` of a CSV file: the text of the file that the ``cell`` names, or the cell."""
    file = path.parent / cell
    if os.path.isfile(file):
        return documents.read([file])
    if _PATH.fullmatch(cell):
        raise UserError(f"{path}, row {number}: there is no document {file}; correct the cell {cell!r}")
    return cell


@contextmanager
def _written(out: Path | None) -> Iterator[TextIO]:
    """The file ``out`` to write to, or standard output; raises :class:`UserError` if it cannot be written to."""
    if out is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        with out.open("w", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}); give another path with --out") from error


def _totals(scores: AnswerScores) -> dict[str, Any]:
    """Sums and extremes of an answer's scores, and its doubted spans, by column."""
    count = len(scores.tokens)
    hallucinated = [token.gdm[0] for token in scores.tokens if token.gdm is not None]
    spans = [{"first": span.start, "end": span.stop, "text": scores.span_text(span)} for span in scores.spans]
    return {
        "tokens": count,
        "logprob": round(scores.logprob, 4),
        "mean_logprob": round(scores.logprob / count, 4),
        "min_margin": round(min(token.margin for token in scores.tokens), 4),
        "mean_entropy": round(sum(scores.entropies) / count, 4),
        "max_hallucinated": round(max(hallucinated), 4) if hallucinated else None,
        "doubted": sum(scores.doubted),
        "spans": spans,
    }


def _show_json(scores: AnswerScores, **more: Any) -> None:
    """Write the scores to standard output as lines of JSON: an object for each token, and one of totals."""
    for token, entropy, doubted in zip(scores.tokens, scores.entropies, scores.doubted, strict=True):
        shown = {
            "type": "token",
            **more,
            "text": token.text,
            "id": token.token,
            "logprob": round(token.logprob, 4),
            "margin": round(token.margin, 4),
            "entropy": round(entropy, 4),
            "p": None if token.gdm is None else [round(p, 4) for p in token.gdm],
            "doubted": doubted,
        }
        print(json.dumps(shown))
    totals = {"type": "score", **more, "text": scores.text, "budget": scores.budget, "passes": scores.passes}
    print(json.dumps(totals | _totals(scores)), flush=True)


def _marked(scores: AnswerScores, coloured: bool) -> str:
    """The answer with its doubted spans underlined on a ground of colour, or in double brackets without colours."""
    # Codes of ANSI terminals, as in utaca.app.ask.shade.
    before, after = ("\x1b[38;5;16;48;5;217;4m", "\x1b[0m") if coloured else ("[[", "]]")
    starts = {span.start for span in scores.spans}
    ends = {span.stop for span in scores.spans}
    marked = ""
    for number, token in enumerate(scores.tokens):
        marked += before * (number in starts) + printable(token.text) + after * (number + 1 in ends)
    return marked


def _in_words(scores: AnswerScores) -> str:
    """A sentence for the user on an answer's scores."""
    totals = _totals(scores)
    hallucinated = totals["max_hallucinated"]
    worst = "" if hallucinated is None else f"; at most {hallucinated:.2f} hallucinated"
    return (
        f"{totals['tokens']} tokens in {scores.passes} passes; log-probability {totals['mean_logprob']:.2f} and "
        f"entropy {totals['mean_entropy']:.2f} a token; smallest margin {totals['min_margin']:.2f}{worst}; "
        f"{totals['doubted']} marked."
    )
