"""Decoding inside ``model.generate`` of transformers, which prepares the inputs and calls a loop of ours.

The loop is Algorithm 1 of :mod:`utaca.decoding.loop`. What ``generate`` prepared has its usual effect: logits
processors change each pass's logits before a token is chosen, and stopping criteria are asked after each token.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.streamers import BaseStreamer

from utaca.decoding.choosing import Noted
from utaca.decoding.loop import Batch, OpenAnswer
from utaca.decoding.options import Decoding, Sampling
from utaca.decoding.policies import Policy
from utaca.decoding.triggers import Trigger
from utaca.errors import UserError, whole
from utaca.memory.block_memory import BlockMemory
from utaca.memory.prefill import begun, prefill
from utaca.readers.load import Reader, borrowed
from utaca.readers.turns import in_turn
from utaca.settings.budgets import Budget, checked
from utaca.settings.schema import MemorySettings
from utaca.trace import Generation, Token

QUESTION_TOKENS = 64
"""Tokens at a prompt's end that are its question if nothing else is said."""
DOCUMENTS = 4
"""Documents that are kept by default."""


class CustomGenerate:
    """A loop for ``model.generate(**inputs, custom_generate=...)``; :func:`custom_generate` makes it.

    ``answers`` are the :class:`utaca.Generation` of each prompt of the last call: budgets, margins and all else that a
    trace has, except texts. The loop keeps the weights of the last model in use, and documents that it read.
    """

    def __init__(
        self,
        options: dict[str, Any],
        memory: MemorySettings | None,
        document_tokens: int | None,
        question_tokens: int | None,
        documents: int,
    ) -> None:
        """``options`` are fields of :class:`Decoding`; see :func:`custom_generate` for the others."""
        self.answers: list[Generation] = []
        self._options = options
        self._memory = memory
        self._split = (document_tokens, question_tokens)
        self._most = documents
        self._reader: Reader | None = None
        # What the reader's weights were when it was made.
        self._weights: list[tuple[int, int, int]] = []
        # By the bytes of the document's ids; the one that was used last is the last.
        self._documents: OrderedDict[bytes, BlockMemory] = OrderedDict()

    @in_turn
    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: BaseStreamer | None = None,
        document_tokens: int | None = None,
        question_tokens: int | None = None,
        **model_kwargs: Any,
    ) -> GenerateDecoderOnlyOutput | Tensor:
        """Decode after prompts ``input_ids`` [B, L]; ``generate`` calls this.

        ``document_tokens`` and ``question_tokens`` are arguments of ``generate`` too; they go before those of
        :func:`custom_generate`. Returns what ``generate`` returns: sequences [B, L + n], or an output that has them.
        Raises :class:`UserError` for what is not supported.
        """
        streamer = streamer or _of_generate("streamer")
        _check(generation_config, model_kwargs, synced_gpus)
        given = (document_tokens, question_tokens)
        split = self._split if given == (None, None) else given
        prompts = _unpadded(input_ids, model_kwargs.get("attention_mask"))
        ends = [_document_end(len(prompt), *split) for prompt in prompts]
        reader = self._reader_of(model)
        most = generation_config.max_length - input_ids.shape[1]
        options = {"budget": reader.settings.budget} | self._options | {"max_new_tokens": most}
        # Faulty options are found before a document is read.
        Decoding(begun(reader, reader.document(prompts[0][:1]), budget=options["budget"]), (0,), **options)
        # The stopping criteria end an answer there too.
        ending = generation_config._eos_token_tensor
        reader.stop_tokens = frozenset() if ending is None else frozenset(ending.flatten().tolist())
        rows = _Rows(input_ids, logits_processor, stopping_criteria, generation_config, streamer)
        for prompt, end in zip(prompts, ends, strict=True):
            memory = self._read(reader, reader.document(prompt[:end]), options["budget"])
            rows.add(memory, tuple(prompt[end:].tolist()), options)
        output = rows.decoded(most)
        self.answers = rows.generations()
        return output

    def _reader_of(self, model: PreTrainedModel) -> Reader:
        """The reader of a model: the one of the last call, unless the model or its weights changed."""
        # In-place changes count in a tensor's version, which tensors of inference mode lack.
        weights = [
            (id(weight), weight.data_ptr(), 0 if weight.is_inference() else weight._version)
            for weight in model.parameters()
        ]
        if self._reader is None or weights != self._weights:
            self._documents.clear()
            self._reader = borrowed(model, self._memory)
            self._weights = weights
        return self._reader

    def _read(self, reader: Reader, tokens: Tensor, budget: Budget) -> BlockMemory:
        """The document of ``tokens`` [N], read now unless it is kept; the one that was not used for longest leaves."""
        key = tokens.cpu().numpy().tobytes()
        memory = self._documents.pop(key, None)
        if memory is None:
            while len(self._documents) >= self._most:
                self._documents.popitem(last=False)
            memory = prefill(reader, tokens, budget=budget)
        self._documents[key] = memory
        return memory


def custom_generate(
    *,
    budget: Budget | None = None,
    policy: Policy | None = None,
    trigger: Trigger | None = None,
    drafts: int = 0,
    document_tokens: int | None = None,
    question_tokens: int | None = None,
    memory: MemorySettings | None = None,
    documents: int = DOCUMENTS,
) -> CustomGenerate:
    """A loop that lets ``model.generate`` of transformers decode under block memory::

        model.generate(**inputs, custom_generate=utaca.custom_generate(budget=32), max_new_tokens=64)

    ``budget``, ``policy``, ``trigger`` and ``drafts`` are as in :class:`utaca.Decoding`; the budget is by default the
    one of the reader's config, else 32. A prompt is a document and a question after it: the document is its first
    ``document_tokens``, or all but its last ``question_tokens`` (64 by default), padding not counted. ``memory`` are
    the settings of block memory, by default those of the listed reader whose model it is, else InfLLM's. The loop keeps
    the last ``documents`` that it read, and reads none of them again.

    Raises :class:`UserError` for numbers that make no sense; a call raises it for what is not supported.
    """
    if not isinstance(memory, MemorySettings | None):
        raise UserError(
            f"memory must be a utaca.MemorySettings such as utaca.MemorySettings(n_local=256), not {memory!r}"
        )
    if whole("documents", documents) < 1:
        raise UserError(f"documents must be at least 1, not {documents}")
    options = {"policy": policy, "trigger": trigger, "drafts": drafts}
    if budget is not None:
        options["budget"] = checked(budget)
    # Checks what is wrong with any prompt.
    _document_end(max(2, document_tokens or 0, question_tokens or 0) + 1, document_tokens, question_tokens)
    return CustomGenerate(options, memory, document_tokens, question_tokens, documents)


class _Rows:
    """The answers to a batch of prompts, which ``generate`` sees in step: token after token of all of them.

    The answers share passes, and may be ahead of what ``generate`` has seen.
    """

    def __init__(
        self,
        prompts: Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        streamer: BaseStreamer | None,
    ) -> None:
        """``prompts`` are [B, L], padding included."""
        self._prompts = prompts
        self._processors = processors
        self._criteria = criteria
        self._config = config
        self._streamer = streamer
        self._batch = Batch()
        self._answers: list[OpenAnswer] = []
        self._choices: list[_Processed] = []
        # Number of tokens of each answer; those after are not part of it.
        self._lengths: list[int] = []

    def add(self, memory: BlockMemory, question: tuple[int, ...], options: dict[str, Any]) -> None:
        """Begin the answer to the next prompt."""
        config = self._config
        keeps = config.return_dict_in_generate and (config.output_scores or config.output_logits)
        row = len(self._answers)
        choice = _Processed(self._processors, self._prompts, row, draws=bool(config.do_sample), keeps=bool(keeps))
        answer = self._batch.add(Decoding(memory, question, sampling=choice, **options))
        choice.trace = answer.generation.trace
        self._choices.append(choice)
        self._answers.append(answer)

    def decoded(self, most: int) -> GenerateDecoderOnlyOutput | Tensor:
        """Decode ``most`` tokens of each answer, or until the criteria say that all answers are done."""
        config = self._config
        sequences = self._prompts
        count = len(sequences)
        scores: tuple[Tensor, ...] | None = () if config.return_dict_in_generate and config.output_scores else None
        logits: tuple[Tensor, ...] | None = () if config.return_dict_in_generate and config.output_logits else None
        unfinished = torch.ones(count, dtype=torch.bool, device=sequences.device)
        # As transformers has it: only where an end token may finish a row, finished rows continue as padding.
        pads = any(hasattr(criterion, "eos_token_id") for criterion in self._criteria)
        self._lengths = [0] * count
        for number in range(most):
            goes_on = unfinished.tolist()
            tokens = []
            seen: list[tuple[Tensor, Tensor] | None] = []
            for row, answer in enumerate(self._answers):
                if goes_on[row]:
                    self._lengths[row] = number + 1
                if goes_on[row] or not pads:
                    token = self._token(answer, number)
                    tokens.append(token.token)
                    seen.append(self._choices[row].note(number, token))
                else:
                    self._batch.drop(answer)
                    tokens.append(int(config._pad_token_tensor))
                    seen.append(None)
            next_tokens = torch.tensor(tokens, device=sequences.device)
            if scores is not None:
                scores += (_stacked([row and row[0] for row in seen]),)
            if logits is not None:
                logits += (_stacked([row and row[1] for row in seen]),)
            sequences = torch.cat((sequences, next_tokens[:, None]), -1)
            if self._streamer is not None:
                self._streamer.put(next_tokens.cpu())
            unfinished = unfinished & ~self._criteria(sequences, scores)
            if not unfinished.any():
                break
        for answer in self._answers:
            self._batch.drop(answer)
        if self._streamer is not None:
            self._streamer.end()
        if not config.return_dict_in_generate:
            return sequences
        return GenerateDecoderOnlyOutput(sequences=sequences, scores=scores, logits=logits)

    def _token(self, answer: OpenAnswer, number: int) -> Token:
        """Token ``number`` of an answer, decoded now if it is not yet; raises the error that ended the answer."""
        trace = answer.generation.trace
        while len(trace) <= number:
            answer.result()
            self._batch.step()
        return trace[number]

    def generations(self) -> list[Generation]:
        """The answers as ``generate`` returned them."""
        for answer, length in zip(self._answers, self._lengths, strict=True):
            generation = answer.generation
            if len(generation.trace) > length or not generation.finish:
                generation.finish = "stopped"
            while len(generation.trace) > length:
                generation.reject_last()
        return [answer.generation for answer in self._answers]


class _Processed(Noted):
    """Tokens of one answer by the logits that processors of transformers make of a pass's, greedily or drawn.

    If it ``keeps`` them, the note of a pass is (processed logits [V], logits [V]), in float32; else it is None. A step
    draws one of PyTorch's random numbers, which ``torch.manual_seed`` sets, and applies it to each of its passes.
    """

    trace: list[Token]
    """The answer's tokens so far."""

    def __init__(self, processors: LogitsProcessorList, prompts: Tensor, row: int, *, draws: bool, keeps: bool) -> None:
        """``row`` is that of the answer's prompt among ``prompts`` [B, L]."""
        super().__init__()
        self._processors = processors
        self._prompts = prompts
        self._row = row
        self._sampling = Sampling() if draws else None
        self._number = 0.0
        self._keeps = keeps

    def begin(self) -> None:
        """See :class:`Noted`."""
        if self._sampling is not None:
            self._number = torch.rand((), dtype=torch.float64).item()

    def choose(self, step: int, logits: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """See :class:`Noted`."""
        prompt = self._prompts[self._row]
        plain = logits.to(prompt.device, torch.float32, copy=True)
        processed = plain
        if self._processors:
            answer = prompt.new_tensor([token.token for token in self.trace])
            # Processors know a prompt by its row, so that every row is taken for this one.
            rows = len(self._prompts)
            sequences = torch.cat((prompt, answer)).repeat(rows, 1)
            processed = self._processors(sequences, plain.repeat(rows, 1))[self._row]
        token = self._sampling.drawn(self._number, processed) if self._sampling else processed.argmax()
        return token.to(logits.device), (processed, plain) if self._keeps else None


def _stacked(rows: Sequence[Tensor | None]) -> Tensor:
    """Logits [B, V] of rows [V]; a row that is padding, None, has zeros."""
    some = next(row for row in rows if row is not None)
    return torch.stack([torch.zeros_like(some) if row is None else row for row in rows])


def _check(config: GenerationConfig, model_kwargs: dict[str, Any], synced_gpus: bool) -> None:
    """Raise :class:`UserError` for arguments of ``generate`` that a loop under block memory cannot follow."""
    mode = config.get_generation_mode(_of_generate("assistant_model"))
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        words = mode.value.replace("_", " ")
        raise UserError(f"utaca generates greedily or by sampling, not by {words}; leave out the arguments for {words}")
    cache = model_kwargs.get("past_key_values")
    if getattr(cache, "_is_user_defined", False) or config.cache_implementation is not None:
        raise UserError(
            "utaca keeps a document in its own block memory; leave out past_key_values and cache_implementation"
        )
    if model_kwargs.get("inputs_embeds") is not None:
        raise UserError("utaca reads token ids; give input_ids instead of inputs_embeds")
    if config.output_attentions or config.output_hidden_states:
        raise UserError(
            "attention weights and hidden states do not cover a document in block memory; leave out output_attentions "
            "and output_hidden_states"
        )
    if config.guidance_scale not in (None, 1):
        raise UserError(
            "guidance_scale needs passes over the whole prompt, which block memory avoids; leave guidance_scale out"
        )
    if synced_gpus:
        raise UserError("utaca decodes on one device; leave out synced_gpus, and load the model onto one GPU")


def _unpadded(input_ids: Tensor, mask: Tensor | None) -> list[Tensor]:
    """The prompts [N] of a batch [B, L] without the padding on their left, where a ``mask`` [B, L] is 0.

    Raises :class:`UserError` if the mask hides other tokens.
    """
    if mask is None:
        return list(input_ids)
    prompts = []
    for ids, seen in zip(input_ids, mask.bool(), strict=True):
        hidden = int((~seen).sum())
        if not seen[hidden:].all():
            raise UserError(
                "the attention_mask (given, or made from pad_token_id) hides tokens after the beginning of a prompt; "
                "pad the prompts on the left (tokenizer.padding_side='left')"
            )
        prompts.append(ids[hidden:])
    return prompts


def _document_end(length: int, document_tokens: int | None, question_tokens: int | None) -> int:
    """Number of tokens of a prompt's document; ``length`` is the prompt's. Both parts have one token at least."""
    if document_tokens is not None and question_tokens is not None:
        raise UserError("document_tokens and question_tokens both say where the question begins; give only one of them")
    if length < 2:
        raise UserError(
            "a prompt needs at least two tokens, one for the document and one for the question; give a longer prompt"
        )
    if document_tokens is None and question_tokens is None:
        return max(1, length - QUESTION_TOKENS)
    name = "question_tokens" if document_tokens is None else "document_tokens"
    number = whole(name, question_tokens if document_tokens is None else document_tokens)
    if not 1 <= number < length:
        raise UserError(f"{name} is {number}, but must be at least 1 and below the prompt's {length} tokens")
    return length - number if document_tokens is None else number


def _of_generate(name: str) -> Any:
    """An argument of the ``generate`` that called this loop; None if it was not given.

    transformers (5.23) gives a loop of one's own neither ``streamer`` nor ``assistant_model``. Without this, a streamer
    would get the prompt and nothing else, and who reads from it would wait without end.
    """
    code = inspect.unwrap(GenerationMixin.generate).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get(name)
