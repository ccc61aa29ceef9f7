"""Partition of a text into initial tokens, blocks and local window (InfLLM, arXiv 2402.04617, section 3.1)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Partition of a text by token positions: initial tokens, blocks and local window.

    The first ``n_init`` tokens are always attended to. The tokens after them form blocks of ``block_size``. A token
    also attends to its local window: the last ``n_local`` tokens, itself included, and back to the nearest block edge.
    A block that lies wholly outside the window is far: it is attended to only if it is retrieved.
    """

    n_init: int
    n_local: int
    block_size: int

    @property
    def initial_blocks(self) -> int:
        """Number of blocks (-1, -2, ... before block 0) that the initial tokens fill, the first block in part."""
        return -(-self.n_init // self.block_size)

    @property
    def skipped(self) -> int:
        """Number of positions in the first initial block that lie before the text."""
        return -self.n_init % self.block_size

    def blocks(self, length: int) -> int:
        """Number of whole blocks among the first ``length`` tokens."""
        return max(0, (length - self.n_init) // self.block_size)

    def first_token(self, block: int) -> int:
        """Position of the first token of a block."""
        return self.n_init + block * self.block_size

    def n_far(self, position: int) -> int:
        """Number of blocks that are far for the token at ``position``: all that end before its ``n_local`` tokens."""
        return self.blocks(position + 1 - self.n_local)

    def window_start(self, position: int) -> int:
        """Position of the first token in the window of the token at ``position``; 0 if no block is far.

        The far blocks are the first ones, so the window begins where the last of them ends.
        """
        n_far = self.n_far(position)
        return self.first_token(n_far) if n_far else 0
