"""The list of the paper's tables: what shows the same here, what was run so far, and whether the two agree."""

from pydantic import Field

from utaca.data_files import DataFile, read


class PaperTable(DataFile):
    """A table of the paper.

    ``label`` is that of its LaTeX source, "" for what the paper says in words. ``targets`` are names of tables here,
    ``figures`` keys of ``data/paper.yaml`` that hold its figures, none where it has no figures. ``run`` says what was
    run so far, and ``agrees`` whether the two agree ("": nothing is known), both in Markdown.
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
    """The paper's tables in its order; raises :class:`utaca.errors.UserError` if the list is malformed."""
    return read("paper_tables.yaml", PaperTables).tables


def targets() -> tuple[str, ...]:
    """The names of all tables here that show one of the paper's, each once, in the order of the list."""
    names: dict[str, None] = {}
    for table in listed():
        names.update(dict.fromkeys(table.targets))
    return tuple(names)
