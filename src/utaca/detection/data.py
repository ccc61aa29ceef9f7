"""Labelled trajectories as sequences, and a detector's verdicts on them as rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from utaca.errors import UserError
from utaca.records import SCHEMAS

KEYS = ["document", "budget", "step"]


class Batch(NamedTuple):
    """Sequences side by side, padded at the end: margin and embedding with 0, label with -1."""

    margin: torch.Tensor  # [B, T] float32, logits
    embedding: torch.Tensor  # [B, T, D] float32
    label: torch.Tensor  # [B, T] int64; -1 also where the labeller failed
    position: torch.Tensor  # [B, T] int64, row of the flat tensors; all padding shares the last


@dataclass(frozen=True)
class Sequences:
    """Trajectories, one a (document, budget), in the order of these keys and of the steps within.

    Tokens lie end to end in flat arrays, so that padding costs no memory and embeddings keep the float16 of
    their file; :meth:`batch` pads. Each flat tensor ends in one extra row, the padding.
    """

    document: tuple[str, ...]  # N
    budget: tuple[int, ...]  # N
    length: torch.Tensor  # [N] int64
    position: torch.Tensor  # [N, T] int64, row of the flat tensors; n where padded
    step: np.ndarray  # [n] int32
    top10: np.ndarray  # [n, 10] float32, the ten largest logits
    margin: torch.Tensor  # [n + 1] float32
    embedding: torch.Tensor  # [n + 1, D] float16
    label: torch.Tensor  # [n + 1] int64, -1 where the labeller failed

    def __len__(self) -> int:
        return len(self.document)

    @property
    def width(self) -> int:
        """D, the width of an embedding."""
        return self.embedding.shape[1]

    @property
    def n_tokens(self) -> int:
        """All tokens, failed labels included."""
        return len(self.step)

    @property
    def n_failed(self) -> int:
        """Tokens without a label because the labeller failed; loss and metrics leave them out."""
        return int((self.label[:-1] < 0).sum())

    @property
    def labels(self) -> np.ndarray:
        """[n] int64 labels of the tokens in flat order, -1 where the labeller failed."""
        return self.label[:-1].numpy()

    def batch(self, indices: torch.Tensor) -> Batch:
        """The sequences ``indices`` [B], cropped to the longest of them."""
        position = self.position[indices, : int(self.length[indices].max())]
        return Batch(self.margin[position], self.embedding[position].float(), self.label[position], position)

    def batches(self, size: int = 256) -> Iterator[Batch]:
        """All sequences in order, ``size`` at a time."""
        for indices in torch.arange(len(self)).split(size):
            yield self.batch(indices)


class Verdicts(NamedTuple):
    """A detector's view of the ``n`` tokens of some sequences, in their flat order."""

    uncertain: np.ndarray  # [n] bool, its decision
    score: np.ndarray  # [n] float32, grows with distrust
    probabilities: np.ndarray | None  # [n, 3] float32 hallucinated, correct, unknown


class GivesVerdicts(Protocol):
    """What :func:`detect` needs of a detector or a heuristic."""

    def verdicts(self, sequences: Sequences) -> Verdicts: ...


def sequences(trajectories: pa.Table, labels: pa.Table) -> Sequences:
    """Join trajectories with their labels, token by token.

    ``trajectories`` follows :func:`utaca.records.trajectory_schema`, of which ``document``, ``budget``, ``step``,
    ``token``, ``margin``, ``top10`` and ``embedding`` are used, ``labels`` the schema "labels". Raises
    :class:`UserError` where the two do not hold exactly the same tokens, or a trajectory is broken.
    """
    if not trajectories.num_rows:
        raise UserError("the trajectories hold no token; decode the split again with at least one document")
    order, keyed = _sorted(trajectories, "trajectories")
    label_order, label_keyed = _sorted(labels, "labels")
    if not keyed.equals(label_keyed):
        raise UserError(_mismatch(keyed, label_keyed))

    document = pc.dictionary_encode(keyed["document"].combine_chunks()).indices.to_numpy()
    budget, step = keyed["budget"].to_numpy(), keyed["step"].to_numpy()
    fresh = np.r_[True, (document[1:] != document[:-1]) | (budget[1:] != budget[:-1])]
    gaps = np.flatnonzero(~fresh[1:] & (np.diff(step) != 1))
    if len(gaps):
        raise UserError(f"{_token(keyed, gaps[0] + 1)} does not follow its predecessor by one; decode the split again")
    starts = np.flatnonzero(fresh)
    length = np.diff(np.r_[starts, len(step)])
    offset = np.arange(length.max())
    position = np.where(offset < length[:, None], starts[:, None] + offset, len(step))

    margin = trajectories["margin"].to_numpy()[order].astype(np.float32)
    top10 = _lists(trajectories["top10"], order, "top10")[:-1]
    embedding = _lists(trajectories["embedding"], order, "embedding")
    broken = ~np.isfinite(margin) | ~np.isfinite(top10).all(axis=1) | ~_finite_rows(embedding[:-1])
    if broken.any():
        raise UserError(
            f"{_token(keyed, int(broken.argmax()))} has a margin, logit or embedding that is not finite; "
            "decode the split again, in float32 if it was bfloat16"
        )
    label = pc.fill_null(labels["label"], -1).to_numpy()[label_order].astype(np.int64)
    if len(wrong := np.flatnonzero((label < -1) | (label > 2))):
        raise UserError(f"{_token(keyed, wrong[0])} has label {label[wrong[0]]}; labels are 0, 1, 2 or null")
    return Sequences(
        document=tuple(keyed["document"].take(pa.array(starts)).to_pylist()),
        budget=tuple(budget[starts].tolist()),
        length=torch.from_numpy(length),
        position=torch.from_numpy(position),
        step=step.astype(np.int32),
        top10=top10,
        margin=torch.from_numpy(np.append(margin, np.float32(0))),
        embedding=torch.from_numpy(embedding),
        label=torch.from_numpy(np.append(label, -1)),
    )


def detect(detector: GivesVerdicts, sequences: Sequences, name: str, seed: int) -> pa.Table:
    """Verdicts of a detector or heuristic on fixed traces, as a table of schema "detections".

    One row a token, in the order of ``sequences``; the label is null where the labeller failed, the
    probabilities where there are none. ``name`` and ``seed`` fill the columns ``detector`` and ``seed``.
    """
    uncertain, score, p = detector.verdicts(sequences)
    n, length = sequences.n_tokens, sequences.length.numpy()
    owner = pa.array(np.repeat(np.arange(len(sequences)), length))
    label = sequences.labels
    nothing = pa.nulls(n, pa.float32())
    columns = [
        pa.repeat(pa.scalar(name), n),
        pa.repeat(pa.scalar(seed, pa.int32()), n),
        pa.array(sequences.document, pa.string()).take(owner),
        pa.array(sequences.budget, pa.int32()).take(owner),
        pa.array(sequences.step),
        pa.array(label.astype(np.int8), mask=label < 0),
        pa.array(uncertain),
        pa.array(score),
        *((pa.array(np.ascontiguousarray(column)) for column in p.T) if p is not None else [nothing] * 3),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMAS["detections"])


def _sorted(table: pa.Table, name: str) -> tuple[np.ndarray, pa.Table]:
    """The order by key, and keys and tokens in that order; every key must be unique."""
    keyed = table.select([*KEYS, "token"])
    order = pc.sort_indices(keyed, sort_keys=[(key, "ascending") for key in KEYS])
    keyed = keyed.take(order).combine_chunks()
    if keyed.num_rows > 1:
        head, tail = keyed.slice(0, keyed.num_rows - 1), keyed.slice(1)
        same = np.logical_and.reduce([pc.equal(head[key], tail[key]).to_numpy() for key in KEYS])
        if same.any():
            raise UserError(f"the {name} hold {_token(keyed, int(same.argmax()))} twice; make them again")
    return order.to_numpy(), keyed


def _lists(column: pa.ChunkedArray, order: np.ndarray, name: str) -> np.ndarray:
    """A fixed-size list column as [n + 1, size] in ``order``; the last row is 0."""
    if not pa.types.is_fixed_size_list(column.type) or column.null_count:
        raise UserError(f"column {name} of the trajectories must hold a list of one fixed size a token; decode again")
    size = column.type.list_size
    place = np.empty_like(order)
    place[order] = np.arange(len(order), dtype=order.dtype)
    rows = np.zeros((len(order) + 1, size), column.type.value_type.to_pandas_dtype())
    done = 0
    for chunk in column.chunks:
        rows[place[done : done + len(chunk)]] = chunk.flatten().to_numpy(zero_copy_only=False).reshape(-1, size)
        done += len(chunk)
    return rows


def _finite_rows(values: np.ndarray) -> np.ndarray:
    # An element of infinity or NaN makes the row's largest magnitude so, without a mask as large as the data.
    return np.isfinite(values.max(axis=1)) & np.isfinite(values.min(axis=1))


def _token(keyed: pa.Table, row: int) -> str:
    document, budget, step = (keyed[key][int(row)].as_py() for key in KEYS)
    return f"step {step} of document {document} under budget {budget}"


def _mismatch(trajectories: pa.Table, labels: pa.Table) -> str:
    for name, other, left, right in [
        ("trajectories", "labels", trajectories, labels),
        ("labels", "trajectories", labels, trajectories),
    ]:
        alone = left.join(right.select(KEYS), keys=KEYS, join_type="left anti")
        if alone.num_rows:
            alone = alone.sort_by([(key, "ascending") for key in KEYS])
            return (
                f"labels do not match their trajectories: {alone.num_rows} tokens are in the {name} but not in the "
                f"{other}, first {_token(alone, 0)}; label the split again"
            )
    other = pc.not_equal(trajectories["token"], labels["token"]).to_numpy()
    return (
        f"labels do not match their trajectories: {_token(trajectories, int(other.argmax()))} is another token in "
        "the labels; label the split again"
    )
