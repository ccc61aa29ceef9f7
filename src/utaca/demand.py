"""What a job of a run asks of a cluster: a GPU, main memory and time, worked out from the reader's sizes.

Nothing depends on the machine that submits. Memory is what the job checks when it starts (:mod:`utaca.room`), with the
weights and what a process takes. Time is arithmetic at rates that are slow on purpose: a job that is stopped too soon
goes on from its journal in its next try, which asks for more.
"""

from __future__ import annotations

from dataclasses import dataclass

from utaca.errors import UserError
from utaca.readers import files
from utaca.room import Sizes, chunks, document_bytes, whole_bytes
from utaca.settings.schema import Memory, Reader

LARGE = 1_000_000_000
"""Parameters from which on ``reader.device=auto`` stands for a GPU on a cluster."""

FACTS = {"train": 1, "validation": 1, "test": 6}
"""Attributes that a question asks about, by split."""

_PROCESS = {"cpu": 2 << 30, "cuda": 6 << 30}
"""Bytes of main memory of a process with PyTorch; CUDA's libraries are large."""
_SLACK = 1.25
# FLOP/s of products of long passes, bytes/s of passes of a token: a tenth of an H100's, and of what a core does.
_FLOPS, _BYTES = {"cpu": 20e9, "cuda": 50e12}, {"cpu": 1e9, "cuda": 0.5e12}
_LAYER_S = 1e-3
"""Seconds that a layer of a pass takes however small it is."""
_START_MIN = 15


@dataclass(frozen=True)
class Work:
    """What a job decodes: ``documents`` of up to ``length`` tokens, and ``tokens`` of answers about each of them.

    ``points`` answers go on side by side. ``whole`` is how often a document is read by full attention, in as many
    tokens as the reader has positions.
    """

    documents: int
    length: int
    tokens: int
    points: int
    whole: int = 0


@dataclass(frozen=True)
class Model:
    """A reader by its sizes; what it asks for by what it decodes."""

    reader: Reader
    sizes: Sizes
    parameters: int
    positions: int

    @classmethod
    def of(cls, reader: Reader) -> Model:
        """From its files; raises :class:`UserError` where they are not here."""
        config, weights = files.config_file(reader), files.weights(reader)
        if config is None or not weights:
            raise UserError(
                f"a cluster's jobs ask for memory by the weights of reader {reader.name!r}, and {reader.path} is not "
                "here yet; fetch it first, with the same --config: snakemake --cores 1 readers"
            )
        return cls(reader, files.sizes(config), files.parameters(weights), reader.positions or files.positions(config))

    @property
    def device(self) -> str:
        """Where a cluster's jobs decode."""
        if self.reader.device != "auto":
            return self.reader.device
        return "cuda" if self.parameters >= LARGE else "cpu"

    @property
    def item(self) -> int:
        """Bytes of a number."""
        kind = self.reader.dtype
        return 2 if kind == "bfloat16" or (kind == "auto" and self.device == "cuda") else 4

    def memory_bytes(self, work: Work, m: Memory) -> int:
        """Main memory of a job, from above."""
        sizes, item, device = self.sizes, self.item, self.device
        # An adapter is merged in float32, and on a CPU a matrix may be copied to float32.
        weights = self.parameters * (4 if self.reader.adapter else item)
        if device == "cpu" and item < 4:
            weights += 4 * self.parameters
        needed = document_bytes(sizes, m, work.length, item, device, chunks(m))
        if device == "cpu":
            # Each answer that goes on has a copy of the window.
            needed["cpu"] += work.points * (m.n_local + m.block_size) * sizes.layers * sizes.token * item
            if work.whole:
                needed["cpu"] += whole_bytes(sizes, min(work.length, self.positions), item)
        return _PROCESS[device] + int(_SLACK * (weights + needed["cpu"]))

    def minutes(self, work: Work, m: Memory) -> int:
        """Time of a job, from above."""
        sizes, device = self.sizes, self.device
        attended = m.n_init + m.n_local + m.prefill_chunk + m.prefill_budget * m.block_size
        wide = 4 * sizes.layers * sizes.heads * sizes.head_size
        # InfLLM's rule attends twice.
        reading = work.length * (2 * self.parameters + 2 * wide * attended)
        short = min(work.length, self.positions)
        reading += work.whole * short * (2 * self.parameters + wide * short // 2)
        one = self.parameters * self.item / _BYTES[device] + sizes.layers * _LAYER_S
        seconds = work.documents * (reading / _FLOPS[device] + work.tokens * work.points * one)
        return _START_MIN + int(seconds / 60)


def shown_bytes(tokens: int, width: int) -> int:
    """Main memory of a job that learns from the embeddings of ``tokens`` of trajectories at one site, ``width`` numbers
    each: of two bytes as they are read, of four as they are learned from."""
    return _PROCESS["cpu"] + int(_SLACK * tokens * width * 6)
