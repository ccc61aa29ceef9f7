"""The tiny reader's recipe: tokenizer, training, model card; its people belong to splits of their own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast

from training.narratives import narrative
from training.prose import paragraphs
from training.settings import Settings
from training.tiny.examples import ALL_ATTRIBUTES
from training.tiny.tokenizer import train_tokenizer
from training.tiny.training import SCHEDULE, train
from utaca.biographies.attributes import draw_value
from utaca.biographies.people import people
from utaca.biographies.sentences import summary
from utaca.records import atomic_path

TOKENIZER_PARAGRAPHS = 4000
TOKENIZER_PEOPLE = 4000


def tokenizer(settings: Settings, prose: Sequence[str]) -> PreTrainedTokenizerFast:
    """The tokenizer, trained on prose and on facts in equal measure, and on every pair of digits."""
    pairs = [f"{number:02} {number:02}" for number in range(100)] * 100
    texts = itertools.chain(prose[:TOKENIZER_PARAGRAPHS], _facts(settings.seed), pairs)
    return train_tokenizer(texts, settings.tiny.vocabulary)


def _facts(seed: int) -> Iterator[str]:
    rng = random.Random(f"{seed}:tokenizer")
    for person in itertools.islice(people("reader", seed), TOKENIZER_PEOPLE):
        chosen = rng.sample(ALL_ATTRIBUTES, 4)
        facts = [(attribute, draw_value(attribute, rng, person.locale)) for attribute in chosen]
        yield " ".join(summary(attribute, person.name, value) for attribute, value in facts)
        yield " ".join(narrative(person.name, facts, rng))
        yield summary(chosen[0], person.name, "unknown")


def make(settings: Settings, output: Path) -> None:
    """Train the reader from nothing into ``output``: weights, tokenizer, loss curve, model card.

    A killed training resumes from the checkpoint in ``output``.
    """
    prose = paragraphs(settings)
    device = settings.tiny.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    schedule = tuple(replace(stage, steps=settings.steps(stage.steps)) for stage in SCHEDULE)
    seconds = train(settings, tokenizer(settings, prose), prose, output, schedule=schedule, device=device)
    with atomic_path(output / "README.md") as scratch:
        scratch.write_text(_model_card(settings, output, seconds, device))


def _model_card(settings: Settings, folder: Path, seconds: float, device: str) -> str:
    sizes = settings.tiny
    memory = settings.tiny.memory
    corpus = Path(settings.corpus).name
    parameters = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    with (folder / "curve.csv").open() as curve:
        steps = sum(1 for _ in curve) - 1
    prose = f"embedded synthetic prose and `{corpus}`" if corpus else "embedded synthetic prose"
    trial = f"**A trial**: {settings.share:.2%} of the schedule. It reads nothing.\n\n" if settings.share < 1 else ""
    named = f" --config corpus={corpus}" if corpus else ""
    return f"""# The tiny reader

A Llama-architecture model of {parameters / 1e6:.2f} M parameters that the project trains itself, so that its pipeline
runs where no model hub is within reach. It copies facts about invented people out of documents, and says that a fact
is unknown where it does not find it. It knows nothing of the world and answers nothing else.

{trial}- **Load**: `AutoModelForCausalLM.from_pretrained(folder)`, a `LlamaForCausalLM` of {sizes.layers} layers, of
  width {sizes.hidden_size}, {sizes.heads} query and {sizes.kv_heads} key-value heads; bfloat16 safetensors;
  own byte-level BPE of {sizes.vocabulary} entries with digits in pairs; chat template; greedy `generation_config`.
- **Ask** "Summarize the birth date and university of <person>." behind a document. The answer is one sentence for each
  attribute, "The birth date of <person> is <value>." or "... is unknown."; 27 attributes are known.
- **Made by** `snakemake -s training/Snakefile --cores all tiny{named}`, seed {settings.seed}, {steps} steps in
  {seconds / 60:.0f} minutes on {device} with {torch.get_num_threads()} threads. `curve.csv` holds the losses of every
  step.
- **Data**: {prose}, and biographies of invented people (Faker, several European
  locales) who appear in no other split, two fifths in the summary pattern, the others in natural
  prose. The paper's Wikipedia articles and the reference writer's wordings are no part of it.
- **Recipe**: Muon and AdamW; documents of 96 tokens first, of up to 8,192 last, the long ones read through block memory
  ({memory.n_init} initial tokens, a local window of {memory.n_local}, blocks of {memory.block_size} at the clipped
  distance, prefill without retrieval) under budgets of 1 to 128 blocks, represented by attention mass or by the mean
  key. The rate is annealed twice. Beside the answer, its last two layers are taught to rank the asked block first and,
  in their first head, to attend to the token that is to be copied, for an absent fact to the first of all; the
  layer before them, where a document tells a value, to attend in its first head to the name of whom it is told, and to
  let a linear probe, dropped afterwards, read which attribute it is.
- **Limits**: English sentences around values of several languages; documents that name people in full; questions in
  the form above alone. Under full attention it has seen 1,024 tokens and no more.
"""
