"""The tables and figures of token-level uncertainty detection."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records import check_source
from utaca.records.logs import stage_log
from utaca.reporting import detection, detection_figures
from utaca.reporting.tables import save, save_frame
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    config, folder = load(snakemake.config), Path(snakemake.output[0]).parent
    check_source(snakemake.input.detections, snakemake.input.detected_from)
    data = detection.load(snakemake.input.detections)
    save(detection.detection(data, config), folder)
    save(detection.ablation(data, config), folder)
    if config.trajectories.expanded:
        save(detection.triggers(data, config), folder)
    title = f"{config.reader.name}, labeller {config.labeller.name}, {len(data.documents)} documents"
    for name, frame, plot in [
        ("reliability", detection.reliability_bins(data), detection_figures.reliability),
        ("margins", detection.margin_histogram(data), detection_figures.margins),
    ]:
        save_frame(frame, folder / f"{name}.csv")
        plot(frame, folder, title)
