"""The whole workflow on a real Slurm of this machine, against the same run without one."""

import csv
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import snakemake
from conftest import copy_checkout
from slurm import Slurm

RUN = ("results/tables", "--config", "scale=smoke")
TIMED = re.compile(r"seconds_per_token|end_to_end_s|prefill_s|peak_gib")
"""How the columns begin that say what decoding took; the table `resources` says nothing else."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    if not os.environ.get("UTACA_SLURM"):
        pytest.skip("takes ten minutes; run it with: make slurm")
    found = Slurm()
    yield found
    found.close()


def contents(folder: Path) -> dict[str, list[list[str]]]:
    """The cells of a run's tables and figures, as they are written, without what decoding took."""
    found = {}
    for path in sorted((folder / "results" / "smoke").glob("[tf]*s/*.csv")):
        if path.stem != "resources":
            with path.open(encoding="utf-8", newline="") as file:
                columns = list(zip(*csv.reader(file), strict=True))
            found[path.stem] = [list(column) for column in columns if not TIMED.match(column[0])]
    return found


def test_the_slurm_profile_makes_the_tables_of_a_local_run(cluster: Slurm, tmp_path: Path) -> None:
    local, submitted = (copy_checkout(tmp_path / name) for name in ("local", "submitted"))
    done = snakemake(local, "--cores", "2", *RUN)
    assert done.returncode == 0, done.stdout
    # A cluster of one machine keeps no accounts, and its jobs are short.
    options = ["--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "5"]
    options += ["--slurm-no-account", "--slurm-keep-successful-logs"]
    profile = ["--workflow-profile", "profiles/slurm"]
    done = snakemake(submitted, *profile, *options, *RUN, **cluster.variables)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("has been submitted with SLURM jobid") >= 40, "few rules are local"
    found = contents(submitted)
    assert len(found) > 20
    assert all(found.values())
    assert found == contents(local)
