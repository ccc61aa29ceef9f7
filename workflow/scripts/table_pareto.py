"""The curves of CAS over selected tokens: their points, the area between them, the figure."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records.logs import stage_log
from utaca.reporting import figures
from utaca.reporting.generation import generation, pareto
from utaca.reporting.tables import save
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    config, files, folder = load(snakemake.config), snakemake.input, Path(snakemake.output[0]).parent
    points = generation("test", files.answers, files.scores, config)
    save(pareto(files.answers, files.scores, config), folder)
    if snakemake.params.swept:
        save(replace(points, name="sweep", title="Generation, sweep of budgets"), folder)
    figures.pareto(points.frame, folder, config)
