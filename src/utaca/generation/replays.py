"""Counterfactual replays: an answer decoded again with one decision of its detector turned.

Paper, appendix "False-Positive and False-Negative Failure Cases": one expansion is suppressed, or one missed expansion
forced; everything else is left to run on. There it is done for four decisions found by hand.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from utaca.decoding.policies import parse
from utaca.settings.schema import Point
from utaca.trace import Generation


@dataclass(frozen=True)
class Replays:
    """Which decisions are replayed: those of the point ``label``, at most ``count`` of each kind in a document.

    Where there are more of a kind, expanded or kept, they are drawn by ``seed`` with equal chances.
    """

    label: str
    count: int
    seed: int

    def drawn(self, trace: Sequence[Mapping[str, Any]], point: Point, document: str) -> list[tuple[int, int]]:
        """Steps to replay, ascending, each with the number of decisions of its kind that it was drawn from."""
        found = []
        for expanded in (True, False):
            steps = [step for step in decisions(trace, point) if trace[step]["rolled_back"] == expanded]
            draw = random.Random(f"{self.seed}:replays:{self.label}:{document}:{expanded}")
            # In an order of chance, so that more replays hold those of fewer.
            found += [(step, len(steps)) for step in draw.sample(steps, len(steps))[: self.count]]
        return sorted(found)


def decisions(trace: Sequence[Mapping[str, Any]], point: Point) -> list[int]:
    """Steps of an answer's trace (schema "traces") at which there was a decision: those tried below K_max."""
    policy, k, found = parse(point.policy), point.budget, []
    for step, token in enumerate(trace):
        if k < point.budget:
            found.append(step)
        k = point.budget if token["rolled_back"] else policy.update(k, point.budget, None)
    return found


def replay_row(trace: Sequence[Mapping[str, Any]], step: int, turned: Generation) -> dict[str, Any]:
    """A row of schema "replays": ``turned`` is the answer of ``trace`` with the decision at ``step`` turned.

    Both know the token of their own pass; together, the token before and after an expansion.
    """
    own, other = trace[step], turned.trace[step]
    expanded = own["rolled_back"]
    logits, tokens = np.asarray(own["tentative_top_logits"], np.float64), own["tentative_top_tokens"]
    # A log-probability is a logit plus what all logits of the pass share.
    shift = own["tentative_logprob"] - logits[tokens.index(own["tentative_token"])]
    wide, wide_text = (own["token"], own["text"]) if expanded else (other.token, other.text)
    rank = tokens.index(wide) if wide in tokens else None
    return {
        "document": "",
        "point": "",
        "step": step,
        "of": 0,
        "expanded": expanded,
        "compact_token": own["tentative_token"],
        "compact_text": other.text if expanded else own["text"],
        "expanded_token": wide,
        "expanded_text": wide_text,
        "rank_before": None if rank is None else rank + 1,
        "logprob_before": None if rank is None else logits[rank] + shift,
        "logprob_after": own["logprob"] if expanded else other.logprob,
        "text": turned.text,
        "n_generated": len(turned.trace),
        "selected": turned.mean_selected_tokens,
        "selected_with_tentative": turned.mean_selected_with_tentative,
        "rollbacks": turned.rollbacks,
    }
