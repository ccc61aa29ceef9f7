"""Trajectories and answers as tables; what a killed run leaves behind."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from configs import point
from conftest import ROOT
from small import make_reader

from utaca.decoding.loop import generate
from utaca.decoding.policies import parse
from utaca.decoding.triggers import Every, Margin
from utaca.detection.detector import Detector
from utaca.errors import UserError
from utaca.generation import answers as answers_module
from utaca.generation import points as points_module
from utaca.generation import trajectories as trajectories_module
from utaca.generation.answers import Asked, ask
from utaca.generation.points import Decoded, PointDetector, Prepared, decode_points, prepare
from utaca.generation.trajectories import trajectories
from utaca.memory import BlockMemory, prefill
from utaca.memory.saved import SavedDocuments
from utaca.methods import infllm as infllm_module
from utaca.methods import method_of
from utaca.methods.full import FullAttention
from utaca.methods.infllm import InfLLM
from utaca.readers.load import Reader
from utaca.records import SCHEMAS, Origin, read, trajectory_schema, write
from utaca.records.journal import Journal
from utaca.settings import schema
from utaca.settings.schema import OWN, MemorySettings
from utaca.settings.triggers import as_written


def decoded(reader, asked, points, journal, detectors=None, settings=None, **how: Any) -> Decoded:
    """What :func:`decode_points` gives of the test split, by the methods that points have under these settings."""
    methods = {point.label: method_of(point, settings or {}) for point in points}
    prepared = Prepared(reader, points, methods, detectors or {})
    return decode_points(prepared, asked, journal, split="test", **how)


def documents(n: int) -> list[dict]:
    # No sentence twice: blocks that are alike have scores alike, and rounding would choose between them.
    prose = [f"Canal {n} was dug by hand in {1613 + 71 * n} and flooded {3 * n} times. " for n in range(3 + n)]
    fact = {"attribute": "hobby", "value": "Chess"}
    return [
        {"id": f"train-{i:04d}", "person": f"Ann {i}", "facts": [fact], "text": f"Ann {i}. " + "".join(prose[: 3 + i])}
        for i in range(n)
    ]


def asked(reader: Reader, inputs: Sequence[Mapping[str, Any]]) -> list[Asked]:
    """The question about each document."""
    return [ask(reader, document) for document in inputs]


def unsure(seed: int) -> Detector:
    """A detector with random weights, which rejects some tokens of the answers here and takes others."""
    torch.manual_seed(seed)
    detector = Detector(schema.DetectorSettings(), 64).eval()
    detector.thresholds["argmax"] = -0.037
    return detector


@pytest.fixture
def reader() -> Reader:
    # The window holds a question, a character a token.
    reader = make_reader(memory=MemorySettings(n_init=4, n_local=48, block_size=8, prefill_chunk=16, prefill_budget=2))
    reader.settings.max_new_tokens = 9
    return reader


def test_trajectories_are_what_generate_gives(reader, tmp_path) -> None:
    inputs = documents(2)
    recorded = schema.TrajectorySettings(sites=["residual", "attention"], expanded=6)
    table = trajectories(reader, asked(reader, inputs), [1, 3], recorded, Journal(tmp_path, "x"))
    write(tmp_path / "part.parquet", "trajectories", table, schema=trajectory_schema(64, recorded.sites))
    assert read(tmp_path / "part.parquet", "trajectories").equals(table)
    with pytest.raises(UserError, match="has no column embedding_mlp"):
        read(tmp_path / "part.parquet", "trajectories", ["token", "embedding_mlp"])
    results = table.to_pylist()
    for document in inputs:
        memory = prefill(reader, document["text"])
        for budget in (1, 3):
            options = {"max_new_tokens": 9, "expanded": 6, "measured": True}
            expected = generate(memory, ask(reader, document).question, budget=budget, **options).trace
            rows = [r for r in results if (r["document"], r["budget"]) == (document["id"], budget)]
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


def test_a_text_is_read_once_for_all_the_people_in_it(reader, tmp_path, monkeypatch) -> None:
    (text,) = {document["text"] for document in documents(1)}
    other = "Ann 9. " + "The canal of Ann 9 was dug by hand. " * 3
    people = [
        {"id": f"train-{n}", "person": f"Ann {n}", "facts": documents(1)[0]["facts"], "text": text if n < 3 else other}
        for n in range(5)
    ]
    read_texts: list[str] = []

    def counted(of: Reader, document: str, **options: Any) -> BlockMemory:
        read_texts.append(document)
        return prefill(of, document, **options)

    monkeypatch.setattr(trajectories_module, "prefill", counted)
    recorded = schema.TrajectorySettings(sites=["attention"])
    questions = asked(reader, people)
    found = trajectories(reader, questions, [1, 3], recorded, Journal(tmp_path / "together", "x"))
    assert read_texts == [text, other]
    apart = [
        trajectories(reader, [one], [1, 3], recorded, Journal(tmp_path / one.document, "x")).to_pylist()
        for one in questions
    ]
    of_each = [(row["document"], row["budget"], row["token"]) for rows in apart for row in rows]
    assert [(row["document"], row["budget"], row["token"]) for row in found.to_pylist()] == of_each


def test_a_path_is_what_an_expansion_at_regular_steps_accepts(reader, tmp_path) -> None:
    (document,) = documents(1)
    asked_of = asked(reader, [document])
    paths = [
        schema.PathSettings(budget=9, policy="sub.3", every=5),
        schema.PathSettings(budget=6, policy="set.2", every=3),
        schema.PathSettings(budget=7, policy="sub.2"),
    ]
    recorded = schema.TrajectorySettings(expanded=7)
    table = trajectories(reader, asked_of, [1, *paths], recorded, Journal(tmp_path, "x"))
    rows = table.to_pylist()
    assert {row["budget"] for row in rows} == {1, 9, 6, 7}
    memory = prefill(reader, document["text"])
    for one in paths:
        options = {"policy": parse(one.policy), "trigger": Every(one.every), "max_new_tokens": 9}
        expected = generate(memory, asked_of[0].question, budget=one.budget, **options).trace
        own = [row for row in rows if row["budget"] == one.budget]
        assert [row["k"] for row in own] == [token.k for token in expected]
        assert [row["token"] for row in own] == [token.token for token in expected]
        tried = [row["expanded_token"] for row in own]
        assert (None in tried) == (one.budget > 7), "no token is tried under fewer blocks than it had"
    assert len({row["k"] for row in rows if row["budget"] == 9}) == 4
    assert {row["k"] for row in rows if row["budget"] == 1} == {1}


def test_a_killed_run_resumes_with_what_it_had(reader, tmp_path, monkeypatch) -> None:
    texts, read_texts = [document["text"] for document in documents(3)], []
    monkeypatch.setattr("utaca.generation.points.TOGETHER", 2)

    def run(folder: str, identity: str = "x") -> pa.Table:
        journal = Journal(tmp_path / folder, identity)
        return trajectories(reader, asked(reader, documents(3)), [1], schema.TrajectorySettings(), journal)

    def dying(reader, text, **options):
        if len(read_texts) == 2:
            raise KeyboardInterrupt
        read_texts.append(text)
        return prefill(reader, text, **options)

    plain = run("plain")
    monkeypatch.setattr(trajectories_module, "prefill", dying)
    with pytest.raises(KeyboardInterrupt):
        run("killed")
    monkeypatch.setattr(trajectories_module, "prefill", lambda r, t, **o: read_texts.append(t) or prefill(r, t, **o))
    assert run("killed").equals(plain)
    assert read_texts == texts, "only the document in hand is read again"
    run("killed", "another identity")
    assert read_texts == texts * 2, "another identity finds nothing"
    for path in (tmp_path / "killed").rglob("*.parquet"):
        path.write_bytes(b"")
    assert run("killed").equals(plain), "empty files, as a crash of the machine leaves them, are made again"


def test_journaled_answers_of_other_columns_are_decoded_again(reader: Reader, tmp_path: Path, monkeypatch) -> None:
    inputs = asked(reader, documents(2))
    points = [point("infllm", 2)]
    fields = [field for field in points_module._JOURNALED if field.name not in ("base", "trigger")]
    with monkeypatch.context() as older:
        older.setattr(points_module, "_JOURNALED", pa.schema(fields))
        older.setattr(points_module, "_COLUMNS", "of an earlier version")
        decoded(reader, inputs, points, Journal(tmp_path, "x"))
    for together in (False, True):
        found = decoded(reader, inputs, points, Journal(tmp_path, "x"), together=together)
        assert all(table.schema.equals(SCHEMAS["answers"]) for table in found.answers.values())


def test_a_point_expands_by_the_plain_margin(reader: Reader, tmp_path: Path) -> None:
    inputs = asked(reader, documents(2))
    of = point("utaca", 6, "sub.2", "margin.2.5")
    (answers,) = decoded(reader, inputs, [of], Journal(tmp_path, "x")).answers.values()
    for row, one in zip(answers.to_pylist(), inputs, strict=True):
        options = {"budget": 6, "policy": parse("sub.2"), "trigger": Margin(2.5), "max_new_tokens": one.longest}
        expected = generate(prefill(reader, one.text), one.question, prefix=one.prefix, **options)
        assert (row["text"], row["rollbacks"]) == (expected.text, expected.rollbacks)
        assert (row["method"], row["trigger"], row["detector"], row["seed"]) == ("utaca", "margin.2.5", "", None)
    assert 0 < sum(answers["rollbacks"].to_pylist()) < sum(answers["n_generated"].to_pylist())


def test_points_prefill_once_and_count(reader, tmp_path, monkeypatch) -> None:
    points = [
        *(point("infllm", budget) for budget in (2, 5)),
        point("utaca", 6, "sub.2"),
        *(point("utaca", 6, "sub.2", trigger) for trigger in ("agreement", "agreement.3", "never", "every.4")),
        *(point("utaca", 6, "sub.2", seed=seed, seeds=2) for seed in (0, 1)),
    ]
    detectors = {f"utaca-K6-sub2-seed{n}": PointDetector(unsure(n), "ab"[n], "utaca", n) for n in (0, 1)}
    detectors["utaca-K6-sub2"] = detectors["utaca-K6-sub2-seed0"]
    prefills, generated = [], []
    monkeypatch.setattr(infllm_module, "prefill", lambda r, t, **o: prefills.append(t) or prefill(r, t, **o))
    monkeypatch.setattr(answers_module, "generate", lambda *g, **o: generated.append(o) or generate(*g, **o))
    inputs = documents(2)
    results = decoded(reader, asked(reader, inputs), points, Journal(tmp_path, "x"), detectors)
    assert list(results.answers) == [
        "infllm-K2", "infllm-K5", "utaca-K6-sub2", "agreement-K6-sub2", "agreement-K6-sub2-witness3",
        "no_detector-K6-sub2", "no_detector-K6-sub2-every4", "utaca-K6-sub2-seed0", "utaca-K6-sub2-seed1",
    ]  # fmt: skip
    assert len(prefills) == 2
    assert len(generated) == 2 * 8, "what two points share is decoded once"
    for label, answers in results.answers.items():
        traces = results.traces[label]
        assert answers.schema.equals(SCHEMAS["answers"])
        assert traces.schema.equals(SCHEMAS["traces"])
        seed = {"utaca-K6-sub2": 0, "utaca-K6-sub2-seed0": 0, "utaca-K6-sub2-seed1": 1}.get(label)
        triggers_of = {
            "infllm-K2": "",
            "infllm-K5": "",
            "agreement-K6-sub2": "agreement",
            "agreement-K6-sub2-witness3": "agreement.3",
            "no_detector-K6-sub2": "never",
            "no_detector-K6-sub2-every4": "every.4",
        }
        trigger = triggers_of.get(label, "detector")
        name = "utaca" if trigger == "detector" else ""
        for row in answers.to_pylist():
            trace = [t for t in traces.to_pylist() if t["document"] == row["document"]]
            assert {t["point"] for t in trace} == {label}
            assert (row["split"], row["point"]) == ("test", label)
            assert (row["method"], row["base"]) == ("utaca" if trigger else "infllm", "")
            assert (row["trigger"], row["detector"], row["seed"]) == (trigger, name, seed)
            assert row["n_generated"] == len(trace)
            assert row["selected"] == pytest.approx(sum(t["k"] for t in trace) * 8 / len(trace))
            assert row["rollbacks"] == sum(t["rolled_back"] for t in trace)
            assert row["text"] == "".join(t["text"] for t in trace)
            assert row["peak_bytes"] > 0
    monkeypatch.setattr("utaca.generation.peak._STATUS", Path(__file__))  # as gVisor's, without a peak
    again = decoded(reader, asked(reader, inputs), [*points, point("infllm", 1)], Journal(tmp_path, "x"), detectors)
    assert len(prefills) == 4, "a new point prefills again"
    assert again.answers["infllm-K2"].equals(results.answers["infllm-K2"]), "the others are taken from the journal"


@pytest.mark.parametrize(
    ("together", "short", "wanted"),
    [(32, 10**6, [12, 3]), (10, 10**6, [8, 4, 2, 1]), (32, 1, [4, 1] * 3)],
)
def test_answers_decoded_together_are_those_apart(reader, tmp_path, monkeypatch, together, short, wanted):
    groups, shared = [], answers_module.generate_together
    monkeypatch.setattr(answers_module, "generate_together", lambda d: groups.append(len(d)) or shared(d))
    points = [point("infllm", 2), point("full"), point("utaca", 6, "sub.2"), point("utaca", 6, "sub.2", "agreement")]
    points.append(point("infllm", 7))
    inputs = asked(reader, documents(3))
    detectors = {"utaca-K6-sub2": PointDetector(unsure(0), "", "utaca", 0)}
    how: dict[str, Any] = {"detectors": detectors, "settings": {"full": {}}}
    apart = decoded(reader, inputs, points, Journal(tmp_path / "apart", "x"), **how)
    monkeypatch.setattr(points_module, "TOGETHER", together)
    monkeypatch.setattr(points_module, "SHORT", short)
    journal = Journal(tmp_path / "together", "x")
    results = decoded(reader, inputs, points, journal, **how, together=True)
    assert sorted(groups) == sorted(wanted), "points of one reading, of short documents"
    assert list(results.answers) == list(apart.answers)
    rejected = results.traces["utaca-K6-sub2"]["rolled_back"].to_pylist()
    assert 0 < sum(rejected) < len(rejected)
    # A killed run decodes a group again if one of its answers is missing, and gives the same.
    for path in sorted((tmp_path / "together").rglob("*.parquet"))[::4]:
        path.unlink()
    again = decoded(reader, inputs, points, journal, **how, together=True)
    timed = ["prefill_seconds", "decode_seconds", "peak_bytes"]
    for key, answers in results.answers.items():
        assert answers["document"].to_pylist() == [one.document for one in inputs]
        assert answers.drop_columns(timed).equals(apart.answers[key].drop_columns(timed))
        assert results.traces[key]["token"].equals(apart.traces[key]["token"])
        assert again.traces[key].equals(results.traces[key])
        assert answers["peak_bytes"].to_pylist() == [None] * 3
        assert all(math.isnan(seconds) for seconds in answers["decode_seconds"].to_pylist())


@pytest.mark.parametrize("together", [False, True])
def test_a_document_is_read_once_for_each_distinct_budget_of_answers(reader, tmp_path, monkeypatch, together) -> None:
    """Under ``prefill_budget=-1`` answers are those after a reading under K of a fixed budget, K_max of an adaptive."""
    reader.settings.memory.prefill_budget = OWN
    reads: list[int] = []

    def counted(reader: Reader, text: str, budget: int) -> BlockMemory:
        reads.append(budget)
        return prefill(reader, text, budget=budget)

    monkeypatch.setattr(infllm_module, "prefill", counted)
    points = [point("infllm", 2), point("utaca", 6, "sub.2", "never"), point("infllm", 6), point("infllm", 1)]
    inputs = asked(reader, documents(2))
    results = decoded(reader, inputs, points, Journal(tmp_path, "x"), together=together)
    assert sorted(reads) == [1, 1, 2, 2, 6, 6]
    for one in points:
        for number, document in enumerate(inputs):
            memory = reader_under(one.budget, reader, document.text)
            policy = {"policy": parse("sub.2"), "trigger": Every(0)} if one.adaptive else {}
            expected = generate(memory, document.question, budget=one.budget, max_new_tokens=9, **policy)
            assert results.answers[one.label]["text"][number].as_py() == expected.text


def reader_under(budget: int, reader: Reader, text: str) -> BlockMemory:
    """A document as a reader reads it whose setting names the budget."""
    settings = replace(reader.settings, memory=replace(reader.settings.memory, prefill_budget=budget))
    return prefill(Reader(reader.model, reader.tokenizer, settings), text)


def test_trajectories_are_of_documents_read_under_their_own_budget(reader, tmp_path) -> None:
    reader.settings.memory.prefill_budget = OWN
    inputs, recorded = asked(reader, documents(2)), schema.TrajectorySettings()
    saved = SavedDocuments(tmp_path / "saved")
    tables = [
        trajectories(reader, inputs, [1, 6], recorded, Journal(tmp_path / name, "x"), keeping)
        for name, keeping in (("alone", None), ("saved", saved))
    ]
    assert tables[0].equals(tables[1])
    rows = tables[0].to_pylist()
    texts = []
    for one in inputs:
        for budget in (1, 6):
            expected = generate(reader_under(budget, reader, one.text), one.question, budget=budget, max_new_tokens=9)
            tokens = [row["token"] for row in rows if (row["document"], row["budget"]) == (one.document, budget)]
            assert tokens == [token.token for token in expected.trace]
            texts.append(expected.text)
    assert len(set(texts)) > 2, "the budget matters"
    with pytest.raises(UserError, match=r"prefill_budget=-1, a document is read .*; give that budget, for example"):
        prefill(reader, "a document")


def test_what_full_attention_cannot_do_with_a_document_is_a_row(reader, tmp_path) -> None:
    inputs = [
        replace(one, longest=longest) for one, longest in zip(asked(reader, documents(2)), (4, 5000), strict=True)
    ]
    how: dict[str, Any] = {"settings": {"full": {}}, "together": True}
    results = decoded(reader, inputs, [point("full")], Journal(tmp_path, "x"), **how)
    first, second = results.answers["full"]["finish"].to_pylist()
    assert first in ("eos", "length")
    assert "has 1024 positions" in second


def test_questions_about_one_document_share_its_readings(reader, tmp_path, monkeypatch) -> None:
    points, settings = [point("infllm", 2), point("full"), point("infllm", 5)], {"full": {}}
    longer = [
        replace(one, document=f"{one.document}-2", question=one.question * 2) for one in asked(reader, documents(2))
    ]
    questions = [one for pair in zip(asked(reader, documents(2)), longer, strict=True) for one in pair]
    reads, read = [], {method: method.read for method in (InfLLM, FullAttention)}
    for method in read:
        monkeypatch.setattr(
            method, "read", lambda self, *inputs: reads.append(self.name) or read[type(self)](self, *inputs)
        )
    together = decoded(reader, questions, points, Journal(tmp_path / "together", "x"), settings=settings)
    assert sorted(reads) == ["full"] * 2 + ["infllm"] * 2, "a reading each document and way of reading"
    alone = [
        decoded(reader, [one], points, Journal(tmp_path / f"alone-{number}", "x"), settings=settings)
        for number, one in enumerate(questions)
    ]
    for key, answers in together.answers.items():
        assert answers["document"].to_pylist() == [one.document for one in questions]
        assert answers["text"].to_pylist() == [one.answers[key]["text"][0].as_py() for one in alone]


# What answers are decoded with


def test_every_stage_that_decodes_refuses_a_taken_detector_of_other_settings(tiny: Reader, tmp_path: Path) -> None:
    settings = schema.DetectorSettings(embedding=False)
    path = tmp_path / "seed0" / "model.safetensors"
    Detector(settings, 0, Origin("other", "0123")).save(path)
    points = [as_written(point("utaca", 6, "sub.2"))]
    about = (asdict(tiny.settings), points, {}, {"utaca-K6-sub2": ("mine", 0, str(path))})
    taken = {"mine": asdict(settings)}
    found = prepare(*about, taken)
    assert [found.detectors[label].variant for label in found.methods] == ["mine"]
    assert not prepare(*about, {}).detectors["utaca-K6-sub2"].detector.settings.embedding
    taken["mine"]["lstm"] = False
    with pytest.raises(
        UserError, match=r"has lstm=True, but the config has lstm=False; set detectors\.\*\.lstm to True"
    ):
        prepare(*about, taken)
    # No script has a way of its own.
    for script in (ROOT / "workflow" / "scripts").glob("*.py"):
        text = script.read_text(encoding="utf-8")
        assert not re.search(r"utaca\.detection\.detector import (?!load_for\b)", text), script
        assert ("params.triggers" in text) == ("prepare(" in text) == ("decode_points" in text or "replays(" in text)
    rules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    assert rules.count(" triggers=") == len(re.findall(r"\btaken=(lambda wildcards: )?plan\.taken_by\(", rules)) == 4
