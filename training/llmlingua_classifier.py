"""A small token classifier for LLMLingua-2, trained on documents of our own: keep the facts.

It stands in where the published weights are not to be had, and knows invented biographies between prose, no more.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import BertConfig, BertForTokenClassification, BertTokenizerFast

from training.narratives import narrative
from training.prose import paragraphs
from training.settings import Settings
from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES, draw_value
from utaca.biographies.people import Person, people
from utaca.biographies.sentences import summary
from utaca.records.progress import progress

SPLIT = "reader"
"""Its people are those of the tiny reader's training, never those of a run."""

LENGTH = 512
BATCH = 8
LEARNING_RATE = 1e-3
WARM_UP = 30
STEPS = 400
WORDS, PIECES, TOLD, PARAGRAPHS = 5000, 3000, 4000, 4000
"""Words and pieces of words in the tokenizer's vocabulary, and how many people's facts and paragraphs it knows."""

BETWEEN = 0.3
"""How much the words of a fact are worth that are neither name nor value."""


def passage(person: Person, rng: random.Random) -> tuple[str, list[tuple[int, int]]]:
    """A few facts about a person, as prose or in the summary pattern, and the characters of its names and values."""
    chosen = rng.sample((*TRAINING_ATTRIBUTES, *HELD_OUT_ATTRIBUTES), rng.randint(1, 4))
    facts = [(attribute, draw_value(attribute, rng, person.locale)) for attribute in chosen]
    if rng.random() < 0.5:
        text = " ".join(summary(attribute, person.name, value) for attribute, value in facts)
    else:
        text = " ".join(narrative(person.name, facts, rng))
    spans = []
    for words in (person.name, *(value for _, value in facts)):
        at = text.find(words)
        while at >= 0:
            spans.append((at, at + len(words)))
            at = text.find(words, at + 1)
    return text, spans


def chunks(tokenizer: BertTokenizerFast, prose: Sequence[str], seed: int) -> Iterator[tuple[list[int], list[float]]]:
    """Token ids of endless chunks of a document, and what each token is worth: 0 in prose, 1 or :data:`BETWEEN` in
    facts. Half of the chunks hold a passage or more, as chunks of long documents do at times."""
    rng = random.Random(f"{seed}:keeper")
    strangers = people(SPLIT, seed)
    while True:
        ids: list[int] = []
        worth: list[float] = []
        dense = rng.choice([0.0, 0.0, 0.2, 0.5])
        while len(ids) < LENGTH - 2:
            text = rng.choice(prose)
            spans = None
            if rng.random() < dense:
                text, spans = passage(next(strangers), rng)
            found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            ids += found["input_ids"]
            for start, end in found["offset_mapping"]:
                inside = spans is not None and any(start < last and end > first for first, last in spans)
                worth.append(0.0 if spans is None else 1.0 if inside else BETWEEN)
        # A document is cut anywhere.
        skipped = rng.randint(0, len(ids) - (LENGTH - 2))
        yield ids[skipped : skipped + LENGTH - 2], worth[skipped : skipped + LENGTH - 2]


def tokenizer_of(prose: Sequence[str], seed: int) -> BertTokenizerFast:
    """A cased WordPiece tokenizer over the commonest words and pieces of words of prose and facts, and all characters.

    A trained one would not be a function of its seed: the trainer breaks ties at random.
    """
    rng = random.Random(f"{seed}:keeper:tokenizer")
    splitter = BertPreTokenizer()
    told = [passage(person, rng)[0] for person in islice(people(SPLIT, seed), TOLD)]
    words = Counter(word for text in (*prose[:PARAGRAPHS], *told) for word, _ in splitter.pre_tokenize_str(text))
    pieces: Counter[str] = Counter()
    for word, count in words.items():
        for first in range(len(word)):
            for size in (2, 3, 4):
                pieces["##" * bool(first) + word[first : first + size]] += count
    letters = sorted({letter for word in words for letter in word})
    known = [
        *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
        *(mark + letter for letter in letters for mark in ("", "##")),
        *(word for word, _ in sorted(words.items(), key=lambda item: (-item[1], item[0]))[:WORDS]),
        *(piece for piece, _ in sorted(pieces.items(), key=lambda item: (-item[1], item[0]))[:PIECES]),
    ]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(known))}
    return BertTokenizerFast(vocabulary, do_lower_case=False, strip_accents=False)


def train(prose: Sequence[str], folder: Path, steps: int, seed: int) -> list[float]:
    """Train the classifier on the CPU and write it to ``folder`` as a Hugging Face model; the losses of all steps.

    Label 1 is "keep", as :class:`utaca.methods.llmlingua2.LLMLingua2` wants it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    tokenizer = tokenizer_of(prose, seed)
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=256,
        max_position_embeddings=LENGTH,
        id2label={0: "drop", 1: "keep"},
        label2id={"drop": 0, "keep": 1},
    )
    model = BertForTokenClassification(config)
    optimiser = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    rate = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, LEARNING_RATE, total_steps=steps, pct_start=min(0.3, WARM_UP / steps)
    )
    stream = chunks(tokenizer, prose, seed)
    losses = []
    for _ in progress(range(steps), total=steps, unit="step", desc="training the classifier"):
        ids, worth = (torch.tensor(rows) for rows in zip(*islice(stream, BATCH), strict=True))
        ends = (tokenizer.cls_token_id, tokenizer.sep_token_id)
        ids = torch.cat((torch.full((BATCH, 1), ends[0]), ids, torch.full((BATCH, 1), ends[1])), 1)
        logits = model(input_ids=ids).logits[:, 1:-1]
        loss = F.binary_cross_entropy_with_logits(logits[..., 1] - logits[..., 0], worth)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        rate.step()
        losses.append(loss.item())
    model.eval().save_pretrained(folder)
    return losses


def make(settings: Settings, output: Path) -> None:
    """Train the classifier into ``output``: weights and tokenizer."""
    train(paragraphs(settings), output, settings.steps(STEPS), settings.seed)
