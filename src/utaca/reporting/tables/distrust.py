"""The table of the share of tokens that each variant of the detector distrusts."""

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
    """Make the table of the shares of uncertain and of distrusted tokens, by variant and split.

    A token is uncertain by its label, and distrusted by the detector's verdict. The shares in training and validation
    come from the detectors' files, those in the test split from the verdicts.
    """
    data = loaded(files)
    labelled = data.label >= 0
    uncertain = float((data.label[labelled] != CORRECT).mean()) if labelled.any() else NAN
    # The files are sorted by variant, in the config's order, and each variant has as many seeds.
    n_seeds = len(files["detectors"]) // len(config.detectors)
    rows = []
    warned = []
    for place, (name, settings) in enumerate(config.detectors.items()):
        paths = files["detectors"][place * n_seeds : (place + 1) * n_seeds]
        facts_by_seed = [about(path)["facts"] for path in paths]
        shown = {"detector": title(name), "learned_from": learned_from(settings)}
        for split in ("train", "validation"):
            uncertain_shares = [facts.get(f"{split}_uncertain", NAN) for facts in facts_by_seed]
            distrusted_shares = [facts.get(f"{split}_distrusted", NAN) for facts in facts_by_seed]
            row = shown | _row(split, np.mean(uncertain_shares), distrusted_shares)
            if split == "validation" and row["share_distrusted_pct"] > 100 * MOST_DISTRUSTED:
                row["note"] = "more than a third"
                warned.append(f"{title(name)} distrusts {row['share_distrusted_pct']:.0f} % of the validation tokens.")
            rows.append(row)
        distrusted_shares = [run.uncertain[labelled].mean() for run in data.runs.get(name, ())]
        # A variant without verdicts was not run on the test split.
        rows.append(shown | _row("test", uncertain, distrusted_shares or [NAN]))
    warning = " ".join([*warned, TOO_MUCH_DISTRUST]) if warned else ""
    return framed(rows, len(data.documents), data.seeds, warned=warning)


def _row(split: str, uncertain: float, distrusted: Sequence[float]) -> Row:
    """The columns of a split, from its share of ``uncertain`` tokens and its share of ``distrusted`` ones by seed."""
    mean, sd = statistics.mean_sd(distrusted)
    return {
        "split": split,
        "share_uncertain_pct": 100 * uncertain,
        "share_distrusted_pct": 100 * mean,
        "share_distrusted_pct_sd": 100 * sd,
        "seeds": len(distrusted),
        "note": "",
    }
