"""Context-management methods: tables of their own settings and of equal budgets, and the figure."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.errors import UserError
from utaca.methods import METHODS
from utaca.records.logs import stage_log
from utaca.reporting import methods
from utaca.reporting.methods_figure import draw
from utaca.reporting.points import points
from utaca.reporting.tables import save
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    config, files, folder = load(snakemake.config), snakemake.input, Path(snakemake.output[0]).parent
    blocks = points(files.block_answers, files.block_scores) if files.block_answers else []
    found = {table: points(files[f"{table}_answers"], files[f"{table}_scores"]) for table in snakemake.params.tables}
    for table, own in found.items():
        if blocks and blocks[0].documents != own[0].documents:
            raise UserError(
                f"{files.block_answers[0]} answers other documents than {files[f'{table}_answers'][0]}; remove the "
                "older of the two and make it again"
            )
        if table == "methods":
            shown = methods.methods(own, blocks, METHODS, config)
        else:
            shown = methods.equal_budgets(own, blocks, config)
        save(shown, folder)
    if "methods" in found:
        draw([point for own in found.values() for point in own], blocks, folder, config)
