"""How the number of training trajectories and the class weights change a detector.

``python bench/amounts.py results/detectors-public --people 100 333 1008`` trains detectors on the trajectories of the
run's first people, and measures them on the run's validation trajectories. Baselines learn from the most people only.
It prints a Markdown table: means over seeds, in % except for the AUROC. `expansions` is the share of the compact tokens
that the detector distrusts: those of trajectories along a path (``scale.*.paths``) that were decoded below the path's
K_max. `needed` is the share of the distrusted tokens that the large budget changes.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from report import markdown

from utaca.detection.training.data import Sequences, about, columns, sequences
from utaca.detection.training.metrics import detection_metrics
from utaca.detection.training.training import train
from utaca.detection.training.verdicts import heuristics, verdicts
from utaca.records.schemas import CORRECT
from utaca.records.tables import read
from utaca.runs import record
from utaca.settings import schema

SPLITS = ("train", "validation")
HEADER = (
    "Detector",
    "People",
    "Tokens",
    "mAcc",
    "Recall_N",
    "Recall_P",
    "AUROC",
    "AUROC, values",
    "distrusts",
    "expansions",
    "needed",
)

VARIANTS = {
    "weights of the paper": schema.DetectorSettings(),
    "weights by shares": schema.DetectorSettings(weights="shares"),
    "weights by shares, margin only": schema.DetectorSettings(weights="shares", embedding=False),
}
BASELINES = {
    "evidential": schema.DetectorSettings(kind="evidential", classes=2, decision="youden"),
    "linear probe": schema.DetectorSettings(kind="linear", signals=[], lstm=False, classes=2),
}
"""Detectors that learn from the most people only, with the settings of `config/detectors/core.yaml`."""


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run with labelled trajectories")
    parser.add_argument("--people", type=int, nargs="+", required=True, help="numbers of training documents")
    parser.add_argument("--steps", type=int, default=2000, help="optimisation steps (default: 2000)")
    parser.add_argument("--seeds", type=int, default=8, help="seeds of each detector (default: 8)")
    return parser.parse_args()


def split_tables(run: Path, split: str, wanted: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """The trajectories of a split, without columns that are not ``wanted``, and their labels."""
    files = sorted(str(path) for path in (run / "trajectories" / split).glob("*.parquet"))
    labeller = record.read(run / record.CONFIG)["labeller"]["name"]
    return read(files, "trajectories", list(wanted)), read(run / "labels" / labeller / f"{split}.parquet", "labels")


def compact_tokens(table: pa.Table) -> np.ndarray:
    """Whether each token, in the order of :class:`Sequences`, lies below the K_max of its path."""
    order = [("document", "ascending"), ("budget", "ascending"), ("step", "ascending")]
    ordered = table.select(["document", "budget", "step", "k"]).sort_by(order)
    return ordered["k"].to_numpy() < ordered["budget"].to_numpy()


def measured(
    uncertain: np.ndarray, score: np.ndarray, shown: Sequences, compact: np.ndarray
) -> tuple[float, float, float, float, float, float, float, float]:
    """The figures of the table's columns after `Tokens`, of one seed."""
    label = shown.labels
    everything = detection_metrics(uncertain, label, score)
    values = detection_metrics(uncertain[shown.value], label[shown.value], score[shown.value])
    distrusted = uncertain & (label >= 0)
    return (
        100 * everything["macc"],
        100 * everything["recall_n"],
        100 * everything["recall_p"],
        everything["auroc"],
        values["auroc"],
        100 * everything["share_distrusted"],
        100 * float(uncertain[compact].mean()) if compact.any() else float("nan"),
        100 * float((shown.needed[distrusted] == 1).mean()) if distrusted.any() else float("nan"),
    )


def cells(figures: Sequence[tuple[float, ...]]) -> list[str]:
    """The mean of each figure over seeds, as text."""
    means = np.mean(np.array(figures), axis=0)
    return [f"{mean:.3f}" if place in (3, 4) else f"{mean:.1f}" for place, mean in enumerate(means)]


def main() -> None:
    options = parsed()
    judged = schema.DetectorSettings()
    wanted = [*columns(judged), "k"]
    tables = {split: split_tables(options.run, split, wanted) for split in SPLITS}
    shown = sequences(*tables["validation"], judged)
    compact = compact_tokens(tables["validation"][0])
    known = shown.labels[shown.labels >= 0]
    print(f"Of {len(known):,} validation tokens {100 * np.mean(known != CORRECT):.1f} % are not correct.\n")
    print(markdown(HEADER, []), flush=True)
    for name, decided in heuristics(shown, shown).items():
        figures = [measured(decided.uncertain, decided.score, shown, compact)]
        print(f"| {' | '.join([name, '-', '-', *cells(figures)])} |", flush=True)
    documents = sorted(set(tables["train"][0]["document"].to_pylist()))
    for people in options.people:
        ids = set(documents[:people])
        trajectories, labels = (about(table, ids) for table in tables["train"])
        variants = VARIANTS | BASELINES if people == max(options.people) else VARIANTS
        for name, settings in variants.items():
            learned: Sequences = sequences(trajectories, labels, settings)
            validation = sequences(*tables["validation"], settings)
            figures = []
            for detector, _ in train(
                settings, learned, validation, steps=options.steps, seeds=range(options.seeds), description=name
            ):
                decided = verdicts(detector, validation)[""]
                figures.append(measured(decided.uncertain, decided.score, validation, compact))
            row = [name, f"{len(ids):,}", f"{learned.n_tokens:,}", *cells(figures)]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
