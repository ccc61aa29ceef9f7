"""The table of what a run is made of: documents, attributes, examples, articles, and the detector as it was trained."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES
from utaca.biographies.corpora.topics import DOMAINS, domain_and_phrase, paper_articles
from utaca.biographies.sentences import summary
from utaca.detection.detector import Detector, load
from utaca.detection.training.network import DROPOUT, EMBEDDING_DROPOUT
from utaca.detection.training.training import BATCH, CLASS_WEIGHTS, EVALUATE_EVERY, LEARNING_RATE
from utaca.records import read
from utaca.reporting import paper
from utaca.reporting.registry import Files
from utaca.reporting.statistics import Row
from utaca.reporting.table import framed
from utaca.reporting.words import corpus_in_words, endpoint_in_words
from utaca.settings import schema

SPLITS = {"train": "training", "validation": "validation", "test": "test"}
"""What the table calls each split."""
GAP = "..."
"""Stands for sentences or padding that an example leaves out, as in the paper's examples."""


def dataset(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table that compares documents and detector with the paper's, one row for each property."""
    biographies = {Path(path).stem: read(path, "biographies").to_pylist() for path in files["biographies"]}
    columns = ["n_tokens", "spans", "text"]
    documents = {Path(path).stem: read(path, "documents", columns).to_pylist() for path in files["documents"]}
    corpus = read(files["corpus"], "corpus", ["title", "synthetic"]).to_pylist()
    rows: list[Row] = []
    for split, people in biographies.items():
        rows += _split(split, people, documents[split], config)
    rows += _attributes(biographies)
    rows += _examples(biographies, documents)
    rows += _articles(corpus)
    rows += _detector([load(path) for path in files["main_detectors"]])
    return framed(rows, detector=config.detector, run_reader=config.reader.name)


def _row(part: str, item: str, here: object, paper_value: object = None) -> Row:
    """The row of an ``item`` in a ``part`` of the table: its value in this run (``here``), and in the paper."""
    return {"part": part, "item": item, "here": said(here), "paper": said(paper_value)}


def said(value: object) -> str:
    """A value as the table shows it: a text as it is, a number with commas, a tuple as a list; "" for None."""
    if isinstance(value, tuple):
        return ", ".join(map(said, value))
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value or "")


def lengths(tokens: Sequence[float]) -> str:
    """The smallest, the largest and the mean of numbers of tokens, in words."""
    return f"{min(tokens):,} to {max(tokens):,}, mean {sum(tokens) / len(tokens):,.0f}"


def _split(
    split: str, people: Sequence[Mapping[str, Any]], documents: Sequence[Mapping[str, Any]], config: schema.Config
) -> Iterator[Row]:
    """Rows on the documents of a split; ``people`` are its rows of schema "biographies"."""
    part = f"{SPLITS[split].capitalize()} split"
    in_paper = paper.tables().dataset[split]
    # Documents may have different numbers of facts, and one range for all stands in the table.
    numbers_of_facts = {len(person["facts"]) for person in people}
    fewest, most = min(numbers_of_facts), max(numbers_of_facts)
    range_of_facts = str(fewest) if fewest == most else f"{fewest} to {most}"
    tokens_in_paper = None
    if in_paper.tokens:
        shortest, mean, longest = in_paper.tokens
        tokens_in_paper = f"{shortest:,} to {longest:,}, mean {mean:,}"
    kinds = {span["kind"] for document in documents for span in document["spans"]}
    is_padded = "article" in kinds  # else only simple sentences ("filler"), if anything, stand around the biography
    yield _row(part, "Documents", len(documents), in_paper.documents)
    yield _row(part, "Facts per document", range_of_facts, in_paper.facts)
    yield _row(part, "Tokens per document", lengths([document["n_tokens"] for document in documents]), tokens_in_paper)
    # One writer wrote all biographies of a split.
    yield _row(part, "Text", _writer(people[0]["writer"], config), in_paper.text)
    yield _row(part, "Padding", corpus_in_words(config) if is_padded else "none", in_paper.padding)


def _writer(name: str, config: schema.Config) -> str:
    """Who wrote the biographies of a split, in words; ``name`` is the writer in schema "biographies"."""
    if name == config.writer.model:
        return endpoint_in_words(config.writer)
    in_words = {"pattern": "Summary among simple sentences", "people": f"By hand, {config.scale.test.people}"}
    return in_words.get(name, name)


def _attributes(biographies: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[Row]:
    """A row for each attribute, with the first fact about it in the splits that ask for it.

    ``biographies`` are rows of schema "biographies", by split.
    """
    in_paper = paper.tables().attributes
    parts = {
        "Attributes, training": (TRAINING_ATTRIBUTES, ("train",)),
        "Attributes, validation and test": (HELD_OUT_ATTRIBUTES, ("validation", "test")),
    }
    for part, (attributes, splits) in parts.items():
        people = [person for split in splits for person in biographies[split]]
        summaries: dict[str, str] = {}
        for person in people:
            for fact in person["facts"]:
                attribute = fact["attribute"]
                summaries.setdefault(attribute, summary(attribute, person["person"], fact["value"]))
        # Biographies written by hand may state attributes beyond those of the split.
        for attribute in dict.fromkeys([*attributes, *summaries]):
            yield _row(part, attribute.capitalize(), summaries.get(attribute), in_paper.get(attribute))


def _examples(
    biographies: Mapping[str, Sequence[Mapping[str, Any]]], documents: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Iterator[Row]:
    """Two rows for each split, with the summary and the shortened biography of its first person.

    ``biographies`` and ``documents`` are rows of these schemas, by split.
    """
    for split, (person, *_) in biographies.items():
        part = f"Example, {SPLITS[split]}"
        in_paper = paper.tables().examples[split]
        facts = [summary(fact["attribute"], person["person"], fact["value"]) for fact in person["facts"]]
        yield _row(part, "Summary", " ".join(facts), in_paper.summary)
        # Documents are in the order of their biographies.
        around = fillers(documents[split][0])
        yield _row(part, "Biography", shortened(person["sentences"], person["facts"], around), in_paper.biography)


def fillers(document: Mapping[str, Any]) -> tuple[str, str]:
    """The first and the last sentence of the simple sentences that pad a document; "" and "" if it has none."""
    texts = [document["text"][span["start"] : span["end"]] for span in document["spans"] if span["kind"] == "filler"]
    if not texts:
        return "", ""
    first = texts[0].partition(". ")[0].rstrip(".") + "."
    last = texts[-1].rpartition(". ")[2]
    return first, last


def shortened(sentences: Sequence[str], facts: Sequence[Mapping[str, str]], around: tuple[str, str] = ("", "")) -> str:
    """Shorten a biography to its first and last sentence and those that hold a fact's value as the fact has it.

    :data:`GAP` stands for what is left out, also before and after the biography.
    ``around`` are the first and the last sentence of the document's padding (:func:`fillers`), which stand around it.
    """
    first, last = around
    parts = [first, GAP] if first else [GAP]
    for place, sentence in enumerate(sentences):
        states_fact = any(fact["value"] in sentence for fact in facts)
        if place in (0, len(sentences) - 1) or states_fact:
            parts.append(sentence)
        elif parts[-1] != GAP:
            parts.append(GAP)
    # The last sentence is always kept, so that no two gaps meet here.
    parts.append(GAP)
    if last:
        parts.append(last)
    return " ".join(parts)


def _articles(corpus: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """How many of the paper's articles the corpus has: a row for the total, and one for each domain, with titles.

    ``corpus`` are rows of schema "corpus", one for each article of the run.
    """
    part = "Articles of the padding"
    in_corpus = {article["title"] for article in corpus}
    of_paper = paper_articles()
    n_others = len(in_corpus.difference(of_paper))
    total = [f"{len(in_corpus.intersection(of_paper))} of {len(of_paper)}"]
    if all(article["synthetic"] for article in corpus):
        total.append("synthetic prose under their titles")
    if n_others:
        total.append(f"and {n_others:,} more")
    yield _row(part, "The paper's", ", ".join(total), len(of_paper))
    for domain in DOMAINS:
        titles = [title for title in of_paper if domain_and_phrase(title)[0] == domain]
        present = [title for title in titles if title in in_corpus]
        here = f"{len(present)}: {', '.join(present)}" if present else 0
        yield _row(part, domain.capitalize(), here, len(titles))


def _detector(seeds: Sequence[Detector]) -> Iterator[Row]:
    """Rows on the detector's shape, which its file has, and on its training.

    ``seeds`` are the detector as it was trained under each seed; all have one shape.
    """
    detector = seeds[0]
    in_paper = paper.tables().hyperparameters
    encoders = list(detector.signal_encoders.values())  # each begins with a linear layer
    block = detector.blocks[0]
    widths = tuple(f"{width:,} ({paper.NAMES[reader]})" for reader, width in in_paper.embedding_width.items())
    settings = detector.settings
    part = "Detector"
    yield _row(part, "Width of the embedding", detector.input_width if settings.embedding else "none", widths)
    yield _row(part, "Signals, one number each", len(settings.signals), in_paper.signals)
    yield _row(part, "Width of the hidden vector", detector.head.in_features, in_paper.width)
    inner = encoders[0][0].out_features if encoders else "none"
    yield _row(part, "Inner width of a signal's encoder", inner, in_paper.signal_width)
    yield _row(part, "Residual blocks", len(detector.blocks), in_paper.blocks)
    expansion = block.wide.out_features // block.wide.in_features
    yield _row(part, "Expansion of a block", expansion, in_paper.expansion)
    yield _row(part, "Classes", detector.head.out_features, in_paper.classes)
    part = "Training of the detector"
    yield _row(part, "Dropout, embedding", EMBEDDING_DROPOUT, in_paper.embedding_dropout)
    yield _row(part, "Dropout, signals and blocks", DROPOUT, in_paper.dropout)
    yield _row(part, "First learning rate of Adam", LEARNING_RATE, in_paper.learning_rate)
    yield _row(part, "Steps", detector.facts.get("steps"), in_paper.steps)
    yield _row(part, "Trajectories per step", BATCH, in_paper.batch)
    yield _row(part, "Weights of hallucinated, correct, unknown", CLASS_WEIGHTS, in_paper.class_weights)
    yield _row(part, "Steps between validations", EVALUATE_EVERY, in_paper.evaluate_every)
    yield _row(part, "Seeds", len(seeds), in_paper.seeds)
