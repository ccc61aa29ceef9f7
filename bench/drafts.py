"""Whether answers with drafts are those without, and how much faster they are.

``python bench/drafts.py results/quick/documents/test.parquet`` answers the questions of a run's documents with drafts
and without, one after the other, and prints a Markdown table; a ``.jsonl`` file of meetings (QMSum's own, or of
LongBench's form) is asked for summaries. ``--triggers all`` goes through every policy and trigger; otherwise InfLLM and
UT-ACA answer. Leave the machine to it meanwhile.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from report import markdown, spread

import utaca
from utaca.app.choices import choose
from utaca.generation.answers import ask
from utaca.memory import BlockMemory
from utaca.readers.load import Reader, load
from utaca.readers.questions import question
from utaca.records import read
from utaca.trace import Generation


@dataclass
class Compared:
    """What pairs of answers had in common, and what they took: with drafts and without.

    ``compared_tokens`` are those that follow equal tokens, and ``equal_tokens`` those of them that are equal too.
    """

    what: str
    answers: int = 0
    alike: int = 0
    tokens: int = 0
    compared_tokens: int = 0
    equal_tokens: int = 0
    gdm: float = 0.0
    passes: int = 0
    ratios: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, drafted: Generation, plain: Generation) -> None:
        """Compare two answers to one question."""
        self.answers += 1
        self.alike += decisions(drafted) == decisions(plain)
        self.tokens += len(plain.trace)
        # Behind the first token that differs the answers are about other texts.
        pairs = list(zip(drafted.trace, plain.trace, strict=False))
        same = list(itertools.takewhile(lambda pair: pair[0].token == pair[1].token, pairs))
        self.equal_tokens += len(same)
        self.compared_tokens += min(len(same) + 1, len(plain.trace))
        for ours, theirs in same:
            if ours.gdm and theirs.gdm and ours.k == theirs.k:
                differences = [abs(one - other) for one, other in zip(ours.gdm, theirs.gdm, strict=True)]
                self.gdm = max(self.gdm, *differences)
        self.passes += drafted.passes
        self.ratios.append((drafted.seconds / len(drafted.trace)) / (plain.seconds / len(plain.trace)))
        self.seconds.append(plain.seconds / len(plain.trace))

    def row(self) -> tuple[str, ...]:
        """The row of the table."""
        return (
            self.what,
            f"{self.alike} of {self.answers}",
            f"{100 * self.equal_tokens / self.compared_tokens:.2f} %",
            f"{self.gdm:.1e}",
            f"{self.tokens / self.passes:.2f}",
            f"{1000 * statistics.median(self.seconds):.1f} ms",
            spread(self.ratios),
        )


HEADER = ("Point", "Equal answers", "Equal tokens", "GDM", "Tokens a pass", "A token", "Time with drafts")


def decisions(generation: Generation) -> list[tuple[int, int, bool]]:
    """Token, budget and rollback of every step."""
    return [(token.token, token.k, token.rolled_back) for token in generation.trace]


def documents(reader: Reader, path: Path, number: int) -> Iterator[tuple[str, str, int]]:
    """Text, question and longest answer of the first documents of a file."""
    if path.suffix == ".jsonl":
        for line in itertools.islice(path.open(encoding="utf-8"), number):
            row = json.loads(line)
            if "meeting_transcripts" in row:
                text = "\n".join(f"{turn['speaker']}: {turn['content']}" for turn in row["meeting_transcripts"])
                query = row["general_query_list"][0]["query"]
            else:
                text = row["context"]
                query = row["input"]
            yield text, query, 200
        return
    for row in read(path, "documents").to_pylist()[:number]:
        asked = ask(reader, row)
        attributes = [fact["attribute"] for fact in row["facts"]]
        # A reader that goes on behind its answer would be timed on what nobody asked for.
        yield row["text"], question(attributes, row["person"], reader.settings.prompt), min(asked.longest, 200)


def points(reader: Reader, budget: int, every: bool) -> dict[str, dict[str, Any]]:
    """Options of the answers that are compared."""
    found: dict[str, dict[str, Any]] = {f"InfLLM K={budget}": {"budget": budget}}
    triggers: Sequence[str | None] = [None]
    policies: Sequence[str | None] = [None]
    if every:
        triggers = [None, "margin", "agreement", "agreement.1", "every.4", "never"]
        policies = [f"sub.{max(1, budget // 4)}", "sub.1", "set.1", f"set.{max(1, budget // 2)}"]
    for trigger, policy in itertools.product(triggers, policies):
        chosen = choose(reader, budget=budget, trigger=trigger, policy=policy)
        name = f"{chosen.trigger}, {chosen.policy}"
        found[name] = {key: chosen.options[key] for key in ("budget", "policy", "trigger") if key in chosen.options}
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", type=Path, help="a run's documents, or a .jsonl file of meetings")
    parser.add_argument("--reader", default="tiny", help="name, folder, hub id or GGUF file (default: tiny)")
    parser.add_argument("--dtype", help="float32 or bfloat16 (default: the reader's)")
    parser.add_argument("--weights", choices=["auto", "packed", "plain"], default="auto", help="of a GGUF file")
    parser.add_argument("--number", type=int, default=8, help="documents (default: 8)")
    parser.add_argument("--budget", type=int, help="K, and K_max (default: the reader's)")
    parser.add_argument("--length", type=int, help="tokens of a document, cut at its end (default: all)")
    parser.add_argument("--drafts", type=int, default=7, help="guesses at once (default: 7)")
    parser.add_argument("--draft-budget", type=int, help="also let passes under this many blocks guess for InfLLM")
    parser.add_argument("--triggers", choices=["default", "all"], default="default", help="default, or all")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    reader = utaca.load_reader(options.reader, dtype=options.dtype)
    if options.weights != reader.settings.weights:
        reader = load(replace(reader.settings, weights=options.weights))
    budget = options.budget or reader.settings.budget
    compared_points = points(reader, budget, options.triggers == "all")
    if options.draft_budget:
        name = f"InfLLM K={budget}, guesses under K={options.draft_budget}"
        compared_points[name] = {"budget": budget, "draft_budget": options.draft_budget}
    compared = {name: Compared(name) for name in compared_points}
    lengths = []
    for text, asked, longest in documents(reader, options.documents, options.number):
        tokens = reader.encode_document(text)[: options.length]
        lengths.append(len(tokens))
        memory: BlockMemory = utaca.prefill(reader, tokens)
        for name, chosen in compared_points.items():
            without = {key: value for key, value in chosen.items() if key != "draft_budget"}
            plain = utaca.generate(memory, asked, max_new_tokens=longest, **without)
            drafted = utaca.generate(memory, asked, max_new_tokens=longest, drafts=options.drafts, **chosen)
            compared[name].add(drafted, plain)
    where = f"{reader.settings.name}, {str(reader.dtype).removeprefix('torch.')}, {torch.get_num_threads()} threads"
    print(f"{where}; {len(lengths)} documents of {min(lengths)} to {max(lengths)} tokens, {options.drafts} drafts\n")
    print(markdown(HEADER, [one.row() for one in compared.values()]))


if __name__ == "__main__":
    main()
