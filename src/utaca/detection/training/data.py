"""Convert labelled trajectories to the sequences of tokens that a detector learns from or is measured on."""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch.nn import functional

from utaca.errors import UserError
from utaca.records.schemas import CORRECT, HALLUCINATED, TEMPLATE, embedding_column
from utaca.settings import schema

KEYS = ["document", "budget", "step"]
"""The columns that identify a token of trajectories."""


class Packed(NamedTuple):
    """Packed sequences, the longest first: the tokens of step 0 of all sequences, then the tokens of step 1 and so on.

    The tensors of S batches side by side are [S, M, ...]. A batch with fewer tokens at a step than another is padded
    at that step: signals and embedding with 0, label with -1.
    """

    signals: torch.Tensor  # [M, number of signals] float32
    embedding: torch.Tensor  # [M, D] float32
    label: torch.Tensor  # [M] int64, -1 if the labeller failed or the token is padding
    position: torch.Tensor  # [M] int64, the token's row in the flat tensors of Sequences; n for padding
    sizes: list[int]  # number of tokens at each step; the numbers add up to M


@dataclass(frozen=True)
class Sequences:
    """Trajectories, one for each document and budget, with the inputs and targets of a detector of given settings.

    The tokens are sorted by document, budget and step; :func:`joined` concatenates two sets. The ``n`` tokens of all
    ``N`` trajectories are concatenated in flat tensors, so that padding costs no memory and embeddings keep the float16
    of their file. Each flat tensor ends in one extra row, which represents padding.
    """

    document: tuple[str, ...]  # N
    budget: tuple[int, ...]  # N
    length: torch.Tensor  # [N] int64
    position: torch.Tensor  # [N, T] int64, row of each token in the flat tensors; n for padding
    step: np.ndarray  # [n] int32
    top10: np.ndarray  # [n, 10] float32, the ten largest logits
    logprob: np.ndarray  # [n] float32, log-probability of the token
    signals: torch.Tensor  # [n + 1, number of signals] float32
    embedding: torch.Tensor  # [n + 1, D] float16; D is 0 for detectors without embedding
    label: torch.Tensor  # [n + 1] int64, -1 if the labeller failed
    needed: np.ndarray  # [n] int8, 1 if the expanded pass gives another token, 0 if not, -1 if not recorded
    value: np.ndarray  # [n] bool, whether the token belongs to a value; all False if settings.label is "needed"

    def __len__(self) -> int:
        return len(self.document)

    @property
    def width(self) -> int:
        """D, the width of an embedding."""
        return self.embedding.shape[1]

    @property
    def n_tokens(self) -> int:
        """Number of tokens, including those without a label."""
        return len(self.step)

    @property
    def n_failed(self) -> int:
        """Number of tokens that the labeller failed on; loss and metrics leave them out."""
        return int((self.label[:-1] < 0).sum())

    @property
    def labels(self) -> np.ndarray:
        """Labels [n] int64 of the tokens in flat order, -1 if the labeller failed."""
        return self.label[:-1].numpy()

    def padded(self, indices: torch.Tensor, chain: int = 1) -> torch.Tensor:
        """The places of the tokens of the sequences ``indices`` [..., B] in the flat tensors, int64 [..., C, T].

        Every ``chain`` sequences are concatenated into one, in their order, so that C is B / ``chain``, rounded up.
        Shorter concatenations are padded at their end with n, the place of the padding.
        """
        position = self.position[indices]
        if chain > 1:
            lacking = -indices.shape[-1] % chain
            position = functional.pad(position, (0, 0, 0, lacking), value=self.n_tokens)
            position = position.unflatten(-2, (-1, chain)).flatten(-2)
            # Move the padding between concatenated sequences to the end.
            is_padding = position == self.n_tokens
            position = position.gather(-1, is_padding.sort(dim=-1, stable=True).indices)
        longest = (position < self.n_tokens).sum(-1).max()
        return position[..., : int(longest)]

    def batch(self, indices: torch.Tensor, chain: int = 1) -> Packed:
        """Pack the sequences ``indices`` [B], chained as in :meth:`padded`; [S, B] give S batches side by side."""
        padded = self.padded(indices, chain)  # [..., C, T]
        longest = padded.shape[-1]
        n_tokens = (padded < self.n_tokens).sum(-1)
        length, order = n_tokens.sort(dim=-1, descending=True, stable=True)  # [..., C]
        longest_first = padded.gather(-2, order[..., None].expand_as(padded))
        # The number of sequences that have a token at each step, [T]; of batches side by side, in the fullest of them.
        has_token = length[..., None] > torch.arange(longest)
        sizes = has_token.sum(-2).view(-1, longest).amax(0)
        # The step of each packed token [M], and the row of its sequence in ``longest_first``: 0, 1, ... in each step.
        step = torch.arange(len(sizes)).repeat_interleave(sizes)
        first_of_step = sizes.cumsum(0) - sizes
        row = torch.arange(len(step)) - first_of_step[step]
        position = longest_first[..., row, step]
        return Packed(
            self.signals[position],
            self.embedding[position].float(),
            self.label[position],
            position,
            sizes.tolist(),
        )

    def split(self, size: int = 256, chain: int = 1) -> tuple[torch.Tensor, ...]:
        """Indices of all sequences, in tensors of ``size`` of them (the last may have fewer).

        The indices ascend, or for chains have a fixed random order: neighbours are answers about one document, and a
        chain should contain several documents.
        """
        order = torch.arange(len(self))
        if chain > 1:
            order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        return order.split(size)


def columns(settings: schema.DetectorSettings) -> list[str]:
    """Names of the columns of trajectories that :func:`sequences` needs for a detector of these settings.

    Embeddings, which are most of a file, are among them only if the detector reads them.
    """
    embedding = [embedding_column(settings.site)] if settings.embedding else []
    return [*KEYS, "token", "logprob", "top10", "expanded_token", *settings.signals, *embedding]


def sequences(trajectories: pa.Table, labels: pa.Table | None, settings: schema.DetectorSettings) -> Sequences:
    """Convert trajectories and their labels to the inputs and targets of a detector of these settings.

    ``trajectories`` follows :func:`utaca.records.trajectory_schema`, but needs only its :func:`columns`; ``labels``
    follows the schema "labels". A detector with ``settings.label`` "needed" learns from trajectories only, and
    ``labels`` may be None: the label of a token is 0 if the expanded pass gives another token, 1 if it gives the same.
    Raises :class:`UserError` if the two tables do not hold exactly the same tokens, if a trajectory has a gap or a
    number that is not finite, or if the trajectories lack a column that the detector needs.
    """
    if not trajectories.num_rows:
        raise UserError("the trajectories have no tokens; decode the split again with at least one document")
    missing = sorted(set(columns(settings)) - set(trajectories.column_names))
    if missing:
        raise UserError(
            f"the trajectories have no {missing[0]}; add its site to trajectories.sites, then decode the trajectories "
            "again"
        )
    order, keyed = _sorted(trajectories, "trajectories")
    # 1 if the expanded pass gives another token, 0 if it gives the same, -1 if there was no such pass.
    needed = pc.cast(pc.not_equal(trajectories["token"], trajectories["expanded_token"]), pa.int8())
    needed = pc.fill_null(needed, -1).to_numpy()[order]
    if settings.label == "judged":
        label, value = _judged(keyed, labels)
    elif (needed < 0).any():
        raise UserError(
            f"{_token(keyed, int((needed < 0).argmax()))} was not decoded with an expanded budget, which label=needed "
            "requires; set trajectories.expanded, then decode the split again"
        )
    else:
        label = np.where(needed == 1, HALLUCINATED, CORRECT).astype(np.int64)
        value = np.zeros(len(label), dtype=bool)

    n = keyed.num_rows
    starts = _starts(keyed)
    length = np.diff(np.r_[starts, n])
    offset = np.arange(length.max())
    # Row i has the places of trajectory i's tokens, which are adjacent in the sorted table, and then padding.
    position = np.where(offset < length[:, None], starts[:, None] + offset, n)

    top10, signals, embedding = _inputs(trajectories, order, settings)
    logprob = pc.fill_null(trajectories["logprob"], math.nan).to_numpy()[order]
    of_logits = np.isfinite(top10).all(axis=1) & np.isfinite(logprob)
    finite = np.isfinite(signals[:-1]).all(axis=1) & of_logits & _finite_rows(embedding[:-1])
    if not finite.all():
        raise UserError(
            f"{_token(keyed, int(finite.argmin()))} has a signal, logit or embedding that is not finite; "
            "decode the split again, in float32 if it was bfloat16"
        )
    return Sequences(
        document=tuple(keyed["document"].take(pa.array(starts)).to_pylist()),
        budget=tuple(keyed["budget"].to_numpy()[starts].tolist()),
        length=torch.from_numpy(length),
        position=torch.from_numpy(position),
        step=keyed["step"].to_numpy().astype(np.int32),
        top10=top10,
        logprob=logprob,
        signals=torch.from_numpy(signals),
        embedding=torch.from_numpy(embedding),
        label=torch.from_numpy(np.append(label, -1)),
        needed=needed,
        value=value,
    )


def _starts(keyed: pa.Table) -> np.ndarray:
    """Row [N] of the first token of each trajectory in a table that is sorted by :data:`KEYS`.

    Raises :class:`UserError` if the steps of a trajectory have a gap.
    """
    document = pc.dictionary_encode(keyed["document"].combine_chunks()).indices.to_numpy()
    budget = keyed["budget"].to_numpy()
    step = keyed["step"].to_numpy()
    # Whether each token but the first is of another trajectory than the token before it.
    begins = (document[1:] != document[:-1]) | (budget[1:] != budget[:-1])
    gaps = np.flatnonzero(~begins & (np.diff(step) != 1))
    if len(gaps):
        raise UserError(f"the tokens are not consecutive at {_token(keyed, gaps[0] + 1)}; decode the split again")
    return np.flatnonzero(np.r_[True, begins])


def _inputs(
    trajectories: pa.Table, order: np.ndarray, settings: schema.DetectorSettings
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``top10``, ``signals`` and ``embedding`` of :class:`Sequences`, with the table's rows in ``order`` [n]."""
    n = len(order)
    top10 = _lists(trajectories["top10"], order, "top10")[:-1]
    signals = np.zeros((n + 1, len(settings.signals)), np.float32)
    for place, name in enumerate(settings.signals):
        signals[:-1, place] = pc.fill_null(trajectories[name], math.nan).to_numpy()[order]
    if not settings.embedding:
        return top10, signals, np.zeros((n + 1, 0), np.float16)
    column = embedding_column(settings.site)
    return top10, signals, _lists(trajectories[column], order, column)


def joined(first: Sequences, second: Sequences) -> Sequences:
    """Concatenate two sets of trajectories for the same settings.

    Raises :class:`UserError` if a document is in both sets, or if the embeddings of the sets differ in width.
    """
    shared = sorted({*first.document} & {*second.document})
    if shared:
        raise UserError(f"document {shared[0]} is in both sets of trajectories; give one of them another name")
    if first.width != second.width:
        raise UserError(
            f"embeddings have width {first.width} in one set of trajectories and {second.width} in another; decode "
            "both with the same reader"
        )
    n_tokens = first.n_tokens + second.n_tokens  # also the place of padding in the result
    longest = max(first.position.shape[1], second.position.shape[1])

    def position_in_result(part: Sequences, n_before: int) -> torch.Tensor:
        """``position`` of a set [N, longest], for its tokens after ``n_before`` others."""
        position = torch.where(part.position < part.n_tokens, part.position + n_before, n_tokens)
        return functional.pad(position, (0, longest - position.shape[1]), value=n_tokens)

    return Sequences(
        document=(*first.document, *second.document),
        budget=(*first.budget, *second.budget),
        length=torch.cat([first.length, second.length]),
        position=torch.cat([position_in_result(first, 0), position_in_result(second, first.n_tokens)]),
        step=np.concatenate([first.step, second.step]),
        top10=np.concatenate([first.top10, second.top10]),
        logprob=np.concatenate([first.logprob, second.logprob]),
        # The last row of the first set represents padding, as that of the second does.
        signals=torch.cat([first.signals[:-1], second.signals]),
        embedding=torch.cat([first.embedding[:-1], second.embedding]),
        label=torch.cat([first.label[:-1], second.label]),
        needed=np.concatenate([first.needed, second.needed]),
        value=np.concatenate([first.value, second.value]),
    )


def about(table: pa.Table, documents: Collection[str]) -> pa.Table:
    """Select the rows that belong to ``documents`` from a table of trajectories or labels."""
    return table.filter(pc.is_in(table["document"], pa.array(sorted(documents))))


def _judged(keyed: pa.Table, labels: pa.Table | None) -> tuple[np.ndarray, np.ndarray]:
    """The labeller's labels [n] int64 of the tokens of ``keyed`` (:func:`_sorted`), -1 if it failed.

    The second result [n] bool says whether each token belongs to a value. Raises :class:`UserError` if ``labels`` are
    None, or not of exactly these tokens.
    """
    if labels is None:
        raise UserError("this detector learns from judged labels, but there are none; label the split first")
    order, label_keyed = _sorted(labels, "labels")
    if not keyed.equals(label_keyed):
        raise UserError(_mismatch(keyed, label_keyed))
    label = pc.fill_null(labels["label"], -1).to_numpy()[order].astype(np.int64)
    wrong = np.flatnonzero((label < -1) | (label > 2))
    if len(wrong):
        raise UserError(f"{_token(keyed, wrong[0])} has label {label[wrong[0]]}; labels are 0, 1, 2 or null")
    return label, pc.not_equal(labels["source"], TEMPLATE).to_numpy()[order]


def _sorted(table: pa.Table, name: str) -> tuple[np.ndarray, pa.Table]:
    """Sort a table of trajectories or labels by :data:`KEYS`.

    Returns the row numbers [n] in that order, and the table of keys and tokens, sorted. Raises :class:`UserError`,
    which calls the table ``name``, if two rows have the same keys.
    """
    keyed = table.select([*KEYS, "token"])
    order = pc.sort_indices(keyed, sort_keys=[(key, "ascending") for key in KEYS])
    keyed = keyed.take(order).combine_chunks()
    if keyed.num_rows > 1:
        head = keyed.slice(0, keyed.num_rows - 1)
        tail = keyed.slice(1)
        same = np.logical_and.reduce([pc.equal(head[key], tail[key]).to_numpy() for key in KEYS])
        if same.any():
            raise UserError(f"the {name} have {_token(keyed, int(same.argmax()))} twice; make them again")
    return order.to_numpy(), keyed


def _lists(column: pa.ChunkedArray, order: np.ndarray, name: str) -> np.ndarray:
    """Convert a column of lists of one size to an array [n + 1, size].

    Row i is the list of row ``order[i]``; the extra last row, for padding, is 0. ``name`` is for the error. The array
    is filled chunk by chunk, because a copy of the whole column would be large.
    """
    if not pa.types.is_fixed_size_list(column.type) or column.null_count:
        raise UserError(
            f"column {name} of the trajectories must have a list of the same length for every token; decode the "
            "trajectories again"
        )
    size = column.type.list_size
    place = np.empty_like(order)  # of each row of the column, in the result
    place[order] = np.arange(len(order), dtype=order.dtype)
    rows = np.zeros((len(order) + 1, size), pa.array([], column.type.value_type).to_numpy().dtype)
    done = 0  # rows of the column so far
    for chunk in column.chunks:
        values = chunk.flatten().to_numpy(zero_copy_only=False)
        rows[place[done : done + len(chunk)]] = values.reshape(-1, size)
        done += len(chunk)
    return rows


def _finite_rows(values: np.ndarray) -> np.ndarray:
    """Whether all numbers of each row are finite: boolean [n] of ``values`` [n, D]."""
    # The largest or least value of a row with an infinity or NaN is not finite; a mask of all elements would be large.
    return np.isfinite(values.max(axis=1, initial=0)) & np.isfinite(values.min(axis=1, initial=0))


def _token(keyed: pa.Table, row: int) -> str:
    """Name the token in a row of ``keyed`` by its keys, for messages."""
    document, budget, step = (keyed[key][int(row)].as_py() for key in KEYS)
    return f"step {step} of document {document} under budget {budget}"


def _mismatch(trajectories: pa.Table, labels: pa.Table) -> str:
    """The message for labels that do not match their trajectories: it says which tokens only one of the tables has.

    Both are tables of keys and tokens, as :func:`_sorted` returns them.
    """
    for name, other_name, table, other in [
        ("trajectories", "labels", trajectories, labels),
        ("labels", "trajectories", labels, trajectories),
    ]:
        unmatched = table.join(other.select(KEYS), keys=KEYS, join_type="left anti")
        if unmatched.num_rows:
            unmatched = unmatched.sort_by([(key, "ascending") for key in KEYS])
            return (
                f"labels do not match their trajectories: {unmatched.num_rows} tokens are in the {name} but not in the "
                f"{other_name}, first {_token(unmatched, 0)}; label the split again"
            )
    # Both have the same keys, so a token differs.
    differs = pc.not_equal(trajectories["token"], labels["token"]).to_numpy()
    return (
        f"labels do not match their trajectories: {_token(trajectories, int(differs.argmax()))} is another token in "
        "the labels; label the split again"
    )
