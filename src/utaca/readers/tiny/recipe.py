"""The tiny reader's recipe: prose, tokenizer, training, model card.

Its prose is never the paper's articles, which are test material, and its people belong to splits of their own.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from utaca.biographies.attributes import draw_value
from utaca.biographies.corpora import folder
from utaca.biographies.corpora.embedded import articles
from utaca.biographies.corpora.topics import TRAINING_TOPICS
from utaca.biographies.narratives import narrative
from utaca.biographies.people import people
from utaca.biographies.sentences import abstention, summary
from utaca.readers.load import load
from utaca.readers.tiny.card import measure, write_card
from utaca.readers.tiny.examples import ALL_ATTRIBUTES
from utaca.readers.tiny.tokenizer import train_tokenizer
from utaca.readers.tiny.training import train
from utaca.settings import schema

TOKENIZER_PARAGRAPHS, TOKENIZER_PEOPLE = 4000, 4000


def paragraphs(settings: schema.ReaderTraining) -> list[str]:
    """Embedded prose over topics of its own and, where one is named, the settings' corpus, shuffled."""
    texts = articles(TRAINING_TOPICS, settings.seed + 1, crowded=True)
    if settings.corpus:
        texts = [*texts, *folder.articles(Path(settings.corpus))]
    found = [p.strip() for text in texts for p in text["text"].split("\n\n") if len(p.strip()) >= 80]
    random.Random(f"{settings.seed}:prose").shuffle(found)
    return found


def tokenizer(settings: schema.ReaderTraining, prose: Sequence[str]) -> PreTrainedTokenizerFast:
    """The tokenizer, trained on prose and on facts in equal measure."""
    return train_tokenizer(itertools.chain(prose[:TOKENIZER_PARAGRAPHS], _facts(settings.seed)), settings.vocabulary)


def _facts(seed: int) -> Iterator[str]:
    rng = random.Random(f"{seed}:tokenizer")
    for person in itertools.islice(people("reader", seed), TOKENIZER_PEOPLE):
        chosen = rng.sample(ALL_ATTRIBUTES, 4)
        facts = [(attribute, draw_value(attribute, rng, person.locale)) for attribute in chosen]
        yield " ".join(summary(attribute, person.name, value) for attribute, value in facts)
        yield " ".join(narrative(person.name, facts, rng))
        yield abstention(chosen[0], person.name)


def make(settings: schema.Reader, output: Path, report: Callable[[str], None] = print) -> None:
    """Train the reader from nothing into ``output``: weights, tokenizer, loss curve, model card.

    A killed training resumes from the checkpoint in ``output``.
    """
    prose = paragraphs(settings.training)
    seconds = train(
        settings.training, settings.memory, tokenizer(settings.training, prose), prose, output, report=report
    )
    reader = load(replace(settings, path=str(output)))
    readings = measure(reader, prose, settings.training.seed)
    write_card(
        output / "README.md",
        settings.training,
        reader.model.num_parameters(),
        seconds / 60,
        readings,
        settings.memory.representatives,
    )
