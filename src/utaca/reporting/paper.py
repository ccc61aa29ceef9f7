"""The figures that the paper reports, for the reference columns of the tables; percentages, tokens, seconds, GiB."""

from __future__ import annotations

import math
from typing import NamedTuple

LLAMA, QWEN = "llama31_8b", "qwen2_7b"
NAMES = {LLAMA: "Llama-3.1-8B", QWEN: "Qwen2-7B"}

Point = tuple[str, int, str]  # method, budget (K or K_max), policy

DETECTOR = "utaca"
"""The variant that is the paper's detector: points with another one have no figure of the paper beside them."""


class Detection(NamedTuple):
    """Token-level detection, in %."""

    macc: float
    recall_n: float
    recall_p: float


class Ablation(NamedTuple):
    """A detector with some components: accuracy, and CAS of generation at K_max=64, Sub.16, in %."""

    macc: float
    cas: float


class Generation(NamedTuple):
    """Mean context tokens and CAS in %."""

    mtokens: float
    cas: float


class Tradeoff(NamedTuple):
    """CAS in %, mean context tokens, end-to-end seconds, peak GPU memory in GiB."""

    cas: float
    mtokens: float
    end_to_end: float
    memory: float


# Table "Token-level uncertainty detection performance"; Llama-3.1-8B only.
DETECTION: dict[str, Detection] = {
    "top10_std": Detection(57.43, 35.66, 73.19),
    "logit_margin": Detection(55.54, 48.09, 60.93),
    "evidential_mass": Detection(58.29, 55.87, 60.04),
    "evidential": Detection(70.85, 74.45, 68.25),
    "utaca": Detection(83.43, 89.71, 81.27),
    # Table "Ablation study of two-way versus three-way difficulty metrics".
    "two_way": Detection(82.74, 88.04, 80.60),
}

# Table "Component ablation of the uncertainty detector", by logit margin, embedding, LSTM; Llama-3.1-8B only.
ABLATION: dict[tuple[bool, bool, bool], Ablation] = {
    (True, False, False): Ablation(26.82, math.nan),
    (False, True, False): Ablation(78.95, 69.58),
    (True, False, True): Ablation(53.71, math.nan),
    (False, True, True): Ablation(80.06, 68.58),
    (True, True, False): Ablation(80.19, 69.42),
    (True, True, True): Ablation(83.43, 70.48),
}

# Table "Generation performance on the validation set"; Llama-3.1-8B only.
VALIDATION: dict[str, dict[Point, Generation]] = {
    LLAMA: {
        ("infllm", 2, ""): Generation(32, 91.37),
        ("infllm", 3, ""): Generation(48, 99.83),
        ("utaca", 3, "set.1"): Generation(25, 96.59),
        ("utaca", 3, "sub.1"): Generation(29, 99.08),
    }
}

# Table "Context-management performance on the long-context test set".
TEST: dict[str, dict[Point, Generation]] = {
    LLAMA: {
        ("infllm", 8, ""): Generation(128, 25.81),
        ("infllm", 16, ""): Generation(256, 51.23),
        ("infllm", 32, ""): Generation(512, 72.26),
        ("utaca", 32, "sub.16"): Generation(123, 45.23),
        ("utaca", 48, "sub.16"): Generation(218, 62.17),
        ("utaca", 64, "sub.16"): Generation(344, 70.48),
        ("utaca", 96, "sub.16"): Generation(498, 74.61),
    },
    QWEN: {
        ("infllm", 8, ""): Generation(128, 37.77),
        ("infllm", 16, ""): Generation(256, 44.39),
        ("infllm", 32, ""): Generation(512, 54.72),
        ("utaca", 16, "sub.8"): Generation(119, 37.08),
        ("utaca", 32, "sub.8"): Generation(302, 48.33),
        ("utaca", 48, "sub.8"): Generation(432, 56.64),
    },
}

# Table "Quality-latency-memory trade-off"; Llama-3.1-8B only.
TRADEOFF: dict[str, dict[Point, Tradeoff]] = {
    LLAMA: {
        ("infllm", 8, ""): Tradeoff(25.81, 128, 95.80, 26.42),
        ("infllm", 16, ""): Tradeoff(51.23, 256, 97.46, 26.42),
        ("infllm", 32, ""): Tradeoff(72.26, 512, 99.56, 26.44),
        ("utaca", 32, "sub.16"): Tradeoff(45.23, 123, 98.42, 26.44),
        ("utaca", 48, "sub.16"): Tradeoff(62.17, 218, 99.56, 26.47),
        ("utaca", 64, "sub.16"): Tradeoff(70.48, 344, 100.70, 26.51),
        ("utaca", 96, "sub.16"): Tradeoff(74.61, 498, 102.98, 26.56),
    }
}


class Method(NamedTuple):
    """A context-management method on the long-context test set: context tokens, decoding seconds a token, CAS in %.

    ``excluded`` says that the paper leaves samples out that ran out of memory or gave incoherent output.
    """

    mtokens: float
    seconds: float
    cas: float
    excluded: bool = False


# The other rows of table "Context-management performance on the long-context test set"; Llama-3.1-8B only.
METHODS: dict[str, dict[str, Method]] = {
    LLAMA: {
        "retrieval_attention": Method(2048, 0.021, 15.25, True),
        "llmlingua2": Method(32000, math.nan, 18.08, True),
        "snapkv": Method(1024, 0.210, 23.43, True),
        "tokenselect": Method(1024, math.nan, 39.43),
        "omnikv": Method(8000, math.nan, 40.47),
        "infllm_v2": Method(1024, math.nan, 40.29, True),
        "adakv": Method(2048, math.nan, 48.89),
        "fastkv": Method(4096, 0.212, 51.40),
        "freqkv": Method(2050, 0.253, 56.94),
        "h2o": Method(1024, 0.123, 65.81),
    }
}


class Failure(NamedTuple):
    """A decision turned: quality in %, mean context tokens and rollbacks of its answer before and after."""

    quality: str
    mtokens: str
    rollbacks: str


# Table "Representative false-positive and false-negative failures"; Llama-3.1-8B only.
FAILURES: dict[str, Failure] = {
    "FP-1": Failure("100.0 → 100.0", "379.36 → 367.83", "12 → 10"),
    "FP-2": Failure("100.0 → 100.0", "370.14 → 359.75", "9 → 9"),
    "FN-1": Failure("16.7 → 66.7", "173.47 → 238.00", "1 → 6"),
    "FN-2": Failure("8.3 → 75.0", "316.80 → 385.47", "1 → 9"),
}


def _tasks(block: int, budgets: tuple[int, int, int], h2o: tuple[float, ...], fixed: tuple[float, ...],
           adaptive: tuple[tuple[float, float] | None, ...]) -> dict[Point, Generation]:  # fmt: skip
    """A benchmark's cells: H2O and InfLLM at three budgets (blocks), UT-ACA's tokens and scores at as many K_max."""
    rows = {("h2o", k * block, ""): Generation(k * block, score) for k, score in zip(budgets, h2o, strict=True)}
    rows |= {("infllm", k, ""): Generation(k * block, score) for k, score in zip(budgets, fixed, strict=True)}
    own = zip(budgets, adaptive, strict=True)
    return rows | {("utaca", k, f"sub.{k // 2}"): Generation(*cells) for k, cells in own if cells}


# Table "Results on infinity-Bench, LongBench, and RULER"; Llama-3.1-8B only. It names no policy. The table of RULER's
# calibration repeats two of its three rows of UT-ACA under K_max=8 with Sub.4 and K_max=32 with Sub.16; the first of
# these is not the row where K_max=8 would be looked for, and the row there (48 and 51 tokens, scores 10.09 and 12.60)
# has no point known. Elsewhere, policies are taken to be in the same proportion.
TASKS: dict[str, dict[Point, Generation]] = {
    "longbook_sum_eng": _tasks(128, (8, 16, 32), (11.25, 11.52, 10.59), (27.24, 27.87, 28.58),
                               ((609, 27.46), (1610, 27.64), (3508, 28.43))),
    "longbook_qa_eng": _tasks(128, (8, 16, 32), (1.14, 0.93, 1.27), (16.27, 18.38, 22.09),
                              ((896, 16.58), (1664, 18.72), (3712, 21.32))),
    "narrativeqa": _tasks(16, (4, 8, 16), (5.35, 4.68, 4.44), (14.95, 15.75, 15.57),
                          ((39, 15.01), (59, 16.11), (109, 16.92))),
    "qmsum": _tasks(16, (4, 8, 16), (13.84, 14.25, 14.81), (18.40, 18.62, 19.13),
                    ((24, 17.65), (47, 18.66), (102, 19.18))),
    "QA-16k": _tasks(16, (8, 16, 32), (12.00, 11.00, 10.70), (14.05, 18.75, 21.70),
                     ((105, 14.65), None, (385, 21.65))),
    "QA-8k": _tasks(16, (8, 16, 32), (14.30, 16.60, 21.00), (14.90, 24.30, 26.75),
                    ((108, 14.40), None, (352, 26.85))),
}  # fmt: skip

# Table "Effect of limited downstream calibration on RULER", by policy: tokens and score before and after.
CALIBRATION: dict[str, dict[Point, tuple[Generation, Generation]]] = {
    "QA-16k": {
        ("utaca", 8, "sub.4"): (Generation(105.00, 14.65), Generation(101.77, 19.30)),
        ("utaca", 32, "sub.16"): (Generation(385.00, 21.65), Generation(364.15, 26.10)),
    },
    "QA-8k": {
        ("utaca", 8, "sub.4"): (Generation(108.00, 14.40), Generation(102.68, 23.10)),
        ("utaca", 32, "sub.16"): (Generation(352.00, 26.85), Generation(367.24, 26.90)),
    },
}


def reference_reader(table: dict[str, dict], reader: str) -> str:
    """The paper's reader whose figures stand beside ours: the same one where the table has it, else Llama-3.1-8B."""
    return reader if reader in table else LLAMA
