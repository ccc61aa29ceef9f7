"""How well a reader, and its detector, find what people marked as hallucinated in RAGTruth's answers to questions.

``utaca fetch-tasks ragtruth-responses ragtruth-sources`` fetches the files, and ``python bench/ragtruth.py --reader
qwen25_coder_1_5b`` prints a Markdown table. The answers are other models': the reader scores each of their tokens
behind the passages, and nothing is generated.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch
from report import markdown

import utaca
from utaca.decoding.score import AnswerScores
from utaca.detection.detector import Detector, distrust
from utaca.detection.training.metrics import detection_metrics, recall_at, rejection_ratio, risk_coverage_area
from utaca.records.progress import progress
from utaca.records.schemas import CORRECT, HALLUCINATED
from utaca.reporting import statistics
from utaca.tasks.ragtruth import given_answers, marked_tokens

RESAMPLES = 1000
"""Resamples of the questions, for the intervals."""
HEADER = ("Score", "AUROC", "AUPRC", "PRR", "AURC", "Recall at 10 % false alarms", "AUROC of answers")


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python bench/ragtruth.py", description="Score RAGTruth's answers.")
    parser.add_argument("--reader", default="tiny", help="name, folder, hub id or GGUF file (%(default)s)")
    parser.add_argument("--folder", type=Path, default=Path("data/benchmarks"), help="of the files (%(default)s)")
    parser.add_argument("--split", default="test", help="train or test (%(default)s)")
    parser.add_argument("--number", type=int, help="questions, each with all its answers (default: all)")
    parser.add_argument("--budget", type=int, help="blocks (default: the reader's)")
    parser.add_argument("--detector", type=Path, help="file of a detector of this reader (default: none)")
    return parser.parse_args(arguments)


def scores_of(found: AnswerScores, detector: Detector | None) -> dict[str, list[float]]:
    """What each token of an answer is scored by; every score grows with distrust."""
    scores = {
        "margin": [-token.margin for token in found.tokens],
        "entropy": found.entropies,
        "probability": [-token.logprob for token in found.tokens],
    }
    if detector is not None:
        p = torch.tensor([token.gdm for token in found.tokens])
        scores["detector"] = distrust(p, detector.settings.decision).tolist()
    return scores


def measures(score: np.ndarray, is_marked: np.ndarray, question: np.ndarray, answer: np.ndarray) -> list[str]:
    """The cells of a row. ``question`` and ``answer`` [n] number what each token belongs to."""
    n_questions = int(question.max()) + 1
    of_tokens = detection_metrics(score > 0, np.where(is_marked, HALLUCINATED, CORRECT), score)
    counts = statistics.resample_counts(n_questions, RESAMPLES, 0, "ragtruth")
    low, high = statistics.Resampled(of_tokens["auroc"], statistics.auroc(score, is_marked, question, counts)).interval
    # An answer has the largest score of its tokens.
    n_answers = int(answer.max()) + 1
    largest = np.full(n_answers, -np.inf)
    np.maximum.at(largest, answer, score)
    has_mark = np.bincount(answer, is_marked, n_answers) > 0
    of_answers = detection_metrics(largest > 0, np.where(has_mark, HALLUCINATED, CORRECT), largest)
    return [
        f"{of_tokens['auroc']:.3f} [{low:.3f}, {high:.3f}]",
        f"{of_tokens['auprc']:.3f}",
        f"{rejection_ratio(score, is_marked):.3f}",
        f"{risk_coverage_area(score, is_marked):.3f}",
        f"{100 * recall_at(0.1, score, is_marked):.1f} %",
        f"{of_answers['auroc']:.3f}",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    given = sorted(given_answers(options.folder, options.split), key=attrgetter("source"))
    by_question = [list(answers) for _, answers in groupby(given, attrgetter("source"))][: options.number]
    reader = utaca.load_reader(options.reader)
    detector = utaca.load_detector(options.detector) if options.detector else None
    scores: dict[str, list[float]] = defaultdict(list)
    is_marked: list[bool] = []
    question: list[int] = []
    answer: list[int] = []
    n_left_out = 0
    for number, answers in enumerate(progress(by_question, total=len(by_question), unit="question", desc="ragtruth")):
        memory = utaca.prefill(reader, answers[0].text)
        for one in answers:
            found = utaca.score(memory, one.question, one.answer, budget=options.budget, detector=detector)
            if found.text != one.answer:
                # Its marks cannot be found in the tokens.
                n_left_out += 1
                continue
            for name, values in scores_of(found, detector).items():
                scores[name] += values
            is_marked += marked_tokens([token.text for token in found.tokens], one.marks).tolist()
            question += [number] * len(found.tokens)
            answer += [answer[-1] + 1 if answer else 0] * len(found.tokens)
    if not answer:
        raise SystemExit("the tokens of no answer spell the answer; take another reader")
    marked = np.array(is_marked)
    print(
        f"{reader.settings.name}, {len(by_question)} questions, {answer[-1] + 1} answers ({n_left_out} left out, whose "
        f"tokens spell another text), {len(marked)} tokens, {100 * marked.mean():.1f} % marked\n"
    )
    rows = [[name, *measures(np.array(x), marked, np.array(question), np.array(answer))] for name, x in scores.items()]
    print(markdown(HEADER, rows))


if __name__ == "__main__":
    main()
