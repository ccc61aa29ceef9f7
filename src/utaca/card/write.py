"""The reader card as Markdown for people and as CSV."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from utaca.card import figures
from utaca.card.figures import Figure
from utaca.card.material import ATTRIBUTES, LONGEST, SHORTEST
from utaca.records import atomic_path
from utaca.reporting.render import MISSING, bracketed, markdown, number
from utaca.reporting.statistics import LEVEL
from utaca.reporting.tables import corpus_in_words, endpoint_in_words
from utaca.settings import schema


def write_csv(path: str | Path, found: Sequence[Figure]) -> None:
    """Write the figures, one a row, unrounded; ``bar`` is empty where there is none."""
    frame = pd.DataFrame([{**asdict(one), "bar": str(one.bar) if one.bar else ""} for one in found])
    with atomic_path(path) as scratch:
        frame.to_csv(scratch, index=False, float_format="%.6g", lineterminator="\n")


def write_markdown(path: str | Path, found: Sequence[Figure], speed: Mapping[str, Any], config: schema.Config) -> None:
    """Write the card; ``speed`` is what :func:`utaca.card.speed.measure` measured."""
    sections = [_introduction(config, found), _bars(found), _written(found), _blocks(found), _prefilled(found)]
    sections += [_attributes(found), _speed(speed)]
    with atomic_path(path) as scratch:
        scratch.write_text("\n".join(filter(None, sections)), encoding="utf-8")


def verdict(one: Figure) -> str:
    """ "met", or by how much a figure misses its bar."""
    missed = one.bar.missed(one.value) if one.bar else 0.0
    if math.isnan(missed):
        return "not measured"
    # No miss reads as one of 0.000.
    return f"missed by {max(missed, 0.001):.3f}" if missed else "met"


_IN_WORDS = {
    "summary": "full attention, {short} tokens, summary sentences, other people's facts and prose around",
    "natural": "full attention, {short} tokens, six attributes in natural prose, wordings held out from training",
    figures.ABSENT: "full attention, asked for a fact that is absent",
    figures.ALL_PRESENT: "full attention, asked for a fact that is present (both cells above)",
    "written": "full attention, biographies written by hand, each alone",
    figures.UNWRITTEN: "full attention, asked for a fact that a handwritten biography does not tell",
    "xquad": "full attention, SQuAD's kind of questions, the paragraph alone",
    figures.TRAINING_SET: "compact budgets on the detector's training set, share of generated tokens",
}


def _in_words(one: Figure) -> str:
    kind = "handwritten biographies" if one.cell.startswith("written") else "six attributes in natural prose"
    said = _IN_WORDS.get(one.cell, f"documents of {{tokens}} tokens, {kind}")
    said = said.format(short=f"{SHORTEST}-{LONGEST}", tokens=one.cell.rpartition("-")[2])
    return said if one.cell in _IN_WORDS else f"{said}, {one.setting}"


def _introduction(config: schema.Config, found: Sequence[Figure]) -> str:
    reader, memory = config.reader, config.reader.memory
    small = [f for f in found if f.bar and f.cell != figures.TRAINING_SET and f.n < figures.QUESTIONS]
    warning = (
        f"\n**A sample**: the bars are meant for {figures.QUESTIONS} questions a cell or more; this card asks for "
        f"{config.card.questions}.\n"
        if small
        else ""
    )
    return f"""# Reader card: {reader.name}

How well the reader at `{reader.path}` reads what is no part of the tiny reader's training.

- **Asked about**: people of a split of their own, values drawn for them, natural prose by the wording rules of the
  reference writer, between prose of the corpus {_corpus(config)}. A question is one attribute asked.
- **Reader**: {reader.dtype}, wording "{reader.prompt}"; block memory of {memory.n_init} initial tokens, a window of
  {memory.n_local}, blocks of {memory.block_size}.
- **Exact**: the answer gives the value character for character. **CAS**: by the judge
  {endpoint_in_words(config.judge)}.
- **Detector's training set**: of scale {config.scale.name}. **Seed**: {config.seed}.
- **Brackets**: {LEVEL:.0%} bootstrap intervals over documents ({config.scale.bootstrap} resamples), for the questions
  about one document depend on each other; where all documents agree, Wilson's interval with the documents as sample.

All figures, unrounded: `card.csv`.
{warning}"""


def _corpus(config: schema.Config) -> str:
    """The corpus in words, one of the user's own with the name of its file."""
    path = Path(config.corpus.path).name
    return f"{corpus_in_words(config)} (`{path}`)" if path else corpus_in_words(config)


def _bars(found: Sequence[Figure]) -> str:
    rows = [
        [_in_words(f), f.measure, str(f.bar), number(f.value, 3), _limits(f), _counted(f), verdict(f)]
        for f in found
        if f.bar
    ]
    header = ["setting", "measure", "bar", "measured", "interval", "n", "verdict"]
    caption = (
        "n counts questions, in the detector's training set tokens. A bar is met where the measured figure, not its "
        "interval, reaches it. Those whose judgement or label failed are left out."
    )
    return markdown("Bars", caption, header, rows)


def _limits(one: Figure) -> str:
    return MISSING if math.isnan(one.low) else f"[{one.low:.3f}, {one.high:.3f}]"


def _counted(one: Figure) -> str:
    return f"{one.n} (and {one.failed} failed)" if one.failed else str(one.n)


def _shown(one: Figure | None, digits: int = 3) -> str:
    return bracketed(one.value, one.low, one.high, digits) if one else MISSING


def _written(found: Sequence[Figure]) -> str:
    """What it reads of prose that nobody here generated; empty where it was not asked."""
    by_key = {(f.cell, f.setting, f.measure): f for f in found}
    rows = []
    for f in found:
        tokens = f.cell.rpartition("-")[2] if "-" in f.cell else "alone"
        if f.measure == figures.FOUND:
            rows.append([f.cell, tokens, f.setting, "value found", _shown(f), str(f.n)])
            abstained = by_key[f.cell, f.setting, figures.ABSTAINED]
            rows.append([f.cell, tokens, f.setting, "false abstention", _shown(abstained), str(f.n)])
        elif f.measure in (figures.SHORTFALL, figures.FOUND_RISE):
            rows.append([f.cell, tokens, f.setting, f.measure, _shown(f), str(f.n)])
        elif f.cell == figures.UNWRITTEN:
            rows.append([f.cell, tokens, f.setting, "true abstention", _shown(f), str(f.n)])
        elif f.cell == "xquad":
            rows.append([f.cell, tokens, f.setting, f.measure, _shown(f), str(f.n)])
    if not rows:
        return ""
    caption = (
        "Biographies that people could have written, one by one, and SQuAD's kind of questions: no wording of them is "
        "any training's. A value is found where the answer gives it, case, punctuation and articles aside, with at "
        "most four further words. Differences compare the same documents. F1 and exact match are SQuAD's."
    )
    return markdown("Prose from outside", caption, ["cell", "tokens", "read", "measure", "share", "questions"], rows)


def _prefilled(found: Sequence[Figure]) -> str:
    """CAS by prefill budget and decoding budget; empty where one prefill budget alone was asked for."""
    rows = [
        [f.cell.rpartition("-")[2], *f.setting.split(", "), _shown(f), _counted(f)]
        for f in found
        if f.setting.startswith("prefill ")
    ]
    if not rows:
        return ""
    caption = (
        "Blocks that each chunk of the document and of the question retrieves while they are read, against blocks that "
        "each generated token retrieves. The same documents everywhere."
    )
    return markdown("Prefill", caption, ["document tokens", "prefill", "decoding", "CAS", "questions"], rows)


def _blocks(found: Sequence[Figure]) -> str:
    by_key = {(f.cell, f.setting, f.measure): f for f in found}
    measures = [figures.CAS, figures.EXACT, figures.ABSTAINED, figures.WRONG]
    rows = []
    for f in found:
        tokens = f.cell.rpartition("-")[2]
        if f.measure == figures.CAS and not f.setting.startswith("prefill "):
            shown = [_shown(by_key.get((f.cell, f.setting, measure))) for measure in measures]
            rows.append([tokens, f.setting, *shown, _counted(f)])
        elif f.measure == figures.RISE:
            rows.append([tokens, f.setting, f"rise {_shown(f)}", *[""] * (len(measures) - 1), str(f.n)])
    caption = "The rise compares the same documents under both budgets."
    return markdown("Block memory", caption, ["document tokens", "budget", *measures, "questions"], rows)


def _attributes(found: Sequence[Figure]) -> str:
    by_key = {(f.cell, f.setting, f.measure): f for f in found}
    fertility = ["tokens a value", "tokens a word", "characters a token"]
    rows = []
    for name in ("prose", *ATTRIBUTES):
        shown = [_shown(by_key.get((figures.FERTILITY, name, measure)), 2) for measure in fertility]
        exact = [_shown(by_key.get((cell, name, figures.EXACT)), 2) for cell in ("summary", "natural")]
        rows.append([name, *shown, *exact])
    caption = (
        "What the tokenizer makes of the corpus' prose and of 500 drawn values of each attribute, and how many values "
        "are read exactly with full attention. Words are what white space separates; a value counts with the space "
        "before it."
    )
    return markdown("Attributes", caption, ["", *fertility, "exact, summary", "exact, natural"], rows)


def _speed(speed: Mapping[str, Any]) -> str:
    decoded = (
        f"{speed['decode_milliseconds']:.2f} ms a token (median of {speed['decoded']}) under K={speed['budget']}"
        if speed["decode_milliseconds"]
        else "its answer was too short to time"
    )
    points = speed["points"]
    rows = [
        [f"{tokens} tokens read", f"{int(tokens) / s['prefill']:.0f} tokens/s",
         f"{int(tokens) / s['forward']:.0f} tokens/s", f"{s['forward'] / s['prefill']:.2f} x"]
        for tokens, s in speed["against"].items()
    ]  # fmt: skip
    caption = (
        "Reading: block memory's prefill beside the model's own forward pass under full attention (transformers, fused "
        "attention). Medians of up to three, in turns, in one run; one where it takes a minute."
    )
    against = markdown("Reading", caption, ["", "prefill", "full attention", "faster by"], rows) if rows else ""
    return f"""## Speed

Reading a document of {speed["tokens"]} tokens took {speed["prefill_seconds"]:.1f} s (median of {speed["prefills"]}),
decoding from it {decoded}:
{speed["device"]}, threads: {speed["threads"]}, {speed["dtype"]}. A step of {points["number"]} operating points together
took {points["milliseconds"]:.1f} ms, of one alone {points["alone_milliseconds"]:.1f} ms:
{points["milliseconds"] / points["alone_milliseconds"]:.2f} times as long.

{against}"""
