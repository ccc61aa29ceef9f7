"""The uncertainty detector, its training, the logit baselines and their metrics (paper, section 3.1, appendix B)."""

from utaca.detection.data import Sequences, Verdicts, detect, sequences
from utaca.detection.detector import HALLUCINATED, UNKNOWN, Detector, State, load, uncertain
from utaca.detection.heuristics import Heuristic, fit_heuristics, load_heuristics, save_heuristics
from utaca.detection.metrics import CORRECT, detection_metrics
from utaca.detection.training import train

__all__ = [
    "CORRECT",
    "HALLUCINATED",
    "UNKNOWN",
    "Detector",
    "Heuristic",
    "Sequences",
    "State",
    "Verdicts",
    "detect",
    "detection_metrics",
    "fit_heuristics",
    "load",
    "load_heuristics",
    "save_heuristics",
    "sequences",
    "train",
    "uncertain",
]
