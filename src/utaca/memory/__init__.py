"""Block memory: a document read once and sealed, and the branches that decode from it."""

from utaca.memory.blocks import BlockMemory, Layout, prefill
from utaca.memory.branch import Branch, Step, compute, run

__all__ = ["BlockMemory", "Branch", "Layout", "Step", "compute", "prefill", "run"]
