"""Log-probabilities of prompts, as OpenAI's completions have them and harnesses ask for them."""

from typing import Any

import openai
import pytest
import torch
from serving import post, serving
from small import full_attention, make_reader, some_tokens
from torch import Tensor

import utaca
from utaca.app.serving.server import Server
from utaca.readers.load import Reader
from utaca.settings.schema import MemorySettings

PLAIN = "The university of Emma Thompson is Harvard University. Is it near?"
SHORT = f"{PLAIN} Is it a caf\u00e9 or \U0001f600?"


def scored(server: Server, prompt: Any, **fields: Any) -> list[dict[str, Any]]:
    """The choices of an answer with the prompt's log-probabilities, as lm-evaluation-harness asks for them."""
    body = {"model": "tiny", "prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    status, answer = post(server, body | {"seed": 1234} | fields, "/v1/completions")
    assert status == 200, answer
    return answer["choices"]


def of_tokens(logits: Tensor, tokens: Tensor) -> list[float]:
    """Log-probabilities of all tokens [T] but the first, by the logits [T, V] of each one before."""
    return logits[:-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0].tolist()


def test_a_prompt_in_the_window_is_scored_as_by_hugging_face(server: Server, tiny: Reader) -> None:
    tokens = torch.tensor(tiny.tokenizer(PLAIN)["input_ids"])
    logits = full_attention(tiny, tokens)
    expected = of_tokens(logits, tokens)
    for prompt in (PLAIN, tokens.tolist(), [PLAIN, PLAIN], [tokens.tolist()]):
        for choice in scored(server, prompt, logprobs=5):
            values = choice["logprobs"]
            assert values["token_logprobs"][0] is values["top_logprobs"][0] is None
            assert values["token_logprobs"][1:-1] == pytest.approx(expected, abs=1e-4)
            assert len(values["tokens"]) == len(tokens) + 1
    rows = zip(values["token_logprobs"], values["top_logprobs"], strict=True)
    for place, (logprob, best) in enumerate(list(rows)[1:-1]):
        highest = logits[place].log_softmax(-1).topk(5).values.tolist()
        assert list(best.values())[:5] == pytest.approx(highest, abs=1e-4)
        assert logprob in best.values()
        # By this comparison of floats harnesses see whether an answer is greedy.
        assert (logprob == max(best.values())) == (int(logits[place].argmax()) == int(tokens[place + 1]))


def forced(reader: Reader, tokens: Tensor, n_document: int, budget: int, monkeypatch: Any) -> list[float]:
    """What the engine gives of a document's tokens, and of a question's under a budget, without a server."""
    forward, passed = reader.forward, []
    with monkeypatch.context() as patch:
        patch.setattr(reader, "forward", lambda *given: passed.append(forward(*given)) or passed[-1])
        memory = utaca.prefill(reader, tokens[:n_document])
        branch, pieces, last = memory.begin(tokens[n_document:], 1, budget, {})
        for piece in [*(piece for piece, _ in pieces), last]:
            step = branch.plan(piece, budget)
            branch.run([step])
            branch.commit(step)
    return of_tokens(torch.cat(passed, 1)[0] @ reader.model.get_output_embeddings().weight.T, tokens)


def test_a_long_prompt_is_scored_from_block_memory_under_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemorySettings(n_init=8, n_local=48, block_size=8, prefill_chunk=32, prefill_budget=2, question_chunk=16)
    small = make_reader(memory=memory)
    document, question, other = some_tokens(150, 1), some_tokens(42, 2), some_tokens(30, 3)
    for tokens in (document, question, other):
        tokens[tokens == 32] = 33
    # A blank line, with which the question begins.
    question[:2] = 32
    tokens = torch.cat((document, question))
    with serving(small) as server:
        # What was read for an answer alone has no scores to go on from.
        post(server, {"model": "tiny", "prompt": tokens.tolist(), "max_tokens": 1}, "/v1/completions")
        choices = [scored(server, tokens.tolist(), utaca={"budget": budget})[0] for budget in (1, 8)]
        few, many = (choice["logprobs"]["token_logprobs"] for choice in choices)
        assert few[1:-1] == pytest.approx(forced(small, tokens, 150, 1, monkeypatch), abs=1e-4)
        assert many[1:-1] == pytest.approx(forced(small, tokens, 150, 8, monkeypatch), abs=1e-4)
        assert few[:151] == many[:151]
        assert few[151:] != pytest.approx(many[151:], abs=1e-2)
        assert few[1:-1] != pytest.approx(of_tokens(full_attention(small, tokens), tokens), abs=1e-2)
        # Another document with the same beginning goes on from it, with the scores of what is copied.
        for cut in (96, 97):
            longer = torch.cat((document[:cut], other, question[:9]))
            body = {"model": "tiny", "prompt": longer.tolist(), "echo": True, "logprobs": 0, "max_tokens": 0}
            answer = post(server, body | {"utaca": {"budget": 8}}, "/v1/completions")[1]
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == (96 if cut == 97 else 64)
            expected = forced(small, longer, cut + 30, 8, monkeypatch)
            assert answer["choices"][0]["logprobs"]["token_logprobs"][1:] == pytest.approx(expected, abs=1e-4)


def test_a_stream_has_the_scores_with_the_echo_and_says_where_tokens_begin(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="-", max_retries=0)
    fields = {"model": "tiny", "prompt": SHORT, "echo": True, "logprobs": 2, "max_tokens": 3}
    fields["stop"] = [f"{chr(code)}<never>" for code in range(10, 127)]  # holds back the end of every piece
    whole = client.completions.create(**fields).choices[0]
    chunks = [chunk.choices[0] for chunk in client.completions.create(**fields, stream=True)]
    assert chunks[0].text == SHORT
    assert "".join(chunk.text for chunk in chunks) == whole.text
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [getattr(chunk.logprobs, name) for chunk in chunks if chunk.logprobs]
        assert [value for part in parts for value in part] == getattr(whole.logprobs, name)
    tokens, offsets = whole.logprobs.tokens, whole.logprobs.text_offset
    assert offsets == sorted(offsets)
    for token, start, end in zip(tokens, offsets, [*offsets[1:], None], strict=True):
        assert whole.text[start:end] == token or "\ufffd" in token
    assert offsets[-3] == len(SHORT), "of three tokens behind it"
