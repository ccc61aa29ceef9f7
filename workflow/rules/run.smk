"""What a run is: its config, and everything that it takes from outside, written down with its results."""


# No stage depends on it: a run that grows would hide from Snakemake what else has changed behind it.
rule run_config:
    output:
        report(
            f"{OUT}/run.yaml",
            caption="../report/config.rst",
            category=OF_RUN,
            labels={"shows": "Every key of the config", "as": "YAML"},
        ),
    log:
        f"{LOGS}/run_config.log",
    benchmark:
        f"{BENCHMARKS}/run_config.tsv"
    priority: 100
    localrule: True
    conda:
        "../../environment.yml"
    params:
        code=digests.of("run_config"),
        config=IDENTITY,
    script:
        "../scripts/run_config.py"


rule manifest:
    input:
        config=rules.run_config.output,
        files=lambda wildcards: plan.outside(),
        # It names the commit that made the tables.
        results=reporting.results,
    output:
        report(
            f"{OUT}/manifest.json",
            caption="../report/manifest.rst",
            category=OF_RUN,
            labels={"shows": "What the run takes from outside", "as": "JSON"},
        ),
    log:
        f"{LOGS}/manifest.log",
    benchmark:
        f"{BENCHMARKS}/manifest.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        code=digests.of("manifest"),
    script:
        "../scripts/manifest.py"
