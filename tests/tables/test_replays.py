"""Replays of single decisions, and their tables, against plain restatements."""

from __future__ import annotations

import numpy as np
import pytest
from configs import decoding, point
from small import make_reader
from test_generation_tables import config  # noqa: F401
from test_trajectories import EveryThird, asked, decoded, documents

from utaca.decoding.loop import generate
from utaca.decoding.policies import Sub
from utaca.errors import UserError
from utaca.generation.answers import ask
from utaca.generation.points import Trigger
from utaca.generation.replays import Replays, decisions
from utaca.memory import prefill
from utaca.methods import infllm as infllm_module
from utaca.records import SCHEMAS, write
from utaca.records.journal import Journal
from utaca.reporting.registry import Files
from utaca.reporting.table import Table
from utaca.reporting.tables import replays
from utaca.settings.schema import Memory

POINT = point("utaca", 6, "sub.2")
POINTS = [point("infllm", 2), POINT]
TRIGGERS = {POINT.label: Trigger(EveryThird(), "", "utaca", 0)}


@pytest.fixture
def reader():
    reader = make_reader(memory=Memory(n_init=4, n_local=48, block_size=8, prefill_chunk=16, prefill_budget=2))
    reader.settings.max_new_tokens = 9
    return reader


def test_every_decision_is_replayed_from_one_prefill(reader, tmp_path, monkeypatch) -> None:
    given, prefills = documents(2), []
    monkeypatch.setattr(infllm_module, "prefill", lambda r, t: prefills.append(t) or prefill(r, t))
    journal, questions = Journal(tmp_path, "x"), asked(reader, given)
    found = decoded(reader, questions, POINTS, journal, TRIGGERS, replays=Replays(POINT.label, 99, 0))
    assert len(prefills) == 2
    assert found.replays.schema.equals(SCHEMAS["replays"])
    rows = found.replays.to_pylist()
    for document in given:
        memory, one = prefill(reader, document["text"]), ask(reader, document)
        options = {"budget": 6, "policy": Sub(2), "detector": EveryThird(), "max_new_tokens": one.longest}
        plain = generate(memory, one.question, **options)
        # A decision is made wherever the first pass had less than K_max, which leaves out the first step.
        decided = [n for n, t in enumerate(plain.trace) if (t.tentative or t).k < 6]
        own = [row for row in rows if row["document"] == document["id"]]
        assert [row["step"] for row in own] == decided
        for row in own:
            step, token = row["step"], plain.trace[row["step"]]
            assert row["expanded"] == token.rolled_back
            assert row["of"] == sum(plain.trace[n].rolled_back == token.rolled_back for n in decided)
            turned = generate(memory, one.question, interventions={step: not token.rolled_back}, **options)
            assert (row["text"], row["rollbacks"], row["n_generated"]) == (
                turned.text, turned.rollbacks, len(turned.trace)
            )  # fmt: skip
            assert row["selected"] == pytest.approx(turned.mean_selected_tokens)
            wide = token if token.rolled_back else turned.trace[step]
            compact = token.tentative if token.rolled_back else token
            assert (row["compact_token"], row["expanded_token"]) == (compact.token, wide.token)
            assert row["logprob_after"] == pytest.approx(wide.logprob)
            rank = compact.top_tokens.index(wide.token) + 1 if wide.token in compact.top_tokens else None
            assert row["rank_before"] == rank
            if rank == 1:
                assert row["logprob_before"] == pytest.approx(compact.logprob, abs=1e-5)
    assert {row["expanded"] for row in rows} == {True, False}
    fewer = decoded(reader, questions, POINTS, journal, TRIGGERS, replays=Replays(POINT.label, 1, 0)).replays
    assert len(prefills) == 2, "fewer replays are taken from the journal"
    assert all(row in rows for row in fewer.to_pylist())
    assert len(fewer) == 4
    again = decoded(reader, questions, POINTS, journal, TRIGGERS, replays=Replays(POINT.label, 1, 0)).replays
    assert again.equals(fewer)


def test_decisions_are_where_the_budget_was_below_its_maximum() -> None:
    rolled = [False, False, True, False, False, False]
    # Budgets 6, 4, 2 (rolled back to 6), 6, 4, 2.
    assert decisions([{"rolled_back": r} for r in rolled], POINT) == [1, 2, 4, 5]
    assert decisions([{"rolled_back": False}] * 3, point("utaca", 6, "set.6")) == []


def test_drawn_decisions_are_of_each_kind_and_by_chance() -> None:
    trace = [{"rolled_back": n % 3 == 2} for n in range(60)]
    drawn = {seed: Replays(POINT.label, 5, seed).drawn(trace, point("utaca", 6, "set.1"), "d") for seed in range(3)}
    for found in drawn.values():
        assert sum(trace[step]["rolled_back"] for step, _ in found) == 5
        assert len({step for step, _ in found}) == 10
        assert found == sorted(found)
    assert drawn[0] != drawn[1]
    fewer = Replays(POINT.label, 2, 0).drawn(trace, point("utaca", 6, "set.1"), "d")
    assert set(fewer) < set(drawn[0]), "what is journaled serves a larger replay"
    assert {of for step, of in drawn[0] if trace[step]["rolled_back"]} == {20}


# The tables


def score(document: str, point: str, attribute: str, cas: float | None, said: str = "x") -> dict:
    return {
        "document": document, "suite": "test", "point": point, "attribute": attribute, "prediction": said,
        "reference": "y", "cas": cas, "string_match": 0.5, "reason": "", "failure": "shape" if cas is None else None,
    }  # fmt: skip


def decision(
    document: str, step: int, of: int, expanded: bool, tokens: tuple[int, int], text: str, selected: float
) -> dict:
    return {
        "document": document, "point": "p", "step": step, "of": of, "expanded": expanded, "compact_token": tokens[0],
        "compact_text": f" c{tokens[0]}", "expanded_token": tokens[1], "expanded_text": f" e{tokens[1]}",
        "rank_before": 3, "logprob_before": -5.0, "logprob_after": -1.0, "text": text, "n_generated": 9,
        "selected": selected, "selected_with_tentative": 2 * selected, "rollbacks": 1,
    }  # fmt: skip


REPLAYS = [
    decision("a", 3, 4, True, (1, 1), "same", 80.0),  # saved 20 for nothing
    decision("a", 5, 4, True, (1, 2), "worse", 90.0),  # without it an attribute is lost
    decision("a", 7, 1, False, (3, 4), "better", 130.0),  # missed
    decision("b", 2, 1, True, (5, 5), "same", 190.0),
    decision("b", 4, 10, False, (6, 6), "same", 220.0),
    decision("b", 6, 10, False, (6, 7), "fails", 220.0),
]


@pytest.fixture
def files(tmp_path, config) -> Files:  # noqa: F811
    vars(config).update(decoding(test=[point("utaca", 64, "sub.16", name="p")]))
    empty = {"suite": "test", "point": "p", "method": "utaca", "budget": 64, "policy": "sub.16", "rollbacks": 2}
    answers = [
        empty | {"document": "a", "text": "same", "selected": 100.0, "selected_with_tentative": 150.0},
        empty | {"document": "b", "text": "same", "selected": 200.0, "selected_with_tentative": 300.0},
        empty | {"document": "c", "text": "same", "selected": 300.0, "selected_with_tentative": 300.0},
    ]
    own = [score(d, "p", name, cas) for d, scores in (("a", (1.0, 0.0)), ("b", (1.0, 1.0)), ("c", (0.0, 0.0)))
           for name, cas in zip(("major", "city"), scores, strict=True)]  # fmt: skip
    turned = [
        score("a", "5", "major", 0.0, "lost"), score("a", "5", "city", 0.0),
        score("a", "7", "major", 1.0), score("a", "7", "city", 1.0),
        score("b", "6", "major", None), score("b", "6", "city", 1.0),
    ]  # fmt: skip
    paths = {name: tmp_path / f"{name}.parquet" for name in ("answers", "scores", "replays", "replay_scores")}
    # The files hold other points of the split too.
    answers += [answer | {"point": "infllm-K1", "method": "infllm", "text": "short"} for answer in answers]
    own += [score(d, "infllm-K1", name, 0.0, "short") for d in "abc" for name in ("major", "city")]
    write(paths["answers"], "answers", answers)
    write(paths["scores"], "scores", own, made_from=[paths["answers"]])
    write(paths["replays"], "replays", REPLAYS)
    write(paths["replay_scores"], "scores", turned, made_from=[paths["replays"], paths["answers"]])
    named = ("test_answers", "test_scores", "replays", "replay_scores")
    return {name: [str(path)] for name, path in zip(named, paths.values(), strict=True)}


def test_replay_table_weighs_decisions_by_what_they_stand_for(files, config) -> None:  # noqa: F811
    table = replays.replay(files, config)
    frame = table.set_index(["decision", "class"])
    expanded, kept = frame.loc["expanded"], frame.loc["kept"]
    # Two of four expansions of a stand for two each, that of b for itself.
    assert expanded.loc["all", "n_replayed"] == 3
    assert expanded.loc["all", "cas_change"] == pytest.approx(100 * (2 * 0 + 2 * 0.5 + 0) / 5)
    assert expanded.loc["all", "mtokens_change"] == pytest.approx((2 * 20 + 2 * 10 + 10) / 5)
    assert expanded.loc["token the same", "mtokens_change"] == pytest.approx((2 * 20 + 10) / 3)
    assert expanded.loc["helpful", "share_pct"] == pytest.approx(100 * 2 / 5)
    assert expanded.loc["harmful", "n_replayed"] == 0
    assert np.isnan(expanded.loc["harmful", "cas_change"])
    # The replay whose judgement failed is left out, and says so; the one beside it stands for all ten.
    assert kept.loc["all", "n_replayed"] == 2
    assert "1 replays with failed judgements" in Table.of("replay", table, config).caption
    assert kept.loc["harmful", "cas_change"] == pytest.approx(-50)
    assert kept.loc["all", "cas_change"] == pytest.approx(100 * (-0.5) / 11)
    assert kept.loc["all", "rollbacks_change"] == pytest.approx(1)
    assert expanded.loc["all", "all_passes_change"] == pytest.approx((2 * -10 + 2 * -30 + -80) / 5)


def test_the_best_single_decision_of_each_document(files, config) -> None:  # noqa: F811
    frame = replays.bound(files, config).set_index("decisions")
    own, best, least = (row for _, row in frame.iterrows())
    # a has 50 %, b 100 %, c nothing; turned at step 7, a has all. No replay of c, and that of b that failed is none.
    assert own["cas_pct"] == pytest.approx(50)
    assert own["mtokens"] == pytest.approx(200)
    assert best["cas_pct"] == pytest.approx(100 * 2 / 3)
    assert best["mtokens"] == pytest.approx((130 + 190 + 300) / 3)
    assert least["cas_pct"] == pytest.approx(50)
    assert least["mtokens"] == pytest.approx((80 + 190 + 300) / 3)
    assert (own["n_changed"], best["n_changed"], least["n_changed"]) == (0, 2, 2)
    assert best["cas_gain"] == pytest.approx(100 / 6)


def test_failures_are_found(files, config) -> None:  # noqa: F811
    frame = replays.failures(files, config).set_index("case")
    assert list(frame.index) == ["FP-1", "FP-2", "FN-1", "FN-2"]
    assert (frame.loc["FP-1", "document"], frame.loc["FP-1", "step"]) == ("a", 3)
    assert (frame.loc["FP-1", "mtokens_before"], frame.loc["FP-1", "mtokens_after"]) == (100, 80)
    assert frame.loc["FP-2", "document"] == "b"
    assert (frame.loc["FN-1", "quality_pct_before"], frame.loc["FN-1", "quality_pct_after"]) == (50, 100)
    assert not frame.loc["FN-2", "found"]
    header, cells = Table.of("failures", replays.failures(files, config), config).cells()
    assert cells[0][header.index("Quality %")] == "50.0 → 50.0"
    assert cells[3][2:4] == ["–", "–"], "none was found"
    assert cells[2][header.index("paper quality %")] == "16.7 → 66.7"


def test_cases_are_expansions_that_changed_a_score(files, config, monkeypatch) -> None:  # noqa: F811
    monkeypatch.setattr(replays, "_smallest", lambda _: "infllm-K1")
    frame = replays.cases(files, config)
    table = Table.of("cases", frame, config)
    assert len(frame) == 1
    row = frame.iloc[0]
    assert (row["document"], row["attribute"], row["rejected"], row["replacement"]) == ("a", "major", " c1", " e2")
    assert (row["adaptive_cas"], row["suppressed_cas"], row["compact_cas"]) == (1, 0, 0)
    assert table.cells()[1][0][-2:] == ["lost (0.00, 0.50)", "short (0.00, 0.50)"]
    assert "1 of the 1 replayed expansions" in table.caption
    monkeypatch.setattr(replays, "_smallest", lambda _: "")
    assert Table.of("cases", replays.cases(files, config), config).cells()[1][0][-1] == "– (–, –)"


def test_nothing_replayed_leaves_empty_tables(files, config, tmp_path) -> None:  # noqa: F811
    none, scores = tmp_path / "none.parquet", tmp_path / "none-scores.parquet"
    write(none, "replays", [])
    write(scores, "scores", [], made_from=[none, *files["test_answers"]])
    empty = files | {"replays": [str(none)], "replay_scores": [str(scores)]}
    assert (replays.replay(empty, config)["n_replayed"] == 0).all()
    assert not replays.failures(empty, config)["found"].any()
    assert Table.of("cases", replays.cases(empty, config), config).cells()[1] == []


def test_replays_of_other_answers_are_refused(files, config, tmp_path) -> None:  # noqa: F811
    other = tmp_path / "other.parquet"
    write(other, "answers", [{"document": "a", "text": "same"}], config="other")
    with pytest.raises(UserError, match="must not be mixed"):
        replays.replay(files | {"test_answers": [str(other)]}, config)
