"""Measures of operating points, such as CAS and mTokens: each is a column of a table, a ratio of two sums."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """The ratio of two sums over documents, ``above`` / ``below``.

    Both are keys of :attr:`utaca.reporting.results.PointResult.sums`. Columns of tables have the ratio times
    ``factor``. A ``timed`` measure is a time. If a run decodes some answers one at a time, it is measured on these.
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
"""mTokens that also counts the passes that were rolled back."""
ROLLBACKS = MEASURES["rollbacks_pct"]
SCORE = MEASURES["score"]
