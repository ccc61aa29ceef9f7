"""Answers to benchmarks that ship, so that their tables can be made, and their sets enlarged, without decoding again.

``utaca predictions save RUN`` puts what ``results/RUN/journal/tasks`` holds into
``data/predictions/RUN.parquet``; ``restore RUN`` puts it back, and the next run of the same config decodes the rest
alone. A row is a token of an answer: ``piece``, the answer's key in the journal, ``answer`` (schema "answers") and
``trace`` (schema "traces"). Questions, which are the benchmarks' own, and what a token retrieved and ranked are left
out.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from utaca.errors import UserError
from utaca.records import SCHEMAS
from utaca.records.tables import atomic_path

FOLDER = Path("data") / "predictions"
DROPPED = {
    "answer": {"question"},
    "trace": {"top_tokens", "top_logits", "tentative_top_tokens", "tentative_top_logits", "selected", "scores"},
}
_WHOLE = {"answer": SCHEMAS["answers"], "trace": SCHEMAS["traces"]}


def save(journal: Path, path: Path) -> int:
    """Write a journal's answers into one file; how many they are. :class:`UserError` where there is none."""
    pieces = sorted(journal.glob("??/*.parquet"))
    if not pieces:
        raise UserError(f"{journal} holds no answers; decode points on a set of tasks first")
    found = []
    for piece in pieces:
        table = pq.read_table(piece)
        names = pa.array([piece.stem] * len(table))
        kept = {name: _with(table[name].combine_chunks(), _WHOLE[name], DROPPED[name]) for name in _WHOLE}
        found.append(pa.table({"piece": names, **kept}))
    with atomic_path(path) as scratch:
        pq.write_table(pa.concat_tables(found), scratch, compression="zstd", compression_level=19)
    return len(pieces)


def restore(path: Path, journal: Path) -> int:
    """Put the answers of a file into a journal's folder, those apart that it has; how many were put."""
    if not path.is_file():
        raise UserError(f"{path} is missing; {FOLDER} holds {', '.join(p.stem for p in FOLDER.glob('*.parquet'))}")
    table = pq.read_table(path)
    put = 0
    for piece in pc.unique(table["piece"]).to_pylist():
        target = journal / piece[:2] / f"{piece}.parquet"
        if not target.is_file():
            own = table.filter(pc.equal(table["piece"], piece))
            whole = {name: _with(own[name].combine_chunks(), schema, set()) for name, schema in _WHOLE.items()}
            with atomic_path(target) as scratch:
                pq.write_table(pa.table(whole), scratch, compression="zstd")
            put += 1
    return put


def _with(column: pa.StructArray, schema: pa.Schema, without: set[str]) -> pa.StructArray:
    """A column of structs with the fields of ``schema`` but for some; null where it had none."""
    fields = [field for field in schema if field.name not in without]
    had = {field.name for field in column.type}
    values = [column.field(f.name) if f.name in had else pa.nulls(len(column), f.type) for f in fields]
    return pa.StructArray.from_arrays(values, fields=fields, mask=column.is_null())
