"""Decoding of answers: all operating points of a split side by side, from one prefill a document."""


rule generations:
    input:
        PLAN.stage("generations"),
    localrule: True


# Points of kind `blocks` are decoded from block memory, those of kind `methods` by other methods.
rule generate:
    input:
        documents=f"{OUT}/documents/{{split}}.parquet",
        reader=PLAN.reader_files,
        classifier=lambda wildcards: PLAN.classifier(wildcards.kind),
        detectors=lambda wildcards: PLAN.trigger_files(
            PLAN.points(wildcards.split, wildcards.kind)
        ),
    output:
        answers=f"{OUT}/generations/{{split}}/{{kind}}/answers-{{shard}}.parquet",
        traces=f"{OUT}/generations/{{split}}/{{kind}}/traces-{{shard}}.parquet",
        replays=f"{OUT}/generations/{{split}}/{{kind}}/replays-{{shard}}.parquet",
    log:
        f"{LOGS}/generate/{{split}}-{{kind}}-{{shard}}.log",
    benchmark:
        f"{MEASURED}/generate/{{split}}-{{kind}}-{{shard}}.tsv"
    # Long jobs first, lest one is left alone at the end.
    priority: 1
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        **PLAN.decodes(
            lambda wildcards: PLAN.answer_work(wildcards.split, wildcards.kind)
        ),
    params:
        code=CODE["generate"],
        reader=lambda wildcards: PLAN.decoding(wildcards.kind),
        points=lambda wildcards: plain(PLAN.points(wildcards.split, wildcards.kind)),
        methods=lambda wildcards: PLAN.methods(
            PLAN.points(wildcards.split, wildcards.kind)
        ),
        triggers=lambda wildcards: PLAN.triggers(
            PLAN.points(wildcards.split, wildcards.kind)
        ),
        taken=PLAN.taken,
        replays=lambda wildcards: PLAN.replays(wildcards.split, wildcards.kind),
        together=SETTINGS.generation.together,
        shards=lambda wildcards: PLAN.size(wildcards.split).shards,
        journal=f"{OUT}/journal/generations",
    script:
        "../scripts/generate.py"
