"""Every context-management method of the paper's long-context table behind one interface."""

from utaca.methods.method import Method, Reading, State
from utaca.methods.registry import METHODS, build

__all__ = ["METHODS", "Method", "Reading", "State", "build"]
