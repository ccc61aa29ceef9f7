"""Measures of operating points: each is a column of a table of points, a ratio of two sums over documents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """The ratio of the sums ``above`` and ``below`` of a :class:`~utaca.reporting.results.PointResult`.

    Columns of tables have it times ``factor``. A measure that is ``timed`` is a time: where a run decodes some answers
    each by itself, the measure is of those.
    """

    above: str
    below: str
    factor: float = 1
    timed: bool = False


MEASURES = {
    "mtokens": Measure("selected", "n_generated"),
    "mtokens_with_tentative": Measure("selected_with_tentative", "n_generated"),
    "attended": Measure("attended", "n_generated"),
    "attended_with_tentative": Measure("attended_with_tentative", "n_generated"),
    "rollbacks_pct": Measure("rollbacks", "n_generated", 100),
    "effective_rollbacks_pct": Measure("effective_rollbacks", "n_generated", 100),
    "tokens_per_pass": Measure("n_generated", "passes"),
    "answered": Measure("n_generated", "examples"),
    "read_pct": Measure("n_context", "n_document", 100),
    "cas_pct": Measure("cas", "judged", 100),
    "cas_whole_pct": Measure("cas_whole", "judged_whole", 100),
    "string_match_pct": Measure("string_match", "attributes", 100),
    "score": Measure("score", "examples"),
    "prefill_s": Measure("prefill_seconds", "documents", timed=True),
    "end_to_end_s": Measure("end_to_end_seconds", "documents", timed=True),
    "seconds_per_token": Measure("decode_seconds", "n_generated", timed=True),
}
"""All measures, by their columns."""

CAS = MEASURES["cas_pct"]
MTOKENS = MEASURES["mtokens"]
ALL_PASSES = MEASURES["mtokens_with_tentative"]
"""Selected tokens for a generated one, in the passes that were not accepted too."""
ROLLBACKS = MEASURES["rollbacks_pct"]
SCORE = MEASURES["score"]
