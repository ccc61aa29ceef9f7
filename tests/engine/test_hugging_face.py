"""``model.generate`` of transformers with block memory: the answers are utaca's, the arguments keep their effect."""

import copy
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from conftest import ROOT
from small import SETTINGS, SIZES, SmallTokenizer, make_reader, some_tokens
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LogitsProcessor,
    PreTrainedModel,
    StoppingCriteria,
    TextIteratorStreamer,
    dynamic_module_utils,
    pipeline,
)

import utaca
from utaca.errors import UserError
from utaca.readers.load import Reader
from utaca.settings.schema import MemorySettings

PROMPT = some_tokens(200)
DOCUMENT = 180
NEW = 12


def model_of(reader: Reader) -> PreTrainedModel:
    """A model with a reader's weights, as a user of transformers has it."""
    config = copy.deepcopy(reader.model.config)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    model.load_state_dict(reader.model.state_dict())
    return model


@pytest.fixture(scope="module")
def reader() -> Reader:
    return make_reader()


@pytest.fixture(scope="module")
def model(reader: Reader) -> PreTrainedModel:
    return model_of(reader)


def loop(**options: Any) -> Any:
    return utaca.custom_generate(**{"budget": 4, "document_tokens": DOCUMENT, "memory": SETTINGS} | options)


def generated(model: PreTrainedModel, ids: torch.Tensor = PROMPT[None], **options: Any) -> Any:
    """What ``generate`` gives; options of the loop have its arguments' names."""
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": None} | options
    return model.generate(ids, **{"custom_generate": loop()} | options)


def expected(reader: Reader, prompt: torch.Tensor = PROMPT, document: int = DOCUMENT, **options: Any) -> list[int]:
    """The ids of utaca's own answer of full length."""
    memory = utaca.prefill(reader, prompt[:document])
    question = tuple(prompt[document:].tolist())
    reader.stop_tokens = frozenset()
    options = {"budget": 4, "max_new_tokens": NEW} | options
    return [token.token for token in utaca.generate(memory, question, **options).trace]


@pytest.mark.parametrize("kind", SIZES)
def test_the_answer_is_that_of_utaca(kind: str) -> None:
    reader = make_reader(kind)
    output = generated(model_of(reader))
    assert output[0].tolist() == PROMPT.tolist() + expected(reader)


@pytest.mark.parametrize("drafts", [0, 5])
@pytest.mark.parametrize("trigger", [utaca.Margin(0.8), utaca.Agreement(), utaca.Every(3)], ids=str)
def test_adaptive_budgets(reader: Reader, model: PreTrainedModel, trigger: utaca.Trigger, drafts: int) -> None:
    options = {"budget": 10, "policy": utaca.Sub(4), "trigger": trigger}
    custom = loop(**options, drafts=drafts)
    output = generated(model, custom_generate=custom)
    assert output[0, len(PROMPT) :].tolist() == expected(reader, **options)
    (answer,) = custom.answers
    assert answer.rollbacks
    assert len(answer.trace) == NEW
    assert answer.finish == "length"


def test_a_budget_may_be_a_share_of_the_document(reader: Reader, model: PreTrainedModel) -> None:
    # Behind 4 initial tokens the document has 22 whole blocks of 8 tokens.
    options = {"policy": utaca.Sub(2), "trigger": utaca.Margin(0.8)}
    custom = loop(budget="30%", **options)
    output = generated(model, custom_generate=custom)
    assert output[0, len(PROMPT) :].tolist() == expected(reader, budget=6, **options)
    assert custom.answers[0].trace[0].k == 6


def test_where_the_document_ends(reader: Reader, model: PreTrainedModel) -> None:
    # A chunk begins where the question does, so that another split gives another answer.
    for split, document in (
        ({}, len(PROMPT) - 64),
        ({"question_tokens": 50}, 150),
        ({"document_tokens": 100}, 100),
    ):
        custom = utaca.custom_generate(budget=4, memory=SETTINGS, **split)
        wanted = expected(reader, document=document)
        assert generated(model, custom_generate=custom)[0, len(PROMPT) :].tolist() == wanted
        # The arguments of generate go before those of the loop.
        assert generated(model, **split)[0, len(PROMPT) :].tolist() == (wanted if split else expected(reader))


def test_the_model_stays_as_it_was(model: PreTrainedModel) -> None:
    options = {"max_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    before = model.generate(PROMPT[None], **options)
    hooks = sum(len(module._forward_hooks) for module in model.modules())
    generated(model)
    assert model.config._attn_implementation == "sdpa"
    assert sum(len(module._forward_hooks) for module in model.modules()) == hooks
    assert not any("forward" in vars(module) for module in model.modules())
    assert all(weight.requires_grad for weight in model.parameters())
    assert model.generate(PROMPT[None], **options).equal(before)


def test_a_batch_with_padding_on_the_left(reader: Reader, model: PreTrainedModel) -> None:
    prompts = [some_tokens(200, seed=1), some_tokens(90, seed=2), some_tokens(150, seed=3)]
    ids = torch.stack([torch.cat((torch.zeros(200 - len(each), dtype=torch.long), each)) for each in prompts])
    mask = (torch.arange(200) >= torch.tensor([[200 - len(each)] for each in prompts])).long()
    custom = loop(document_tokens=None, question_tokens=20)
    output = generated(model, ids, attention_mask=mask, custom_generate=custom)
    for row, prompt in zip(output, prompts, strict=True):
        assert row[200:].tolist() == expected(reader, prompt, len(prompt) - 20)
    with pytest.raises(UserError, match="pad the prompts on the left"):
        generated(model, ids, attention_mask=mask.flip(1), custom_generate=custom)


def test_finished_rows_go_on_as_padding(reader: Reader, model: PreTrainedModel) -> None:
    prompts = torch.stack([some_tokens(200, seed=1), some_tokens(200, seed=2)])
    answers = [expected(reader, prompt) for prompt in prompts]
    # The first token of one answer that the other has not.
    place = next(n for n, token in enumerate(answers[0]) if token not in answers[1] and token not in answers[0][:n])
    end = answers[0][place]
    custom = loop(drafts=4)
    mask = torch.ones_like(prompts)  # without one transformers takes any 96 for padding
    output = generated(model, prompts, attention_mask=mask, eos_token_id=end, pad_token_id=96, custom_generate=custom)
    assert output[0, 200:].tolist() == answers[0][: place + 1] + [96] * (NEW - place - 1)
    assert output[1, 200:].tolist() == answers[1]
    assert [answer.finish for answer in custom.answers] == ["eos", "length"]
    assert [len(answer.trace) for answer in custom.answers] == [place + 1, NEW]


class Stop(StoppingCriteria):
    """Ends every row at a length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length)


@pytest.mark.parametrize("drafts", [0, 5])
def test_stopping_criteria(reader: Reader, model: PreTrainedModel, drafts: int) -> None:
    custom = loop(drafts=drafts)
    output = generated(model, stopping_criteria=[Stop(205)], custom_generate=custom)
    assert output[0, 200:].tolist() == expected(reader)[:5]
    assert custom.answers[0].finish == "stopped"
    assert len(custom.answers[0].trace) == 5


def test_logits_processors_and_scores(reader: Reader, model: PreTrainedModel) -> None:
    plain = expected(reader)
    seen = []

    class Bans(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            seen.append(input_ids[0].tolist())
            scores[:, plain[0]] = -torch.inf
            return scores

    output = generated(
        model, logits_processor=[Bans()], return_dict_in_generate=True, output_scores=True, output_logits=True
    )
    tokens = output.sequences[0].tolist()
    assert plain[0] not in tokens[200:]
    # The processor sees the whole sequence so far.
    assert seen == [tokens[: 200 + number] for number in range(NEW)]
    assert len(output.scores) == len(output.logits) == NEW
    assert output.scores[0].shape == (1, 97)
    for token, scores, logits in zip(tokens[200:], output.scores, output.logits, strict=True):
        assert scores[0].argmax() == token
        assert scores[0, plain[0]] == -torch.inf
        assert logits.isfinite().all()
    assert output.logits[0][0].argmax() == plain[0]
    # transformers' own reading of the scores
    transitions = model.compute_transition_scores(output.sequences, output.scores, normalize_logits=True)
    assert transitions.shape == (1, NEW)
    assert (transitions <= 0).all()


def test_scores_of_accepted_passes(model: PreTrainedModel) -> None:
    custom = loop(budget=10, policy=utaca.Sub(4), trigger=utaca.Agreement())
    output = generated(model, custom_generate=custom, return_dict_in_generate=True, output_logits=True)
    (answer,) = custom.answers
    assert answer.rollbacks
    for token, logits in zip(answer.trace, output.logits, strict=True):
        best = logits[0].topk(2).values
        assert float(best[0] - best[1]) == pytest.approx(token.margin, abs=1e-6)


def test_prefix_constraints_know_their_row(model: PreTrainedModel) -> None:
    prompts = torch.stack([some_tokens(200, seed=1), some_tokens(200, seed=2)])
    output = generated(model, prompts, prefix_allowed_tokens_fn=lambda row, ids: [10 + row])
    assert output[:, 200:].tolist() == [[10] * NEW, [11] * NEW]


def test_sampling_follows_the_arguments_and_the_seed(model: PreTrainedModel, reader: Reader) -> None:
    def drawn(**options: Any) -> list[int]:
        torch.manual_seed(3)
        return generated(model, do_sample=True, **options)[0, 200:].tolist()

    hot = drawn(temperature=5.0)
    assert hot == drawn(temperature=5.0)
    assert len({*map(tuple, (hot, drawn(temperature=4.0), expected(reader)))}) > 1
    assert drawn(top_k=1) == expected(reader)
    assert drawn(temperature=1e-4) == expected(reader)
    # Drafts and rollbacks take no further numbers.
    assert drawn(temperature=5.0, custom_generate=loop(drafts=5)) == hot
    several = generated(model, do_sample=True, temperature=5.0, num_return_sequences=3)
    assert several.shape == (3, 200 + NEW)
    assert len({*map(tuple, several.tolist())}) == 3


def test_a_streamer_gets_prompt_and_tokens(model: PreTrainedModel, reader: Reader) -> None:
    streamer = TextIteratorStreamer(SmallTokenizer(), skip_prompt=True, timeout=60)
    thread = Thread(target=generated, args=(model,), kwargs={"streamer": streamer})
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text == SmallTokenizer().decode(expected(reader))


def test_the_pipeline_on_top(model: PreTrainedModel, reader: Reader) -> None:
    tokenizer = SmallTokenizer()
    text = tokenizer.decode(some_tokens(200) % 90 + 2)
    ids = tokenizer(text, return_tensors="pt").input_ids[0]
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "return_full_text": False}
    (said,) = pipe(text, custom_generate=loop(document_tokens=None, question_tokens=20), **options)
    assert said["generated_text"] == tokenizer.decode(expected(reader, ids, len(ids) - 20))


def test_a_document_is_read_once(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    from utaca.decoding import hugging_face

    read = []

    def noted(reader: Reader, tokens: torch.Tensor, **options: Any) -> Any:
        read.append(tokens.tolist())
        return utaca.prefill(reader, tokens, **options)

    monkeypatch.setattr(hugging_face, "prefill", noted)
    custom = loop(documents=1)
    other = torch.cat((PROMPT[:DOCUMENT], some_tokens(30, seed=5)))
    first = generated(model, custom_generate=custom)
    generated(model, other[None], custom_generate=custom)
    assert generated(model, custom_generate=custom).equal(first)
    assert read == [PROMPT[:DOCUMENT].tolist()]
    generated(model, some_tokens(200, seed=6)[None], custom_generate=custom)
    generated(model, custom_generate=custom)
    assert len(read) == 3
    changed = copy.deepcopy(model)
    generated(changed, custom_generate=custom)
    assert len(read) == 4
    with torch.no_grad():
        changed.lm_head.weight.mul_(-1)
    assert not generated(changed, custom_generate=custom).equal(first)
    assert len(read) == 5


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"num_beams": 2}, "not by beam search"),
        ({"prompt_lookup_num_tokens": 3}, "not by assisted generation"),
        ({"cache_implementation": "static"}, "leave out past_key_values"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "leave out output_attentions"),
        ({"guidance_scale": 2.0}, "guidance_scale"),
        ({"document_tokens": 200}, "document_tokens is 200, but must be at least 1 and below the prompt's 200"),
        ({"document_tokens": 3, "question_tokens": 3}, "give only one of them"),
        ({"question_tokens": 0}, "question_tokens is 0"),
        ({"custom_generate": "no trigger"}, "needs a policy and a trigger"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_what_is_not_supported_is_refused(model: PreTrainedModel, options: dict[str, Any], sentence: str) -> None:
    if "custom_generate" in options:
        options = {"custom_generate": loop(policy=utaca.Sub(2))}
    with pytest.raises(UserError, match=sentence):
        generated(model, **options)


def test_a_cache_and_an_assistant_are_refused(model: PreTrainedModel) -> None:
    cache = model(PROMPT[None, :10]).past_key_values
    with pytest.raises(UserError, match="past_key_values"):
        generated(model, past_key_values=cache)
    with pytest.raises(UserError, match="assisted generation"):
        generated(model, assistant_model=model)


def test_models_that_are_not_supported() -> None:
    sizes = {"vocab_size": 97, "n_embd": 32, "n_layer": 1, "n_head": 2}
    with pytest.raises(UserError, match="is a gpt2 model, which is not supported; use one of llama"):
        generated(AutoModelForCausalLM.from_config(GPT2Config(**sizes)))
    half = model_of(make_reader()).half()
    with pytest.raises(UserError, match="weights of float16; load it in float32 or bfloat16"):
        generated(half)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: utaca.custom_generate(documents=0), "documents must be at least 1"),
        (lambda: utaca.custom_generate(budget=1.5), "budget must be a whole number"),
        (lambda: utaca.custom_generate(memory={"n_local": 8}), "memory must be a utaca.MemorySettings"),
        (lambda: utaca.custom_generate(document_tokens=1, question_tokens=1), "give only one of them"),
    ],
)
def test_faulty_options_are_refused_at_once(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make()


def test_settings_by_default_are_those_of_the_listed_reader() -> None:
    folder = ROOT / "data" / "readers" / "tiny"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    custom = utaca.custom_generate()
    generated(model, PROMPT[None], custom_generate=custom)
    settings = custom._reader.settings
    assert settings.name == "tiny"
    assert settings.memory.n_local == 256
    assert custom.answers[0].trace[0].k <= settings.budget == 8
    custom = utaca.custom_generate(memory=MemorySettings(n_local=64))
    generated(model, PROMPT[None], custom_generate=custom)
    assert custom._reader.settings.memory.n_local == 64


def test_the_folder_for_the_hub(
    model: PreTrainedModel, reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # transformers copies the code there and imports the copy.
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "utaca"
    shutil.copytree(ROOT / "data" / "hub", folder)
    options = {"budget": 4, "document_tokens": DOCUMENT, "memory": SETTINGS, "trust_remote_code": True}
    output = generated(model, custom_generate=str(folder), **options)
    assert output[0, 200:].tolist() == expected(reader)


def test_the_examples_of_the_page_run_as_pasted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "transformers.md").read_text(encoding="utf-8")
    first, second = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(first, names)
    assert "May 3, 1959" in capsys.readouterr().out
    exec(second, names)
    born, studied = capsys.readouterr().out.splitlines()
    assert "May 3, 1959" in born
    assert "Harvard" in studied
    loop = names["loop"]
    assert len(loop._documents) == 1
    assert len({token.k for token in loop.answers[0].trace}) > 1
