"""The table of uncertainty detection along UT-ACA's own answers."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records import check_source
from utaca.records.logs import stage_log
from utaca.reporting import detection
from utaca.reporting.detection_own import detection_own
from utaca.reporting.tables import save
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    config, files = load(snakemake.config), snakemake.input
    check_source(files.detections, files.detected_from)
    for labels, decoded in zip(files.labels, snakemake.params.decoded, strict=True):
        check_source(labels, decoded)
    save(detection_own(files.labels, detection.load(files.detections), config), Path(snakemake.output[0]).parent)
