"""Labels of the tokens that detectors judged along their own answers, and the table made of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_reporting import N_DOCUMENTS, config, detections

from utaca.detection.training.metrics import calibration_error, detection_metrics
from utaca.errors import UserError
from utaca.judging.roles import Role
from utaca.judging.traces import label_traces
from utaca.records import write
from utaca.records.trace_labels import KIND, TRACE_LABELS
from utaca.reporting import detection, statistics
from utaca.reporting.detection_own import detection_own
from utaca.settings import schema

__all__ = ["config", "detections"]

REFERENCE = schema.Endpoint(name="reference", kind="reference", model="utaca-reference")
END, PART = "<end>", "<part>"
OPENING = ["The", " birth", " date", " of", " Ada", " Lopez", " is"]


class Tokens:
    """A tokenizer of whole pieces, whose ids are numbered as they come."""

    def __init__(self) -> None:
        self.pieces: list[str] = []

    def id(self, piece: str) -> int:
        if piece not in self.pieces:
            self.pieces.append(piece)
        return self.pieces.index(piece)

    def decode(self, ids) -> str:
        return "".join({END: "", PART: "�"}.get(self.pieces[i], self.pieces[i]) for i in ids)


def labelled(pieces, rejected, value, tmp_path, *, k_max=4, used=None):
    """Labels of an answer that is given piece by piece; ``rejected`` has what was tried first, by step."""
    tokens = Tokens()
    trace = [
        {
            "document": "d0", "point": "p", "step": step, "token": tokens.id(piece),
            "text": "" if piece in (END, PART) else piece, "rolled_back": step in rejected,
            "tentative_token": tokens.id(rejected.get(step, piece)), "tentative_k": 4 if step == 0 else 2,
            "p_hallucinated": 0.2, "p_correct": 0.5, "p_unknown": 0.3,
        }
        for step, piece in enumerate(pieces)
    ]  # fmt: skip
    answer = {
        "document": "d0", "suite": "test", "point": "p", "budget": k_max, "policy": "sub.2", "detector": "utaca",
        "seed": 0, "finish": "eos" if pieces[-1] == END else "length", "n_generated": len(pieces),
    }  # fmt: skip
    facts = [{"attribute": "birth date", "value": value}]
    documents = [{"id": "d0", "person": "Ada Lopez", "facts": facts}]
    labeller = Role(REFERENCE, tmp_path / "answers.sqlite", [] if used is None else used)
    table = label_traces([answer], trace, documents, tokens.decode, labeller)
    assert table.schema.equals(TRACE_LABELS)
    return {row["step"]: row for row in table.to_pylist()}


def test_accepted_tokens_have_their_label_in_the_answer(tmp_path):
    found = labelled([*OPENING, " 3", " May", " 1974", ".", END], {8: " May"}, "3 May 1971", tmp_path)
    assert sorted(found) == list(range(1, 12)), "the first token was tried under K_max and is not judged"
    assert [found[step]["label"] for step in sorted(found)] == [1] * 8 + [0, 1, 1]
    assert found[8]["uncertain"], "what was rolled back and came again was judged all the same"
    assert not found[8]["replaced"]
    assert {found[step]["source"] for step in (1, 6, 10, 11)} == {"template"}
    assert {found[step]["source"] for step in (7, 8, 9)} == {"endpoint"}
    everything = labelled([*OPENING, " 3", END], {}, "3 May 1971", tmp_path, k_max=2)
    assert everything == {}, "nothing is below K_max"


@pytest.mark.parametrize(
    ("step", "rejected", "label", "text"),
    [
        (9, " 1971", 0, " 1971"),
        (9, " 19", 1, " 19"),
        (9, " 18", 0, " 18"),
        (9, " 2", 0, " 2"),
        (7, " unknown", 2, " unknown"),
        (7, " May", 1, " May"),
        (7, " (", 1, " ("),
        (1, " death", 0, " death"),
        (5, " Gomez", 0, " Gomez"),
        (8, ".", 1, "."),
        (9, END, 0, ""),
        (9, PART, None, ""),
    ],
)
def test_a_replaced_token_is_labelled_as_the_end_of_the_answer(step, rejected, label, text, tmp_path):
    # The answer's own value is wrong, which tells nothing of the rejected token.
    pieces = [*OPENING, " 3", " May", " 1999", ".", END]
    row = labelled(pieces, {step: rejected}, "3 May 1974", tmp_path)[step]
    assert (row["label"], row["text"], row["replaced"], row["uncertain"]) == (label, text, True, True)
    assert row["k"] == 2
    assert (row["source"] == "failed") == (label is None)


def test_what_is_asked_twice_is_counted_once(tmp_path):
    used: list[dict] = []
    labelled(
        [*OPENING, " 3", " May", " 1999", ".", END], {7: " 4", 9: " 1974", 11: "!"}, "3 May 1974", tmp_path, used=used
    )
    requests = [item["answers"][0]["request"] for item in used]
    # The answer's value; the answers that end in " 4" and " 1974"; the last one has the value of the first.
    assert len(requests) == len(set(requests))
    assert 3 <= len(requests) <= 4


def test_traces_must_belong_to_their_answers(tmp_path):
    answer = {"document": "d0", "point": "p", "n_generated": 1}
    with pytest.raises(UserError, match="has 0 tokens, its answer 1"):
        label_traces([answer], [], [], str, Role(REFERENCE, "unused.sqlite"))


def tokens(rng, n_documents: int, suite: str, seed: int, budget: int = 64) -> list[dict]:
    rows = []
    for d in range(n_documents):
        for step in range(1, int(rng.integers(4, 9))):
            p = rng.dirichlet((1, 2, 1)).astype(np.float32)
            label = None if (d, step) == (0, 1) else int(rng.integers(0, 3))
            uncertain = bool(max(p[0], p[2]) > p[1])
            rows.append(
                {
                    "document": f"d{d}", "suite": suite, "point": "p", "budget": budget, "policy": "sub.16",
                    "detector": "utaca", "seed": seed, "step": step, "token": 1, "text": "", "k": 1,
                    "uncertain": uncertain, "replaced": uncertain and step % 2 == 0, "label": label,
                    "source": "endpoint" if step % 3 else "template",
                    "reason": "", "p_hallucinated": p[0], "p_correct": p[1], "p_unknown": p[2],
                }
            )  # fmt: skip
    return rows


@pytest.fixture
def judged(tmp_path, config):
    """Validation, a test suite of two points, and seeds 0 and 1 of the first of these."""
    rng = np.random.default_rng(5)
    first = tokens(rng, N_DOCUMENTS, "test", 0)
    other = tokens(rng, N_DOCUMENTS, "test", 0, budget=32)
    suites = {
        "validation": tokens(rng, 3, "validation", 0, budget=3),
        "test": [*first, *other],
        "seeds": [*({**row, "suite": "seeds"} for row in first), *tokens(rng, N_DOCUMENTS, "seeds", 1)],
    }
    config.suites = {
        name: schema.Suite(split="validation" if name == "validation" else "test", table=table)
        for name, table in (("validation", "generation"), ("test", "generation"), ("seeds", "seeds"))
    }
    config.scale.test.budgets = [1]
    for name, rows in suites.items():
        write(tmp_path / f"{name}.parquet", KIND, rows, schema=TRACE_LABELS)
    return [tmp_path / f"{name}.parquet" for name in suites]


def test_the_table_by_definition(judged, detections, config):
    fixed = detection.load(detections)
    table = detection_own(judged, fixed, config)
    frame = table.frame.set_index("traces")
    assert list(frame.index) == [
        "own, K_max=3, Sub.16", "fixed, K=1", "own, K_max=64, Sub.16", "fixed, K=1", "own, K_max=32, Sub.16"
    ]  # fmt: skip
    assert list(frame["seeds"]) == [1, 2, 2, 1, 1]
    raw = pd.concat([pd.read_parquet(path) for path in judged[1:]])
    counts = statistics.resamples(N_DOCUMENTS, config.scale.bootstrap, config.seed, "detection_own:test")

    def measured(own, weights=None):
        if weights is not None:
            own = pd.concat([own[own["document"] == f"d{d}"] for d, n in enumerate(weights) for _ in range(int(n))])
        label = own["label"].fillna(-1).to_numpy(int)
        p = own[["p_hallucinated", "p_correct", "p_unknown"]].to_numpy(np.float64)
        score = np.maximum(p[:, 0], p[:, 2]) / p[:, 1]
        return detection_metrics(own["uncertain"].to_numpy(), label, score) | {
            "ece": calibration_error(p[:, 0] + p[:, 2], label)
        }

    seeds = [raw[(raw["suite"] == "seeds") & (raw["seed"] == seed)] for seed in (0, 1)]
    row = frame.loc["own, K_max=64, Sub.16"]
    for metric in ("macc", "recall_n", "recall_p", "balanced_accuracy", "f1_n", "share_uncertain"):
        assert row[f"{metric}_pct"] == pytest.approx(100 * np.mean([measured(own)[metric] for own in seeds]))
    for metric in ("auroc", "auprc", "ece"):
        assert row[metric] == pytest.approx(np.mean([measured(own)[metric] for own in seeds]))
    assert row["macc_pct_sd"] > 0
    assert row["n_tokens"] == sum(own["label"].notna().sum() for own in seeds)
    assert row["n_failed_labels"] == 2
    assert row["n_replaced"] == sum(own["replaced"].sum() for own in seeds)

    own, row = raw[raw["budget"] == 32], frame.loc["own, K_max=32, Sub.16"]
    drawn = [measured(own, weights)["balanced_accuracy"] for weights in counts]
    limits = 100 * np.nanquantile(drawn, [0.025, 0.975])
    assert (row["balanced_accuracy_pct_low"], row["balanced_accuracy_pct_high"]) == pytest.approx(tuple(limits))
    known = pd.read_parquet(detections)
    known = known[(known["detector"] == "utaca") & (known["seed"] == 0)]

    def of_fixed(weights):
        drawn = pd.concat([known[known["document"] == f"d{d}"] for d, n in enumerate(weights) for _ in range(int(n))])
        return detection_metrics(drawn["uncertain"].to_numpy(), drawn["label"].fillna(-1).to_numpy(int))

    differences = [d - of_fixed(weights)["balanced_accuracy"] for d, weights in zip(drawn, counts, strict=True)]
    limits = 100 * np.nanquantile(differences, [0.025, 0.975])
    assert row["balanced_accuracy_pct_difference"] == pytest.approx(
        100 * (measured(own)["balanced_accuracy"] - of_fixed(np.ones(N_DOCUMENTS))["balanced_accuracy"])
    )
    low, high = (row[f"balanced_accuracy_pct_difference_{end}"] for end in ("low", "high"))
    assert (low, high) == pytest.approx(tuple(limits))
    assert np.isnan(frame.loc["own, K_max=3, Sub.16", "auroc_difference"]), "validation has no fixed traces beside it"
    header, rows = table.cells()
    assert rows[1][header.index("AUROC")].count("[") == 1
    assert "[" in rows[4][header.index("AUROC, own minus fixed")]


def test_fixed_rows_are_those_of_the_table_of_detection(judged, detections, config):
    fixed = detection.load(detections)
    seeds = detection_own([judged[2]], replace(fixed, runs={"utaca": fixed.runs["utaca"][:2]}), config).frame.iloc[0]
    whole = detection.detection(replace(fixed, runs={"utaca": fixed.runs["utaca"][:2]}), config).frame
    whole = whole.set_index("detector").loc["UT-ACA"]
    for column in ("macc_pct", "macc_pct_sd", "auroc", "auroc_sd", "auprc", "ece", "share_uncertain_pct"):
        assert seeds[column] == pytest.approx(whole[column]), column


def test_other_documents_are_noticed(judged, detections, config, tmp_path):
    rows = tokens(np.random.default_rng(1), N_DOCUMENTS + 1, "test", 0)
    write(tmp_path / "other.parquet", KIND, rows, schema=TRACE_LABELS)
    with pytest.raises(UserError, match=f"document d{N_DOCUMENTS} has answers"):
        detection_own([tmp_path / "other.parquet"], detection.load(detections), config)
    write(tmp_path / "none.parquet", KIND, [], schema=TRACE_LABELS)
    with pytest.raises(UserError, match="holds no judged token"):
        detection_own([tmp_path / "none.parquet"], detection.load(detections), config)
