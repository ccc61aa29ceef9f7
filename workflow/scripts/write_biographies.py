"""Biographies of the test split, their narratives written by the writer endpoint."""

from typing import TYPE_CHECKING, Any

from utaca.biographies.dataset import biographies, drafts
from utaca.endpoints.writer import write_narratives
from utaca.records.logs import stage_log
from utaca.records.tables import write
from utaca.settings import schema
from utaca.settings.checks import build, digest

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    params = snakemake.params
    writer = build(schema.Endpoint, snakemake.config["writer"], "writer")
    asked = [(draft.person.name, draft.facts) for draft in drafts("test", params.number, params.seed)]
    used: list[dict[str, Any]] = []
    people = [(person, person, facts) for person, facts in asked]
    narratives = write_narratives(people, writer, snakemake.config["answers"], used)
    rows = biographies(
        "test", params.number, params.seed, write=lambda person, facts: narratives[person], writer=writer.model
    )
    write(snakemake.output.biographies, "biographies", rows, config=digest(dict(params.items())))
    write(snakemake.output.usage, "usage", used, config=digest(dict(params.items())))
