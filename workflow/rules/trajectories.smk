"""Decoding under compact budgets: what the detector learns from and is measured on."""


rule trajectories:
    input:
        [part for parts in TRAJECTORIES.values() for part in parts],
    localrule: True


rule decode_trajectories:
    input:
        documents=f"{OUT}/documents/{{split}}.parquet",
        reader=READER_FILES,
        modules=MODULES["decode_trajectories"],
    output:
        f"{OUT}/trajectories/{{split}}/part-{{shard}}.parquet",
    log:
        f"{LOGS}/decode_trajectories/{{split}}-{{shard}}.log",
    benchmark:
        f"{BENCHMARKS}/decode_trajectories/{{split}}-{{shard}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        gpu=GPU,
    params:
        reader=READER,
        shards=lambda wildcards: SCALE[wildcards.split]["shards"],
        journal=f"{OUT}/journal/trajectories",
        budgets=lambda wildcards: SCALE[wildcards.split]["budgets"],
        recorded=IDENTITY["trajectories"],
    script:
        "../scripts/decode_trajectories.py"
