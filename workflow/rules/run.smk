"""What a run is: its config, and everything that it takes from outside, written down beside its results."""


# No stage depends on it: a run that grows would hide from Snakemake what else has changed behind it.
rule run_config:
    output:
        f"{OUT}/run.yaml",
    log:
        f"{LOGS}/run_config.log",
    benchmark:
        f"{BENCHMARKS}/run_config.tsv"
    priority: 100
    localrule: True
    conda:
        "../../environment.yml"
    params:
        code=code_of("run_config"),
        config=IDENTITY,
    script:
        "../scripts/run_config.py"


rule manifest:
    input:
        config=rules.run_config.output,
        files=lambda wildcards: outside(),
        # It names the commit that made the tables.
        results=RESULTS,
    output:
        f"{OUT}/manifest.json",
    log:
        f"{LOGS}/manifest.log",
    benchmark:
        f"{BENCHMARKS}/manifest.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        code=code_of("manifest"),
    script:
        "../scripts/manifest.py"
