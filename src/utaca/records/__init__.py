"""Data contracts: what every stage writes and reads."""

from utaca.records.progress import progress
from utaca.records.schemas import CORRECT, HALLUCINATED, SCHEMAS, UNKNOWN, trajectory_schema
from utaca.records.tables import atomic_path, check_source, read, rows, write

__all__ = [
    "CORRECT",
    "HALLUCINATED",
    "SCHEMAS",
    "UNKNOWN",
    "atomic_path",
    "check_source",
    "progress",
    "read",
    "rows",
    "trajectory_schema",
    "write",
]
