"""Decoding under compact budgets: what the detector learns from and is measured on."""


rule decode_trajectories:
    input:
        documents=f"{OUT}/documents/{{split}}.parquet",
        reader=plan.reader_files,
    output:
        plan.trajectories,
    log:
        f"{LOGS}/decode_trajectories/{{split}}-{{shard}}.log",
    benchmark:
        f"{BENCHMARKS}/decode_trajectories/{{split}}-{{shard}}.tsv"
    conda:
        "../../environment.yml"
    resources:
        **needs.decodes(lambda wildcards: needs.split_work(wildcards.split)),
    params:
        code=digests.of("decode_trajectories"),
        reader=plan.reader,
        shards=lambda wildcards: plan.size(wildcards.split).shards,
        together=SETTINGS.generation.together,
        journal=f"{OUT}/journal/trajectories",
        budgets=lambda wildcards: plan.size(wildcards.split).budgets,
        paths=lambda wildcards: IDENTITY["scale"][wildcards.split]["paths"],
        evidence=lambda wildcards: plan.size(wildcards.split).evidence,
        recorded=IDENTITY["trajectories"],
        signals=SETTINGS.recorded,
    script:
        "../scripts/decode_trajectories.py"
