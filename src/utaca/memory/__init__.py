"""Block memory: a document read once and sealed, and the branches that decode from it."""

from utaca.memory.block_memory import BlockMemory
from utaca.memory.branch import Branch
from utaca.memory.prefill import prefill

__all__ = ["BlockMemory", "Branch", "prefill"]
