"""The table of what share of tokens each variant of the detector distrusts."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from utaca.detection.about import about
from utaca.detection.training.metrics import MOST_DISTRUSTED, TOO_MUCH_DISTRUST
from utaca.records.schemas import CORRECT
from utaca.reporting import statistics
from utaca.reporting.registry import Files
from utaca.reporting.statistics import NAN, Row
from utaca.reporting.table import framed
from utaca.reporting.tables.detection import learned_from, loaded, title
from utaca.settings import schema


def distrust(files: Files, config: schema.Config) -> pd.DataFrame:
    """Shares of uncertain and of distrusted tokens by variant and split.

    Of training and validation the detectors' files tell them, of the test split the verdicts.
    """
    data = loaded(files)
    labelled = data.label >= 0
    uncertain = float((data.label[labelled] != CORRECT).mean()) if labelled.any() else NAN
    seeds = len(files["detectors"]) // len(config.detectors)
    rows = []
    warned = []
    for place, (name, settings) in enumerate(config.detectors.items()):
        facts = [about(path)["facts"] for path in files["detectors"][place * seeds :][:seeds]]
        shown = {"detector": title(name), "learned_from": learned_from(settings)}
        for split in ("train", "validation"):
            told = [[one.get(f"{split}_{share}", NAN) for one in facts] for share in ("uncertain", "distrusted")]
            row = shown | _row(split, np.mean(told[0]), told[1])
            if split == "validation" and row["share_distrusted_pct"] > 100 * MOST_DISTRUSTED:
                row["note"] = "more than a third"
                warned.append(f"{title(name)} distrusts {row['share_distrusted_pct']:.0f} % of the validation tokens.")
            rows.append(row)
        runs = data.runs.get(name, ())
        rows.append(shown | _row("test", uncertain, [run.uncertain[labelled].mean() for run in runs] or [NAN]))
    warning = " ".join([*warned, TOO_MUCH_DISTRUST]) if warned else ""
    return framed(rows, len(data.documents), data.seeds, warned=warning)


def _row(split: str, uncertain: float, distrusted: Sequence[float]) -> Row:
    mean, sd = statistics.mean_sd(distrusted)
    return {
        "split": split,
        "share_uncertain_pct": 100 * uncertain,
        "share_distrusted_pct": 100 * mean,
        "share_distrusted_pct_sd": 100 * sd,
        "seeds": len(distrusted),
        "note": "",
    }
