"""What the default profile has Snakemake do: jobs with a GPU wait for each other, and a failed job stops no other."""

import re
import shutil
from pathlib import Path

import pytest
from commands import snakemake
from conftest import ROOT

_SNAKEFILE = """
rule all:
    input:
        expand("{name}.after", name=["a", "bad", "c", "d"]),
        "host.txt",


rule decode:
    output:
        "{name}.txt",
    resources:
        gpu=1,
    shell:
        "echo + >> held; sleep 0.3; echo - >> held; test {wildcards.name} != bad && touch {output}"


rule after:
    input:
        "{name}.txt",
    output:
        "{name}.after",
    shell:
        "touch {output}"


# Without a GPU, as long as any decoding: it runs beside them.
rule host:
    output:
        "host.txt",
    shell:
        "echo h+ >> held; sleep 1; echo h- >> held; touch {output}"
"""


@pytest.mark.parametrize(("gpus", "most"), [(1, 1), (2, 2)])
def test_jobs_with_a_gpu_queue_and_a_failure_stops_what_depends_on_it_alone(
    gpus: int, most: int, tmp_path: Path
) -> None:
    (tmp_path / "Snakefile").write_text(_SNAKEFILE)
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    more = [] if gpus == 1 else ["--resources", f"gpu={gpus}"]
    done = snakemake(tmp_path, "--cores", "4", *more)
    assert done.returncode == 1
    made = {path.name for path in tmp_path.iterdir() if path.suffix in {".txt", ".after"}}
    assert made == {f"{name}.{kind}" for name in "acd" for kind in ("txt", "after")} | {"host.txt"}, done.stdout
    held = (tmp_path / "held").read_text().split()
    at_once = [held[: n + 1].count("+") - held[: n + 1].count("-") for n in range(len(held))]
    assert max(at_once) == most
    assert held.count("+") == 4, "a failed job is not tried again"
    assert {"+", "-"} & {*held[held.index("h+") : held.index("h-")]}, "a job without a GPU runs beside them"
    assert "At least one job did not complete successfully" in done.stdout


def test_every_rule_that_decodes_asks_for_the_gpu() -> None:
    """By the resources that rules are given where this machine has one; ``decodes`` is in workflow/needs.py."""
    rules = {}
    for path in (ROOT / "workflow" / "rules").glob("*.smk"):
        for name, body in re.findall(
            r"^rule (\w+):\n((?:(?: .*)?\n)*)", path.read_text(encoding="utf-8"), re.MULTILINE
        ):
            if script := re.search(r'"\.\./scripts/(\w+)\.py"', body):
                rules[name] = script[1], "**needs.decodes(" in body
    loads = {
        name for name, (script, _) in rules.items()
        if re.search(r"load_reader|\bprepare\(", (ROOT / "workflow" / "scripts" / f"{script}.py").read_text("utf-8"))
    }  # fmt: skip
    assert {"decode_trajectories", "generate"} <= loads
    assert loads == {name for name, (_, decodes) in rules.items() if decodes}
