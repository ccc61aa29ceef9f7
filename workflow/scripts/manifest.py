"""What a run was made with and from: versions, machine, digests of its inputs."""

import json
from pathlib import Path

from utaca.records import atomic_path
from utaca.records.logs import stage_log
from utaca.runs import record as runs

with stage_log(snakemake.log[0]):
    inputs = [Path(path) for path in snakemake.input.files]
    manifest = runs.manifest(snakemake.config, inputs, Path(snakemake.scriptdir).resolve().parents[1])
    with atomic_path(snakemake.output[0]) as scratch:
        scratch.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
