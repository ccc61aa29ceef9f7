"""Data contracts: what every stage writes and reads."""

from utaca.records.progress import progress
from utaca.records.schemas import SCHEMAS, trajectory_schema
from utaca.records.tables import Origin, atomic_path, check_source, read, reader_of, rows, write

__all__ = [
    "SCHEMAS",
    "Origin",
    "atomic_path",
    "check_source",
    "progress",
    "read",
    "reader_of",
    "rows",
    "trajectory_schema",
    "write",
]
