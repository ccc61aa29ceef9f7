"""Trajectories and suites as tables; what a killed run leaves behind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from small import make_reader
from utaca.generation.suites import Trigger, decode_suites

from utaca.decoding.loop import generate
from utaca.detection.detector import Detector
from utaca.errors import UserError
from utaca.generation import answers as answers_module
from utaca.generation import suites as suites_module
from utaca.generation import trajectories as trajectories_module
from utaca.generation.answers import Asked, ask
from utaca.generation.replays import Replays
from utaca.generation.trajectories import trajectories
from utaca.memory import prefill
from utaca.methods import infllm as infllm_module
from utaca.methods.full import FullAttention
from utaca.methods.infllm import InfLLM
from utaca.methods.method import Method
from utaca.methods.registry import method_of
from utaca.readers.load import Reader
from utaca.records import SCHEMAS, read, trajectory_schema, write
from utaca.records.journal import Journal, fingerprint
from utaca.settings import schema
from utaca.settings.schema import Memory, Point


class EveryThird:
    """A detector that distrusts every third committed token, whatever it is."""

    settings = schema.Detector()

    def initial_state(self, batch: int) -> int:
        return 0

    def check(self, reader: Reader) -> None:
        """It judges the tokens of any reader."""

    def to(self, device: torch.device) -> EveryThird:
        return self

    def distrusts(self, p: torch.Tensor) -> torch.Tensor:
        return p[..., 0] > p[..., 1]

    def step(self, margin: torch.Tensor, embedding: torch.Tensor, state: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([[0.9, 0.1, 0.0] if state % 3 == 2 else [0.1, 0.9, 0.0]]), state + 1


def methods_of(suites: Mapping[str, Sequence[Point]], settings: Mapping[str, Any] | None = None) -> dict[str, Method]:
    """The method of every point of the suites, by label."""
    return {point.label: method_of(point, settings or {}) for points in suites.values() for point in points}


def documents(n: int) -> list[dict]:
    # No sentence twice: blocks that are alike have scores alike, and rounding would choose between them.
    prose = [f"Canal {n} was dug by hand in {1613 + 71 * n} and flooded {3 * n} times. " for n in range(3 + n)]
    fact = {"attribute": "hobby", "value": "Chess"}
    return [
        {"id": f"train-{i:04d}", "person": f"Ann {i}", "facts": [fact], "text": f"Ann {i}. " + "".join(prose[: 3 + i])}
        for i in range(n)
    ]


def asked(reader: Reader, given: Sequence[Mapping[str, Any]]) -> list[Asked]:
    """The question about each document."""
    return [ask(reader, document) for document in given]


@pytest.fixture
def reader():
    # The window holds a question, a character a token.
    reader = make_reader(memory=Memory(n_init=4, n_local=48, block_size=8, prefill_chunk=16, prefill_budget=2))
    reader.settings.max_new_tokens = 9
    return reader


def test_trajectories_are_what_generate_gives(reader, tmp_path) -> None:
    given = documents(2)
    recorded = schema.Trajectories(sites=["residual", "attention"], expanded=6)
    table = trajectories(reader, asked(reader, given), [1, 3], recorded, Journal(tmp_path, "x"))
    assert table.schema.equals(trajectory_schema(64, recorded.sites))
    found = table.to_pylist()
    for document in given:
        memory = prefill(reader, document["text"])
        for budget in (1, 3):
            options = {"max_new_tokens": 9, "expanded": 6, "measured": True}
            expected = generate(memory, ask(reader, document).question, budget=budget, **options).trace
            rows = [r for r in found if (r["document"], r["budget"]) == (document["id"], budget)]
            assert [r["token"] for r in rows] == [t.token for t in expected]
            assert [r["step"] for r in rows] == list(range(len(expected)))
            for row, token in zip(rows, expected, strict=True):
                # Budgets share passes there, which round otherwise.
                assert row["margin"] == pytest.approx(token.margin, abs=1e-4)
                assert row["top10"][0] - row["top10"][1] == pytest.approx(row["margin"], abs=1e-5)
                for site in recorded.sites:
                    assert torch.allclose(
                        torch.tensor(row[f"embedding_{site}"]), token.embeddings[site], atol=1e-2, rtol=1e-3
                    )
                measured = token.logprob, token.signals["retrieval"]
                assert (row["logprob"], row["retrieval"]) == pytest.approx(measured, abs=1e-4)
                assert row["expanded_token"] == token.probe.token
                assert row["expanded_logprob"] == pytest.approx(token.probe.logprob, abs=1e-4)
                assert row["selected"] == [ids.tolist() for ids in token.selected]
            assert [r["finish"] for r in rows[:-1]] == [""] * (len(rows) - 1)
            assert rows[-1]["finish"] in ("eos", "length")


def test_trajectories_survive_the_round_trip(reader, tmp_path) -> None:
    table = trajectories(reader, asked(reader, documents(1)), [2], schema.Trajectories(), Journal(tmp_path / "j", "x"))
    write(tmp_path / "part.parquet", "trajectories", table, schema=trajectory_schema(64))
    assert read(tmp_path / "part.parquet", "trajectories").equals(table)
    with pytest.raises(UserError, match="has no column embedding_mlp"):
        read(tmp_path / "part.parquet", "trajectories", ["token", "embedding_mlp"])


def test_a_killed_run_resumes_with_what_it_had(reader, tmp_path, monkeypatch) -> None:
    given = documents(3)
    plain = trajectories(reader, asked(reader, given), [1], schema.Trajectories(), Journal(tmp_path / "plain", "x"))
    read_documents = []

    def dying(reader, text, **options):
        if len(read_documents) == 2:
            raise KeyboardInterrupt
        read_documents.append(text)
        return prefill(reader, text, **options)

    monkeypatch.setattr(trajectories_module, "prefill", dying)
    with pytest.raises(KeyboardInterrupt):
        trajectories(reader, asked(reader, given), [1], schema.Trajectories(), Journal(tmp_path / "killed", "x"))
    later = []
    monkeypatch.setattr(trajectories_module, "prefill", lambda r, t, **o: later.append(t) or prefill(r, t, **o))
    resumed = trajectories(reader, asked(reader, given), [1], schema.Trajectories(), Journal(tmp_path / "killed", "x"))
    assert resumed.equals(plain)
    assert later == [given[2]["text"]], "only the document in hand is read again"
    trajectories(
        reader, asked(reader, given), [1], schema.Trajectories(), Journal(tmp_path / "killed", "another identity")
    )
    assert len(later) == 4, "another identity finds nothing"


def test_a_table_made_again_with_the_same_rows_is_the_same_to_a_journal(tmp_path) -> None:
    rows, path = [{"title": "a", "text": "b"}], tmp_path / "corpus.parquet"
    found = []
    for config, given in (("one", rows), ("two", rows), ("two", [*rows, rows[0]])):
        write(path, "corpus", given, config=config)
        found.append((fingerprint("", [path]), path.read_bytes()))
    (first, bytes_), (again, other), (more, _) = found
    assert first == again != more
    assert bytes_ != other


def test_suites_prefill_once_and_count(reader, tmp_path, monkeypatch) -> None:
    torch.manual_seed(0)
    detectors = [Detector(schema.Detector(), 64).eval() for _ in range(2)]
    suites = {
        "test": [
            Point("infllm", 2),
            Point("infllm", 5),
            Point("utaca", 6, "sub.2"),
            Point("agreement", 6, "sub.2"),
            Point("agreement", 6, "sub.2", witness=3),
            Point("no_detector", 6, "sub.2"),
            Point("no_detector", 6, "sub.2", every=4),
        ],
        "seeds": [Point("utaca", 6, "sub.2", seed=seed) for seed in (0, 1)],
    }
    triggers = {"utaca-K6-sub2": Trigger(detectors[0], "a", "utaca", 0)}
    triggers |= {f"utaca-K6-sub2-seed{n}": Trigger(detectors[n], "ab"[n], "utaca", n) for n in (0, 1)}
    prefills, decoded = [], []
    monkeypatch.setattr(infllm_module, "prefill", lambda r, t: prefills.append(t) or prefill(r, t))
    monkeypatch.setattr(answers_module, "generate", lambda *g, **o: decoded.append(o) or generate(*g, **o))
    given = documents(2)
    found = decode_suites(reader, asked(reader, given), suites, methods_of(suites), triggers, Journal(tmp_path, "x"))
    assert [label for _, label in found.answers] == [
        "infllm-K2", "infllm-K5", "utaca-K6-sub2", "agreement-K6-sub2", "agreement-K6-sub2-witness3",
        "no_detector-K6-sub2", "no_detector-K6-sub2-every4", "utaca-K6-sub2-seed0", "utaca-K6-sub2-seed1",
    ]  # fmt: skip
    assert len(prefills) == 2
    assert len(decoded) == 2 * 8, "the point that suites share is decoded once"
    for (suite, label), answers in found.answers.items():
        traces = found.traces[suite, label]
        assert answers.schema.equals(SCHEMAS["answers"])
        assert traces.schema.equals(SCHEMAS["traces"])
        seed = {"utaca-K6-sub2": 0, "utaca-K6-sub2-seed0": 0, "utaca-K6-sub2-seed1": 1}.get(label)
        triggers_of = {"agreement-K6-sub2-witness3": "witness 3", "no_detector-K6-sub2-every4": "every 4"}
        detector = triggers_of.get(label, "" if seed is None else "utaca")
        for row in answers.to_pylist():
            trace = [t for t in traces.to_pylist() if t["document"] == row["document"]]
            assert {t["point"] for t in trace} == {label}
            assert (row["suite"], row["point"]) == (suite, label)
            assert (row["detector"], row["seed"]) == (detector, seed)
            assert row["n_generated"] == len(trace)
            assert row["selected"] == pytest.approx(sum(t["k"] for t in trace) * 8 / len(trace))
            assert row["rollbacks"] == sum(t["rolled_back"] for t in trace)
            assert row["text"] == "".join(t["text"] for t in trace)
            assert row["peak_bytes"] > 0
    more = {"test": [*suites["test"], Point("infllm", 1)]}
    again = decode_suites(reader, asked(reader, given), more, methods_of(more), triggers, Journal(tmp_path, "x"))
    assert len(prefills) == 4, "a new point prefills again"
    key = "test", "infllm-K2"
    assert again.answers[key].equals(found.answers[key]), "the others are taken from the journal"


def test_a_suite_decoded_together_answers_as_apart_and_is_journaled_as_one(reader, tmp_path, monkeypatch) -> None:
    suites = {
        "test": [Point("infllm", 2), Point("full", 0), Point("utaca", 6, "sub.2"), Point("infllm", 6)],
        "more": [Point("agreement", 6, "sub.2"), Point("infllm", 2)],
    }
    triggers, methods = {"utaca-K6-sub2": Trigger(EveryThird(), "", "utaca", 0)}, methods_of(suites, {"full": {}})
    groups, shared = [], answers_module.generate_together
    monkeypatch.setattr(answers_module, "generate_together", lambda d: groups.append(len(d)) or shared(d))
    given, journal = asked(reader, documents(2)), Journal(tmp_path / "together", "x")
    apart = decode_suites(reader, given, suites, methods, triggers, Journal(tmp_path / "apart", "x"))
    assert groups == []
    found = decode_suites(reader, given, suites, methods, triggers, journal, together=True)
    assert groups == [6, 2, 2], "a suite's points of one reading, each once, of both documents"
    again = decode_suites(reader, given, suites, methods, triggers, journal, together=True)
    assert groups == [6, 2, 2]
    assert list(found.answers) == list(apart.answers)
    for key, answers in found.answers.items():
        assert again.answers[key].drop_columns("decode_seconds").equals(answers.drop_columns("decode_seconds"))
        timed = ["prefill_seconds", "decode_seconds", "peak_bytes"]
        assert answers.drop_columns(timed).equals(apart.answers[key].drop_columns(timed))
        assert found.traces[key]["token"].equals(apart.traces[key]["token"])
        assert answers["peak_bytes"].to_pylist() == [None] * 2
        assert all(math.isnan(seconds) for seconds in answers["decode_seconds"].to_pylist())


@pytest.mark.parametrize(
    ("together", "short", "wanted"),
    [(32, 10**6, [6, 3]), (6, 10**6, [4, 2, 2, 1]), (1, 10**6, [2, 1] * 3), (32, 1, [2, 1] * 3)],
)
def test_answers_about_several_short_documents_share_passes(
    reader, tmp_path, monkeypatch, together: int, short: int, wanted: list[int]
) -> None:
    suites = {"test": [Point("infllm", 2), Point("full", 0), Point("infllm", 5)]}
    methods, given = methods_of(suites, {"full": {}}), asked(reader, documents(3))
    apart = decode_suites(reader, given, suites, methods, {}, Journal(tmp_path / "apart", "x"))
    monkeypatch.setattr(suites_module, "TOGETHER", together)
    monkeypatch.setattr(suites_module, "SHORT", short)
    groups, shared = [], answers_module.generate_together
    monkeypatch.setattr(answers_module, "generate_together", lambda d: groups.append(len(d)) or shared(d))
    journal = Journal(tmp_path / "together", "x")
    found = decode_suites(reader, given, suites, methods, {}, journal, together=True)
    assert sorted(groups) == sorted(wanted)
    for key, answers in found.answers.items():
        assert answers["document"].to_pylist() == [one.document for one in given]
        assert answers["text"].equals(apart.answers[key]["text"])
    # A killed run decodes a group anew where one of its answers is missing, and gives the same.
    for path in sorted((tmp_path / "together").rglob("*.parquet"))[::4]:
        path.unlink()
    again = decode_suites(reader, given, suites, methods, {}, journal, together=True)
    for key in found.answers:
        assert again.traces[key].equals(found.traces[key])


def test_what_full_attention_cannot_do_with_a_document_is_a_row(reader, tmp_path) -> None:
    suites = {"test": [Point("full", 0)]}
    given = [replace(one, longest=longest) for one, longest in zip(asked(reader, documents(2)), (4, 5000), strict=True)]
    found = decode_suites(
        reader, given, suites, methods_of(suites, {"full": {}}), {}, Journal(tmp_path, "x"), together=True
    )
    first, second = found.answers["test", "full"]["finish"].to_pylist()
    assert first in ("eos", "length")
    assert "positions" in second


def test_a_replayed_point_is_decoded_by_itself(reader, tmp_path, monkeypatch) -> None:
    suites = {"test": [Point("infllm", 2), Point("utaca", 6, "sub.2"), Point("infllm", 6)]}
    triggers, methods = {"utaca-K6-sub2": Trigger(EveryThird(), "", "utaca", 0)}, methods_of(suites)
    groups, shared = [], answers_module.generate_together
    monkeypatch.setattr(answers_module, "generate_together", lambda d: groups.append(len(d)) or shared(d))
    replays = Replays("utaca-K6-sub2", 1, 0)
    given, journal = asked(reader, documents(1)), Journal(tmp_path, "x")
    found = decode_suites(reader, given, suites, methods, triggers, journal, together=True, replays=replays)
    assert groups == [2]
    assert all(seconds > 0 for seconds in found.answers["test", "utaca-K6-sub2"]["decode_seconds"].to_pylist())
    assert found.replays.num_rows > 0


def test_questions_about_one_document_share_its_readings(reader, tmp_path, monkeypatch) -> None:
    suites = {"test": [Point("infllm", 2), Point("full", 0), Point("infllm", 5)]}
    longer = [
        replace(one, document=f"{one.document}-2", question=one.question * 2) for one in asked(reader, documents(2))
    ]
    questions = [one for pair in zip(asked(reader, documents(2)), longer, strict=True) for one in pair]
    reads, read = [], {method: method.read for method in (InfLLM, FullAttention)}
    for method in read:
        monkeypatch.setattr(
            method, "read", lambda self, *given: reads.append(self.name) or read[type(self)](self, *given)
        )
    together = decode_suites(
        reader, questions, suites, methods_of(suites, {"full": {}}), {}, Journal(tmp_path / "together", "x")
    )
    assert sorted(reads) == ["full"] * 2 + ["infllm"] * 2, "a reading each document and way of reading"
    alone = [
        decode_suites(
            reader, [one], suites, methods_of(suites, {"full": {}}), {}, Journal(tmp_path / f"alone-{number}", "x")
        )
        for number, one in enumerate(questions)
    ]
    for key, answers in together.answers.items():
        assert answers["document"].to_pylist() == [one.document for one in questions]
        assert answers["text"].to_pylist() == [one.answers[key]["text"][0].as_py() for one in alone]


def test_a_suite_decoded_in_pairs_gives_the_same_tokens(reader, tmp_path, monkeypatch) -> None:
    points = [Point("infllm", 2), Point("utaca", 6, "sub.2"), Point("agreement", 6, "sub.2")]
    rows, forward = [], Reader.forward
    monkeypatch.setattr(Reader, "forward", lambda self, *given: (rows.append(len(given[0])), forward(self, *given))[1])
    triggers = {"utaca-K6-sub2": Trigger(EveryThird(), "", "utaca", 0)}
    found = []
    for paired in (False, True):
        rows.clear()
        journal = Journal(tmp_path / str(paired), "x")
        suites = {"test": points}
        given = asked(reader, documents(2)), suites, methods_of(suites), triggers, journal
        found.append(decode_suites(reader, *given, paired=paired))
        assert set(rows) == ({1, 2} if paired else {1})
    for point in points:
        key = "test", point.label
        columns = [
            "document",
            "point",
            "text",
            "finish",
            "selected",
            "attended",
            "rollbacks",
            "selected_with_tentative",
        ]
        one, other = found
        assert one.answers[key].select(columns).equals(other.answers[key].select(columns))
        measured = ["margin", "logprob", "tentative_margin", "tentative_logprob"]
        logits = ["top_logits", "tentative_top_logits", "scores"]
        assert one.traces[key].drop_columns(measured + logits).equals(other.traces[key].drop_columns(measured + logits))
        for name in measured:
            assert one.traces[key][name].to_pylist() == pytest.approx(other.traces[key][name].to_pylist(), abs=1e-4)
    assert sum(found[0].answers["test", "utaca-K6-sub2"]["rollbacks"].to_pylist()) > 0
