"""How the wording of the question changes what a reader answers: share of right values, abstentions, tokens.

``python bench/wordings.py DOCUMENTS.parquet --reader qwen25_coder_1_5b`` asks about the documents of a run in each
wording of ``data/readers/questions.yaml``, under InfLLM's budgets and under full attention. It prints a Markdown table.
``--alone`` leaves the padding out. Choose a wording by documents that no other result is computed from.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from report import markdown

import utaca
from utaca.generation.answers import Answers, answer_together, ask
from utaca.judging.rules.judge import score
from utaca.methods import build
from utaca.readers.questions import question, wordings
from utaca.records import read
from utaca.records.progress import progress


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", type=Path, help="a run's documents")
    parser.add_argument("--reader", required=True, help="name, folder, hub id or GGUF file")
    parser.add_argument("--number", type=int, help="documents (default: all)")
    parser.add_argument("--budgets", type=int, nargs="*", default=[4, 32], help="blocks of InfLLM (default: 4 32)")
    parser.add_argument("--wordings", nargs="+", default=sorted(wordings()), help="names (default: all)")
    parser.add_argument("--alone", action="store_true", help="ask about the biography without padding")
    parser.add_argument("--no-full", action="store_true", help="leave full attention out")
    return parser.parse_args()


def biography(document: dict) -> str:
    """The document's text without its padding."""
    spans = [span for span in document["spans"] if span["kind"] == "biography"]
    return "\n\n".join(document["text"][span["start"] : span["end"]] for span in spans)


def main() -> None:
    options = parsed()
    reader = utaca.load_reader(options.reader)
    methods = {f"InfLLM K={budget}": build("infllm", {"budget": budget}) for budget in options.budgets}
    if not options.no_full:
        methods["full attention"] = build("full", {})
    # By wording and method: the scores of values, whether each value was answered, and tokens of answers.
    scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    abstained: dict[tuple[str, str], list[bool]] = defaultdict(list)
    tokens: dict[tuple[str, str], list[int]] = defaultdict(list)
    documents = read(options.documents, "documents").to_pylist()[: options.number]
    for document in progress(documents, total=len(documents), unit="document", desc="wordings"):
        text = biography(document) if options.alone else document["text"]
        answers = Answers(reader, text)
        attributes = [fact["attribute"] for fact in document["facts"]]
        asked = {}
        for wording in options.wordings:
            words = question(attributes, document["person"], wording)
            asked[wording] = replace(ask(reader, document), text=text, question=words)
        blocks = [name for name in methods if name != "full attention"]
        for together in (blocks, [name for name in methods if name not in blocks]):
            pairs = [(wording, name) for wording in options.wordings for name in together]
            if not pairs:
                continue
            given = answer_together([(answers, asked[wording], methods[name], None) for wording, name in pairs])
            for pair, answer in zip(pairs, given, strict=True):
                tokens[pair].append(len(answer.generation.trace))
                for fact in document["facts"]:
                    words = asked[pair[0]].question
                    value, reason = score(words, fact["attribute"], answer.generation.text, fact["value"])
                    scores[pair].append(value)
                    abstained[pair].append(reason == "abstains")
    rows: list[Sequence[str]] = []
    for wording in options.wordings:
        cells = [wording]
        for name in methods:
            pair = wording, name
            share = f"{100 * np.mean(scores[pair]):.1f} / {100 * np.mean(abstained[pair]):.0f}"
            cells.append(f"{share} / {np.mean(tokens[pair]):.0f}")
        rows.append(cells)
    print(f"{reader.settings.name}, {len(documents)} documents: CAS % / values unknown % / tokens of an answer\n")
    print(markdown(("Wording", *methods), rows))


if __name__ == "__main__":
    main()
