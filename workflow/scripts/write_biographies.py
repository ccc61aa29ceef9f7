"""Biographies of the test split, their narratives written by the writer endpoint, or by the people of a file."""

from utaca.biographies.dataset import biographies, drafts
from utaca.biographies.handwritten import handwritten
from utaca.judging.roles import Role
from utaca.judging.writer import write_narratives
from utaca.records.logs import stage_log
from utaca.records.tables import write
from utaca.settings.checks import digest

with stage_log(snakemake.log[0]):
    params = snakemake.params
    writer = Role.of("writer", snakemake.config)
    if params.people:
        rows = handwritten(params.people, params.number)
    else:
        asked = [(draft.person.name, draft.facts) for draft in drafts("test", params.number, params.seed)]
        people = [(person, person, facts) for person, facts in asked]
        narratives = write_narratives(people, writer)
        model = writer.endpoint.model
        rows = biographies(
            "test", params.number, params.seed, write=lambda person, facts: narratives[person], writer=model
        )
    config = digest(dict(params.items()))
    write(snakemake.output.biographies, "biographies", rows, config=config, made_from=list(snakemake.input))
    write(snakemake.output.usage, "usage", writer.used, config=config)
