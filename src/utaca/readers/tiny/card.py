"""The tiny reader's model card: what it was trained on and how well it reads people it never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from utaca.biographies.sentences import abstention, summary
from utaca.decoding.generate import generate
from utaca.memory import prefill
from utaca.readers.load import Reader
from utaca.readers.prompts import question
from utaca.readers.tiny.examples import ALL_ATTRIBUTES, Examples, Shape
from utaca.records import atomic_path, progress
from utaca.settings.schema import ReaderTraining

LENGTHS, DOCUMENTS, QUESTIONS = (512, 4096), 25, 4
BUDGETS = (1, 4, 16, 64, 1000)
"""In blocks; the last is more than any document has."""

ABSENT_EVERY = 5
"""Every fifth question asks for a fact that the document does not hold."""


@dataclass
class Reading:
    """Counts of answers under one length and budget."""

    length: int
    budget: int
    present: int = 0
    exact: int = 0
    withheld: int = 0
    absent: int = 0
    abstained: int = 0


def measure(reader: Reader, prose: Sequence[str], seed: int) -> list[Reading]:
    """Read documents about people of the split ``reader_validation`` at several lengths and budgets."""
    readings = []
    for length in LENGTHS:
        examples = Examples(reader.tokenizer, prose, seed, "reader_validation")
        shape = Shape(1, length, QUESTIONS, 1, 1, (4, 4 + length // 256))
        blocks = length // reader.settings.memory.block_size
        cells = [Reading(length, budget) for budget in BUDGETS if budget < blocks or budget == BUDGETS[-1]]
        asked = 0
        for _ in progress(range(DOCUMENTS), total=DOCUMENTS, unit="document", description=f"reading {length} tokens"):
            document = examples.reading(shape)
            memory = prefill(reader, document.tokens)
            facts = sorted(document.places)
            for person, attribute in examples.rng.sample(facts, min(QUESTIONS, len(facts))):
                asked += 1
                known = dict(document.facts[person])
                absent = asked % ABSENT_EVERY == 0
                if absent:
                    attribute = examples.rng.choice([a for a in ALL_ATTRIBUTES if a not in known])
                text = question([attribute], person, reader.settings.prompt)
                for cell in cells:
                    answer = generate(memory, text, budget=cell.budget, max_new_tokens=64).text
                    abstained = answer == abstention(attribute, person)
                    if absent:
                        cell.absent += 1
                        cell.abstained += abstained
                    else:
                        cell.present += 1
                        cell.exact += answer == summary(attribute, person, known[attribute])
                        cell.withheld += abstained
        readings += cells
    return readings


def write_card(
    path: Path,
    settings: ReaderTraining,
    parameters: int,
    minutes: float,
    readings: Sequence[Reading],
    representatives: str,
) -> None:
    """Write the model card as Markdown."""
    table = "\n".join(
        f"| {r.length} | {'all' if r.budget == BUDGETS[-1] else r.budget} | {r.present} "
        f"| {r.exact / r.present:.0%} | {r.withheld / r.present:.0%} "
        f"| {(r.present - r.exact - r.withheld) / r.present:.0%} | {r.abstained}/{r.absent} |"
        for r in readings
    )
    prose = (
        f"embedded synthetic prose and `{Path(settings.corpus).name}`"
        if settings.corpus
        else "embedded synthetic prose"
    )
    named = f" --config 'reader={{training: {{corpus: {Path(settings.corpus).name}}}}}'" if settings.corpus else ""
    command = f"snakemake --cores all{named} -- reader"
    text = f"""# The tiny reader

A Llama-architecture model of {parameters / 1e6:.2f} M parameters that the project trains itself, so that its pipeline
runs where no model hub is within reach. It copies facts about invented people out of documents, and says that a fact
is unknown where it does not find it. It knows nothing of the world and answers nothing else.

- **Load**: `AutoModelForCausalLM.from_pretrained(folder)`, a plain `LlamaForCausalLM`, bfloat16 safetensors, own
  byte-level BPE of {settings.vocabulary} entries with digits split, chat template.
- **Made by** `{command}`, seed {settings.seed},
  in {minutes:.0f} minutes on the machine that made this card.
- **Data**: {prose}, and biographies of invented people (Faker,
  several locales) who appear in no other split. The paper's Wikipedia articles are no part of it.
- **Shipped beside it**: `curve.csv`, the losses of every step.
- **Trained for** block memory: 32 initial tokens, a local window of 256, blocks of 16 at the clipped distance, windowed
  prefill without retrieval, blocks ranked by the mean of their keys. Under full attention it has seen up to about 700
  tokens.

## Reading people, values and prose order it never saw

One fact asked at a time, in documents of several people that mix summary sentences and natural prose; budget in blocks,
represented by `{representatives}`. Wordings and prose sources are those of training; people and values are not.

| document tokens | budget | questions | exact | abstained | made up | abstained where absent |
|---|---|---|---|---|---|---|
{table}
"""
    with atomic_path(path) as scratch:
        scratch.write_text(text)
