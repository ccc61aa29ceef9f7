"""Decoding under compact budgets: what the detector learns from and is measured on."""


rule decode_trajectories:
    input:
        documents=f"{OUT}/documents/{{split}}.parquet",
        reader=READER_FILES,
    output:
        TRAJECTORIES,
    log:
        f"{LOGS}/decode_trajectories/{{split}}-{{shard}}.log",
    benchmark:
        f"{BENCHMARKS}/decode_trajectories/{{split}}-{{shard}}.tsv"
    conda:
        "../../environment.yml"
    resources:
        **decodes(lambda wildcards: split_work(wildcards.split)),
    params:
        code=code_of("decode_trajectories"),
        reader=READER,
        shards=lambda wildcards: size(wildcards.split).shards,
        together=SETTINGS.generation.together,
        journal=f"{OUT}/journal/trajectories",
        budgets=lambda wildcards: size(wildcards.split).budgets,
        paths=lambda wildcards: IDENTITY["scale"][wildcards.split]["paths"],
        evidence=lambda wildcards: size(wildcards.split).evidence,
        recorded=IDENTITY["trajectories"],
        signals=SETTINGS.recorded,
    script:
        "../scripts/decode_trajectories.py"
