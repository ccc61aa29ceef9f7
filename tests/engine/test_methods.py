"""The interface of the methods and full attention; the other methods have files of their own."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from brute_methods import steps
from small import SIZES, full_attention, in_float64, make_reader, some_tokens

from utaca.decoding.loop import generate_together
from utaca.decoding.options import Decoding
from utaca.decoding.policies import Set
from utaca.decoding.triggers import Every
from utaca.errors import UserError
from utaca.generation.answers import Answers, _name_loops, loops, side_by_side_room
from utaca.methods import build, method_of
from utaca.settings.schema import SITES, PointSettings
from utaca.trace import Generation

QUESTION = "what is it"

EVERYTHING = {
    "full": {},
    "window": {"budget": 1000},
    "snapkv": {"budget": 1000},
    "adakv": {"budget": 1000},
    "retrieval_attention": {"initial": 2, "recent": 3, "budget": 1000},
    "omnikv": {"budget": 1000, "depth": 3, "filters": (0, 1), "wait": 0},
    "infllm_v2": {"budget": 1024, "window": 64, "dense_below": 0},
    "h2o": {"budget": 1000, "chunk": 24},
    "tokenselect": {"budget": 900, "n_init": 4, "n_local": 40, "chunk": 30},
    "freqkv": {"budget": 500},
    "fastkv": {"budget": 1000, "tsp_length": 1000},
    "llmlingua2": {"rate": 1.0},
}
"""Settings under which a method leaves out nothing of a short document."""


@pytest.mark.parametrize("kind", list(SIZES))
@pytest.mark.parametrize("name", list(EVERYTHING))
def test_a_budget_of_everything_equals_full_attention(name: str, kind: str) -> None:
    reader, tokens = make_reader(kind), some_tokens(190)
    in_float64(reader, rotary=False)
    found, attended = steps(build(name, EVERYTHING[name]), reader, tokens[:160], tokens[160:170], tokens[170:])
    # Logits, and so their differences, are float32.
    assert (found - full_attention(reader, tokens)[169:]).abs().max() < (1e-4 if kind == "llama-yarn" else 2e-6)
    assert attended == list(range(170, 191))


def test_documents_beyond_the_trained_length_are_cut_in_the_middle() -> None:
    reader, document = make_reader(), some_tokens(1100)
    prompt = len(reader.encode_question(QUESTION))
    answers = Answers(reader, document)
    answer = answers.answer(build("full", {}), QUESTION, 5)
    longest = 1024 - prompt - 5
    assert (answer.n_context, answer.dropped) == (longest, 1100 - longest)
    kept = build("full", {}).read(reader, document, prompt + 5).tokens
    assert kept.tolist() == document[: longest // 2].tolist() + document[longest // 2 - longest :].tolist()
    streamed = answers.answer(build("window", {"budget": 50}), QUESTION, 5)
    assert (streamed.n_context, streamed.dropped) == (1100, 0)


def test_closed_book_reads_the_question_alone() -> None:
    reader = make_reader()
    answers = Answers(reader, some_tokens(150))
    whole = answers.answer(build("full", {}), QUESTION, 12)
    answer, opening = answers.answer(build("closed_book", {}), QUESTION, 12), reader.encode_document("")
    alone = Answers(reader, opening).answer(build("full", {}), QUESTION, 12)
    assert answer.generation.text == alone.generation.text
    assert (answer.n_context, answer.dropped) == (len(opening), 150 - len(opening))
    assert whole.n_context == 150, "their readings are not shared"
    cut = Answers(reader, some_tokens(reader.positions + 9)).answer(build("closed_book", {}), QUESTION, 12)
    assert (cut.n_context, cut.dropped) == (len(opening), reader.positions + 9 - len(opening))


def test_top_p_retrieves_less_where_the_scores_are_clear_and_infllm_shares_its_reading() -> None:
    answers = Answers(make_reader(), some_tokens(300))
    found = {}
    for name, settings in {
        "infllm": {"budget": 12},
        "one block": {"budget": 12, "policy": "top_p.0.000001"},
        "some": {"budget": 12, "policy": "top_p.0.3"},
        "nearly all": {"budget": 12, "policy": "top_p.0.999999"},
    }.items():
        method = build("infllm" if name == "infllm" else "top_p", settings)
        found[name] = answers.answer(method, QUESTION, 12).generation
    assert found["nearly all"].mean_selected_tokens <= found["infllm"].mean_selected_tokens == 12 * 8
    assert found["one block"].mean_selected_tokens == 8
    some = found["some"]
    assert 8 < some.mean_selected_tokens < 12 * 8
    counts = [[len(layer) for layer in token.blocks] for token in some.trace]
    assert len(set(map(tuple, counts))) > 1, "The number differs from token to token."
    assert some.mean_selected_tokens == pytest.approx(8 * np.mean(counts))
    assert [len(layer) for layer in some.trace[0].block_scores] == counts[0]
    drafted = answers.answer(
        build("top_p", {"budget": 12, "policy": "top_p.0.3", "drafts": 4}), QUESTION, 12
    ).generation
    assert [token.blocks for token in drafted.trace] == [token.blocks for token in some.trace]


@pytest.mark.parametrize("name", ["infllm", "top_p", *EVERYTHING])
def test_answers_about_several_documents_in_one_pass_are_those_of_each_alone(name: str) -> None:
    """The vectors that the last layer makes of a token are float64, to whose rounding they agree."""
    reader, method = make_reader(), build(name, EVERYTHING.get(name, {}))
    in_float64(reader, rotary=False)
    readings = [method.read(reader, some_tokens(length, seed=length), 40) for length in (90, 120, 150)]
    decodings = [Decoding(method.bind(one), QUESTION, **method.options(), max_new_tokens=8) for one in readings]
    alone = [generate_together([one])[0] for one in decodings]
    for found, expected in zip(generate_together(decodings), alone, strict=True):
        assert [one.token for one in found.trace] == [one.token for one in expected.trace]
        assert [one.attended for one in found.trace] == [one.attended for one in expected.trace]
        for one, other in zip(found.trace, expected.trace, strict=True):
            assert one.embeddings.keys() == other.embeddings.keys() == set(SITES)
            for site in SITES:
                assert one.embeddings[site].dtype == torch.float64
                assert (one.embeddings[site] - other.embeddings[site]).abs().max() < 1e-10
        # Log probabilities are float32.
        assert [one.logprob for one in found.trace] == pytest.approx([one.logprob for one in expected.trace], abs=1e-5)


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError(), *map(RuntimeError, ("can't allocate memory", "ALLOC_FAILED"))]
)
def test_a_lack_of_memory_is_an_answer_and_a_sentence(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: object) -> None:
        raise error

    full = build("full", {})
    monkeypatch.setattr(type(full), "state", fail)
    answer = Answers(make_reader(), some_tokens(20)).answer(full, QUESTION, 5)
    assert answer.generation == Generation(1, finish="memory")
    sentence = "2 answers do not fit into memory together; set generation.together=false"
    with pytest.raises(UserError, match=sentence), side_by_side_room(2):
        fail()
    error = RuntimeError("other")
    with pytest.raises(RuntimeError, match="other"):
        Answers(make_reader(), some_tokens(20)).answer(full, QUESTION, 5)
    with pytest.raises(RuntimeError, match="other"), side_by_side_room(2):
        fail()


def test_a_document_that_does_not_fit_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    # 300 tokens of 3 layers with 2 heads of 16 and, in one pass, 3 times 80 in the MLP and 3 times 64 besides, 4 bytes.
    for name, passing in (("full", 3 * 80 + 3 * 64), ("tokenselect", 0)):
        needed = 300 * (2 * 3 * 2 * 16 + passing) * 4
        for free, finish in ((needed - 1, "memory"), (needed, "length")):
            monkeypatch.setattr("utaca.readers.room.free_memory", lambda free=free: free)
            answer = Answers(make_reader(), some_tokens(300)).answer(build(name, EVERYTHING.get(name, {})), QUESTION, 3)
            assert answer.generation.finish == finish


def test_circles_are_told_from_answers() -> None:
    assert all(loops(tokens) for tokens in ([1, 2, 3] + [7, 8] * 24, [5] * 48, [*range(16)] * 3))
    assert not any(loops(tokens) for tokens in ([5] * 47, [1, *[5] * 47], [*range(17)] * 3))
    circling = Generation(1, [SimpleNamespace(token=5)] * 48, finish="length")
    _name_loops(circling)
    assert circling.finish == "incoherent"


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("nothing", {}, "no method 'nothing'; choose one of adakv"),
        ("full", {"budget": 5}, "takes no budget"),
        ("window", {"budget": 4}, "budget=4 must exceed n_init=4"),
        ("snapkv", {"budget": 32}, "budget=32 must exceed window=32"),
        *(("snapkv", {"kernel": kernel}, f"kernel={kernel} must be odd and above 0") for kernel in (4, -1)),
        ("adakv", {"floor": 1.5}, "floor=1.5 must be between 0 and 1"),
        ("omnikv", {"filters": [2, 40]}, "must be layers below depth=32"),
        ("omnikv", {"filters": ["two"]}, r"methods.omnikv.filters\[0\] must be a whole number, not 'two'"),
        ("h2o", {"heavy": 1.0}, "heavy=1.0 must be at least 0 and below 1"),
        ("tokenselect", {"chunk": 513}, "chunk=513 must be at least 1 and at most n_local=512"),
        ("freqkv", {"budget": 4}, "budget=4 must exceed sink=4"),
        ("fastkv", {"budget": 5000}, "tsp_length=4096 must be at least budget=5000"),
        ("llmlingua2", {"rate": 0.01}, "rate=0.01 must be above 0.01 and at most 1"),
        ("top_p", {"policy": "top_p.1.5"}, r"policy 'top_p.1.5' is not top_p.X with X below 1"),
        ("infllm_v2", {"budget": 1000}, "budget=1000 must be a multiple of block=64"),
        ("infllm_v2", {"initial": 17}, "initial=17 must be within the budget's 16 blocks"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(name: str, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        build(name, settings)


def test_utaca_asks_of_its_base_what_its_widest_step_needs() -> None:
    sizes = {"n_init": 4, "n_local": 40, "chunk": 30}
    point = PointSettings("utaca", budget=5000, policy="set.1", trigger="never", base="tokenselect")
    wide = method_of(point, {"tokenselect": {"budget": 64, **sizes}})
    with pytest.raises(UserError, match="exceed the 1024 positions"):
        wide.base.check(make_reader())
    with pytest.raises(UserError, match="budget=1000 must be a multiple of block=64"):
        build("utaca", {"budget": 1000, "base": build("infllm_v2", {})})
    with pytest.raises(UserError, match="method snapkv cannot give a step another budget"):
        build("utaca", {"base": build("snapkv", {})})


def test_options_of_an_answer_go_before_the_methods_own() -> None:
    answers = Answers(make_reader(), some_tokens(300))
    adaptive = build("utaca", {"budget": 8, "policy": "sub.1", "trigger": "agreement"})
    found = answers.answer(adaptive, QUESTION, 4, policy=Set(1), trigger=Every(0)).generation
    assert [token.k for token in found.trace] == [8, 1, 1, 1]


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("window", {"budget": 1025}, "budget=1025 exceeds"),
        ("h2o", {"budget": 1000, "chunk": 25}, "budget and chunk, 1025, exceed"),
        ("tokenselect", {"budget": 385}, "budget, n_init and n_local, 1025, exceed"),
        ("freqkv", {"budget": 515}, "budget=515 means a cache of 1026, which exceeds"),
    ],
)
def test_a_cache_beyond_the_readers_positions_is_refused(name: str, settings: dict[str, int], sentence: str) -> None:
    reader, method = make_reader(), build(name, settings)
    with pytest.raises(UserError, match=f"{sentence} the 1024 positions of the reader"):
        Answers(reader, some_tokens(50)).answer(method, QUESTION, 5)
    reader.settings.positions = 1026
    method.check(reader)
