"""Decoding under compact budgets: what the detector learns from and is measured on."""


rule trajectories:
    input:
        PLAN.stage("trajectories"),
    localrule: True


rule decode_trajectories:
    input:
        documents=f"{OUT}/documents/{{split}}.parquet",
        reader=PLAN.reader_files,
    output:
        f"{OUT}/trajectories/{{split}}/part-{{shard}}.parquet",
    log:
        f"{LOGS}/decode_trajectories/{{split}}-{{shard}}.log",
    benchmark:
        f"{MEASURED}/decode_trajectories/{{split}}-{{shard}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        **PLAN.decodes(lambda wildcards: PLAN.trajectory_work(wildcards.split)),
    params:
        code=CODE["decode_trajectories"],
        reader=PLAN.reader,
        shards=lambda wildcards: PLAN.size(wildcards.split).shards,
        journal=f"{OUT}/journal/trajectories",
        budgets=lambda wildcards: PLAN.size(wildcards.split).budgets,
        evidence=lambda wildcards: PLAN.size(wildcards.split).evidence,
        recorded=IDENTITY["trajectories"],
    script:
        "../scripts/decode_trajectories.py"
