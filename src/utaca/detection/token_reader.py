"""Read tokens from decoding steps: measure each token's logits and signals, and have a detector judge it.

The verdict has the probabilities of the token's label (hallucinated, correct, unknown), which the paper calls GDM.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import torch
from torch import Tensor

from utaca.detection.detector import Detector, DetectorState
from utaca.detection.signal import Seen
from utaca.detection.signals import SIGNALS
from utaca.readers.attention import Step
from utaca.readers.load import Reader
from utaca.readers.tokenizer import Pieces
from utaca.trace import Generation, NotFiniteError, Token

TOP = 10
"""Number of the most likely tokens whose logits are kept at every step."""


class TokenReader:
    """Reads an answer's tokens, with one device transfer per token, and adds accepted tokens to ``generation``.

    :meth:`read` may be called for several candidates of the next token; :meth:`accept` commits one of them. The
    detector judges each candidate from its LSTM state after the accepted tokens; rejected tokens leave the state as it
    was. The signals of a token are the logit margin, the signals that the detector reads and those that ``measured``
    names; all signals if it is True. ``captures`` maps the names of these signals to their capture functions
    (:class:`utaca.detection.signal.Signal`), for those that have one.
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
        self._pieces = Pieces(reader.tokenizer) if reader.tokenizer is not None else None
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
            # The detector's state after each candidate read, by the Token object's id().
            self._next_states: dict[int, DetectorState] = {}
        # The id [1] of each candidate read, on the device, by the Token object's id(): it is the model's next input,
        # and a copy of it from the host would make the host wait.
        self._inputs: dict[int, Tensor] = {}

    def read(self, step: Step, choose: Callable[[Tensor], Tensor]) -> Token:
        """Measure and judge the token that follows a step; ``choose`` picks the token's id [] from the logits [V].

        Raises :class:`NotFiniteError` if the logits are not finite.
        """
        logits = step.logits
        top = logits.topk(TOP)
        chosen = choose(logits)
        signals = self._measured(step, top.values)
        on_device = {
            "token": chosen,
            "logprob": logits.gather(0, chosen[None]) - logits.logsumexp(-1),
            **signals,
            "top_tokens": top.indices,
            "top_logits": top.values,
        }
        if self._detector is not None:
            p, state = self._judged(step, signals)
            on_device["gdm"] = p[0]
            on_device["distrusted"] = self._detector.distrusts(p)
        numbers = _on_host(on_device)
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
            retrieved=step.retrieved,
            attended=step.attended,
            signals=measured,
            selected=step.selected,
            scores=step.scores,
        )
        self._inputs[id(token)] = chosen[None]
        if self._detector is not None:
            token.gdm = tuple(numbers["gdm"])
            token.distrusted = bool(numbers["distrusted"][0])
            self._next_states[id(token)] = state
        return token

    def _measured(self, step: Step, top_logits: Tensor) -> dict[str, Tensor]:
        """The signals [] of the token that follows a step, by name; ``top_logits`` [TOP] are its largest logits."""
        signals = {}
        for name, signal in self._signals.items():
            signals[name] = signal.value(Seen(top_logits, step.hidden[-1], step.captured.get(name)))
        return signals

    def _judged(self, step: Step, signals: Mapping[str, Tensor]) -> tuple[Tensor, DetectorState]:
        """The detector's probabilities [1, 3] for the token that follows a step, and its state after that token."""
        settings = self._detector.settings
        if settings.signals:
            inputs = torch.stack([signals[name].float() for name in settings.signals])
        else:
            inputs = step.hidden.new_zeros(0, dtype=torch.float32)
        embedding = step.embeddings[settings.site].float()
        return self._detector.step(inputs[None], embedding[None], self._state)

    def accept(self, token: Token) -> Tensor:
        """Commit a token that :meth:`read` returned: append it to the trace, with the text that it adds to the answer.

        All other tokens that were read since the last call are rejected. Sets ``finish`` to "eos" at an end token.
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
        elif self._pieces is not None:
            token.text = self._pieces.add(token.token)
        return following

    def _raise_not_finite(self, step: Step) -> None:
        """Raise :class:`NotFiniteError`, which names the first layer whose output is not finite.

        To find the layer, the step's pass is run again.
        """
        state = step.state
        layer = self._reader.first_not_finite(lambda: state.run([state.plan(step.tokens, step.budget)]))
        trace = self._generation.trace
        raise NotFiniteError(
            f"reader {self._reader.settings.name} gave logits that are not finite at step {len(trace)} of an "
            f"answer, first in layer {layer}; try reader.dtype=float32, or check the weights",
            trace,
        )


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Copy small tensors from the device in one transfer: the numbers of each, in a list, by the tensor's name."""
    joined = torch.cat([tensor.double().flatten() for tensor in tensors.values()])
    numbers = iter(joined.tolist())
    return {name: list(islice(numbers, tensor.numel())) for name, tensor in tensors.items()}
