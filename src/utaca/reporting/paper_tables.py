"""The list of the paper's tables: what shows the same here, what was run so far, and whether the two agree."""

from pydantic import Field

from utaca.data_files import DataFile, read


class PaperTable(DataFile):
    """A table of the paper, and the tables of this project that show the same.

    ``label`` is the table's in the paper's LaTeX source, "" for what the paper says in words. ``targets`` are the names
    of our tables. ``figures`` are the keys of ``data/paper.yaml`` that hold the paper's figures. ``run`` says what was
    run so far, and ``agrees`` whether it agrees with the paper ("": nothing is known); both are Markdown.
    """

    label: str
    title: str
    targets: tuple[str, ...] = Field(min_length=1)
    figures: tuple[str, ...] = ()
    run: str
    agrees: str


class PaperTables(DataFile):
    """Every table of the paper."""

    tables: tuple[PaperTable, ...]


def listed() -> tuple[PaperTable, ...]:
    """The paper's tables in the paper's order; raises :class:`utaca.errors.UserError` if the list is malformed."""
    return read("paper_tables.yaml", PaperTables).tables


def targets() -> tuple[str, ...]:
    """The names of our tables that show one of the paper's, each once, in the order of :func:`listed`."""
    names: dict[str, None] = {}
    for table in listed():
        names.update(dict.fromkeys(table.targets))
    return tuple(names)
