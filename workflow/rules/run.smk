"""What a run is: its config, and everything that it takes from outside, written down beside its results."""


# No stage depends on it: a run that grows would hide from Snakemake what else has changed behind it.
rule run_config:
    output:
        f"{OUT}/run.yaml",
    log:
        f"{LOGS}/run_config.log",
    benchmark:
        f"{MEASURED}/run_config.tsv"
    priority: 100
    localrule: True
    params:
        code=CODE["run_config"],
        config=IDENTITY,
    script:
        "../scripts/run_config.py"


rule manifest:
    input:
        config=rules.run_config.output,
        files=INPUTS,
    output:
        f"{OUT}/manifest.json",
    log:
        f"{LOGS}/manifest.log",
    benchmark:
        f"{MEASURED}/manifest.tsv"
    localrule: True
    params:
        code=CODE["manifest"],
    script:
        "../scripts/manifest.py"
