"""Reading of tokens from decoding steps: logits and signals of each token, and a detector's verdict on it.

The verdict has the probabilities of the token's label (hallucinated, correct, unknown), which the paper calls GDM.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from utaca.detection.detector import Detector
from utaca.detection.signal import Seen
from utaca.detection.signals import SIGNALS
from utaca.readers.attention import Step
from utaca.readers.load import Reader
from utaca.readers.tokenizer import Pieces
from utaca.trace import Generation, NotFiniteError, Token

TOP = 10
"""Number of the most likely tokens whose logits are kept at every step."""


class TokenReader:
    """Reader of an answer's tokens, one device transfer per token; adds accepted tokens to ``generation``.

    The detector judges each token from its LSTM state after the accepted tokens; rejected tokens leave the state as it
    was. The signals of a token are the logit margin, the signals that the detector reads and those that ``measured``
    names; all signals if it is True. ``captures`` are the capture functions of these signals
    (:class:`utaca.detection.signal.Signal`), by signal.
    """

    def __init__(
        self,
        reader: Reader,
        generation: Generation,
        detector: Detector | None,
        *,
        measured: bool | Sequence[str] = False,
    ) -> None:
        self._reader = reader
        self._generation = generation
        self._pieces = Pieces(reader.tokenizer)
        self._detector = detector
        names = ["margin"]
        if detector:
            names += detector.settings.signals
        if measured:
            names += SIGNALS if measured is True else measured
        self._signals = {name: SIGNALS[name] for name in names}
        self.captures = {name: signal.capture for name, signal in self._signals.items() if signal.capture}
        if detector is not None:
            self._detector = detector.to(reader.device)
            self._state = self._detector.initial_state(1)
            self._next_states: dict[int, Any] = {}  # State after each token read, by the token's id().
        # Each token read, as the model's next input: reading its id back from the host would make the host wait.
        self._inputs: dict[int, Tensor] = {}

    def read(self, step: Step, choose: Callable[[Tensor], Tensor]) -> Token:
        """Measure and judge the token that follows a step; ``choose`` picks the token's id from the logits [V]."""
        hidden = step.hidden[-1]
        logits = step.logits
        detector = self._detector
        top = logits.topk(TOP)
        chosen = choose(logits)
        signals = {}
        for name, signal in self._signals.items():
            signals[name] = signal.value(Seen(top.values, hidden, step.captured.get(name)))
        parts = {
            "token": chosen,
            "logprob": logits.gather(0, chosen[None]) - logits.logsumexp(-1),
            **signals,
            "top_tokens": top.indices,
            "top_logits": top.values,
        }
        if detector is not None:
            inputs = [signals[name].float() for name in detector.settings.signals]
            inputs = torch.stack(inputs) if inputs else hidden.new_zeros(0, dtype=torch.float32)
            embedding = step.embeddings[detector.settings.site].float()
            p, state = detector.step(inputs[None], embedding[None], self._state)
            parts["gdm"] = p[0]
            parts["distrusted"] = detector.distrusts(p)
        numbers = _on_host(parts)
        logprob = numbers["logprob"][0]
        measured = {name: numbers[name][0] for name in self._signals}
        if not (math.isfinite(logprob) and math.isfinite(measured["margin"])):
            self._raise_not_finite(step)
        token = Token(
            token=int(numbers["token"][0]),
            k=step.k,
            margin=measured["margin"],
            logprob=logprob,
            top_tokens=[int(number) for number in numbers["top_tokens"]],
            top_logits=numbers["top_logits"],
            embeddings=step.embeddings,
            attended=step.attended,
            signals=measured,
            selected=step.selected,
            scores=step.scores,
        )
        self._inputs[id(token)] = chosen[None]
        if detector is not None:
            token.gdm = tuple(numbers["gdm"])
            token.distrusted = bool(numbers["distrusted"][0])
            self._next_states[id(token)] = state
        return token

    def accept(self, token: Token) -> Tensor:
        """Append a committed token, with the text that it adds to the answer, to the trace.

        Returns the token's id [1] on the device, which the next step passes.
        """
        following = self._inputs[id(token)]
        self._inputs.clear()
        if self._detector is not None:
            self._state = self._next_states[id(token)]
            self._next_states.clear()
        generation = self._generation
        generation.trace.append(token)
        if token.token in self._reader.stop_tokens:
            generation.finish = "eos"
        else:
            token.text = self._pieces.add(token.token)
        return following

    def _raise_not_finite(self, step: Step) -> None:
        """Raise :class:`NotFiniteError`, naming the first layer whose output is not finite."""
        layer = self._reader.first_not_finite(lambda: step.state.run([step.state.plan(step.tokens, step.budget)]))
        trace = self._generation.trace
        raise NotFiniteError(
            f"reader {self._reader.settings.name} gave logits that are not finite at step {len(trace)} of an "
            f"answer, first in layer {layer}; try reader.dtype=float32, or check the weights",
            trace,
        )


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Copy the numbers of small tensors to lists, by name, with one transfer from the device."""
    joined = torch.cat([tensor.double().flatten() for tensor in tensors.values()])
    numbers = iter(joined.tolist())
    return {name: list(islice(numbers, tensor.numel())) for name, tensor in tensors.items()}
