"""Block memory: a document read once and sealed, and the branches that decode from it."""

from utaca.memory.blocks import BlockMemory, Layout, prefill
from utaca.memory.branch import Branch, Step, run

__all__ = ["BlockMemory", "Branch", "Layout", "Step", "prefill", "run"]
