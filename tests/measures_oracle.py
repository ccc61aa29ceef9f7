"""What lm-polygraph and scikit-learn say of the arrays in ``tests/data/detection_measures.json``; see
test_detection_measures.py.

To write the file again, in an environment of its own::

    pip install --no-deps lm-polygraph==0.7.0
    pip install scikit-learn==1.9.1
    python tests/measures_oracle.py tests/data/detection_measures.json
"""

import json
import sys
from importlib.metadata import version
from importlib.util import find_spec
from types import ModuleType

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

# The packages' own __init__ import models and servers, which these metrics do not need.
(FOLDER,) = find_spec("lm_polygraph").submodule_search_locations
for name, folder in (("lm_polygraph", FOLDER), ("lm_polygraph.ue_metrics", f"{FOLDER}/ue_metrics")):
    package = ModuleType(name)
    package.__path__ = [folder]
    sys.modules[name] = package

from lm_polygraph.ue_metrics.pred_rej_area import PredictionRejectionArea  # noqa: E402
from lm_polygraph.ue_metrics.risk_cov_curve import RiskCoverageCurveAUC  # noqa: E402
from lm_polygraph.ue_metrics.ue_metric import get_random_scores, normalize_metric  # noqa: E402


def case(size: int, share: float, lift: float, digits: int | None, seed: int) -> dict:
    """Scores of ``size`` tokens and their measures; a ``share`` is uncertain, and scores ``lift`` higher."""
    generator = np.random.default_rng(seed)
    uncertain = generator.random(size) < share
    score = generator.normal(size=size) + lift * uncertain
    score = score.round(6 if digits is None else digits)
    arrays = {"score": score.tolist(), "uncertain": uncertain.astype(int).tolist()}
    alarms, recall, _ = roc_curve(uncertain, score, drop_intermediate=False)
    measures = {
        "roc_auc": roc_auc_score(uncertain, score),
        "average_precision": average_precision_score(uncertain, score),
        "recall_at_0.1_fpr": recall[np.flatnonzero(alarms <= 0.1)[-1]],
    }
    if len({*score.tolist()}) == size:
        # With equal scores these depend on the order of the input.
        correct = 1.0 - uncertain
        rejection = PredictionRejectionArea()
        area, best = rejection(score, correct), rejection(-correct, correct)
        measures["rcc-auc"] = RiskCoverageCurveAUC()(score, correct)
        measures["prr"] = area
        measures["prr_best"] = best
        measures["prr_random"] = get_random_scores(rejection, correct)
        measures["prr_normalized"] = normalize_metric(area, best, measures["prr_random"])
    return arrays | {"measures": {name: float(value) for name, value in measures.items()}}


def main(path: str) -> None:
    """Write the file."""
    shapes = [(40, 0.3, 1.0, None), (200, 0.08, 1.5, None), (200, 0.42, 0.3, None), (60, 0.5, -1.0, None)]
    shapes += [(50, 0.3, 1.0, 0), (200, 0.1, 1.0, 1)]
    cases = [case(*shape, seed) for seed, shape in enumerate(shapes)]
    made_by = {name: version(name) for name in ("lm-polygraph", "scikit-learn")}
    lines = ",\n".join(json.dumps(one) for one in cases)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'{{"made_by": {json.dumps(made_by)},\n"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(sys.argv[1])
