"""The adapter's recipe: data, tuning, model card."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import torch

from training.prose import paragraphs
from training.settings import Settings
from training.smollm2.examples import APART, Examples, squad
from training.smollm2.tuning import FINAL_LENGTH, MOST_FALSE, RANK, SCHEDULE, tune
from utaca.biographies.corpora import folder
from utaca.data_files import root
from utaca.errors import UserError
from utaca.readers import lora
from utaca.readers.shelf import load_reader
from utaca.records import atomic_path

WORDINGS = root() / "data" / "readers" / "smollm2-tuned"
"""The folder of the training's wordings."""


def prose(settings: Settings) -> list[str]:
    """Paragraphs that go between: of the settings' corpus, or where they name none the embedded ones."""
    if not settings.corpus:
        return paragraphs(settings)
    texts = folder.articles(settings.corpus, "corpus")
    return [p.strip() for text in texts for p in text["text"].split("\n\n") if len(p.strip()) >= 80]


def make(settings: Settings, output: Path) -> None:
    """Tune SmolLM2 into ``output``: adapter, base model's identity, curve, model card.

    A killed tuning resumes from the checkpoint in ``output``. Raises :class:`UserError` where a file of the recipe is
    missing.
    """
    files = settings.adapter
    for key, path in (("squad", files.squad), ("squad_apart", files.squad_apart)):
        if path and not Path(path).is_file():
            raise UserError(f"adapter.{key}={path} is no file; name one of SQuAD's layout, or ''")
    apart = Path(files.squad_apart) if files.squad_apart else None
    articles = squad(Path(files.squad), apart) if files.squad else []
    base = load_reader("smollm2", dtype="bfloat16")
    identity = base.identity
    examples = Examples(base.prompts, WORDINGS, prose(settings), articles, settings.seed)
    schedule = [tuple(replace(stage, steps=settings.steps(stage.steps)) for stage in stages) for stages in SCHEDULE]
    seconds, curve, calibrated = tune(base, examples, output, schedule=schedule, seed=settings.seed)
    with atomic_path(output / lora.BASE) as scratch:
        scratch.write_text(json.dumps({"identity": identity}) + "\n", encoding="utf-8")
    _write(output / "curve.csv", curve)
    _write(output / "calibration.csv", calibrated)
    with atomic_path(output / "README.md") as scratch:
        scratch.write_text(_model_card(settings, curve, calibrated, seconds, bool(articles)), encoding="utf-8")


def _write(path: Path, rows: list[dict[str, float]]) -> None:
    with atomic_path(path) as scratch, scratch.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, max(rows, key=len), lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.6g}" for k, v in row.items()} for row in rows)


def _model_card(
    settings: Settings,
    curve: list[dict[str, float]],
    calibrated: list[dict[str, float]],
    seconds: float,
    questions: bool,
) -> str:
    files = settings.adapter
    chosen = next((row for row in calibrated if row["false abstention"] <= MOST_FALSE), calibrated[-1])
    trial = f"**A trial**: {settings.share:.2%} of the schedule.\n\n" if settings.share < 1 else ""
    prose = f"`{Path(settings.corpus).name}`" if settings.corpus else "embedded synthetic prose"
    real = (
        f"Three tenths are SQuAD 2.0 (`{Path(files.squad).name}`), answerable or not, but for the articles "
        f"{', '.join(APART)} and every paragraph of `{Path(files.squad_apart).name}`. "
        if questions
        else "No real questions. "
    )
    tokens = sum(int(row["tokens"]) for row in curve)
    validated, biased = (
        "; ".join(f"{key} {row[key]:.2f}" for key in ("value found", "false abstention", "true abstention"))
        for row in (calibrated[0], chosen)
    )
    return f"""# SmolLM2-135M-Instruct, tuned to read facts

A LoRA adapter of SmolLM2-135M-Instruct (Apache-2.0): rank {RANK}, all linear layers, bfloat16. It teaches the model to
answer questions about people, and about other text, with what the text says, and to say "unknown" where it does not.

{trial}- **Trained under full attention alone.** No block memory, no retrieval loss, no forced blocks, no taught heads.
  What blocks the reader finds is the pretrained model's own doing.
- **Load**: `utaca.load_reader("smollm2_tuned")`, or peft on the base model. The base is fetched by
  `utaca fetch smollm2`; `base.json` names it.
- **Ask** "Summarize the birth date and university of <person>." behind a document: the answer is one sentence for each
  attribute, "The birth date of <person> is <value>." or "... is unknown.". Asked as people ask, it answers with a few
  words of the text, or "unknown".
- **Data**: passages and sentences written for this training by several hands (`passages.jsonl`, `sentences.jsonl`,
  `questions.json`, `values.json`), their slots filled anew at every use; the tiny reader's narratives and summary
  sentences; paragraphs of {prose} between. {real}Documents of up to 2,048 tokens, of {FINAL_LENGTH:,} in the end.
- **Recipe**: AdamW, a cosine in each of {len(SCHEDULE)} rounds, of which the last asks half as often for what a
  document does not tell as for what it tells; {len(curve)} steps, {tokens:,} tokens, {seconds / 60:.0f} minutes with
  {torch.get_num_threads()} threads, seed {settings.seed}. `curve.csv` has every step's loss.
- **Validation** (passages that it was not trained on, answers forced up to the value): {validated}.
- **Calibration**: a bias of {chosen["bias"]:g} on the logit of "unknown" (`reader.logit_bias`) leaves at most
  {MOST_FALSE:.0%} false abstentions on validation: {biased}. `calibration.csv` has the others.
- **Limits**: a model of 135 M parameters in four-bit weights, tuned in English alone.
"""
