"""The table of what the endpoints were needed for."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records.logs import stage_log
from utaca.reporting.tables import endpoints, save
from utaca.settings.checks import ROLES, load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    config = load(snakemake.config)
    usage = {role: snakemake.input[role] for role in ROLES}
    save(endpoints(usage, config), Path(snakemake.output[0]).parent)
