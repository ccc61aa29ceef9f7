"""Biographies of the test split, their narratives written by the writer endpoint, or by the people of a file."""

from typing import TYPE_CHECKING, Any

from utaca.biographies.dataset import biographies, drafts
from utaca.biographies.handwritten import handwritten
from utaca.judging.writer import write_narratives
from utaca.records.logs import stage_log
from utaca.records.tables import write
from utaca.settings import schema
from utaca.settings.checks import build, digest

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    params = snakemake.params
    used: list[dict[str, Any]] = []
    if params.people:
        rows = handwritten(params.people, params.number)
    else:
        writer = build(schema.Endpoint, snakemake.config["writer"], "writer")
        asked = [(draft.person.name, draft.facts) for draft in drafts("test", params.number, params.seed)]
        people = [(person, person, facts) for person, facts in asked]
        narratives = write_narratives(people, writer, snakemake.config["answers"], used)
        rows = biographies(
            "test", params.number, params.seed, write=lambda person, facts: narratives[person], writer=writer.model
        )
    config = digest(dict(params.items()))
    write(snakemake.output.biographies, "biographies", rows, config=config, made_from=list(snakemake.input))
    write(snakemake.output.usage, "usage", used, config=config)
