"""Decoding of answers: all operating points of a split side by side, from one prefill a document."""


# Points of kind `blocks` are decoded from block memory, those of kind `methods` by other methods.
rule generate:
    input:
        documents=f"{OUT}/documents/{{split}}.parquet",
        reader=plan.reader_files,
        classifier=lambda wildcards: plan.classifier_files(plan.points[wildcards.split, wildcards.kind]),
        detectors=lambda wildcards: plan.trigger_files(plan.points[wildcards.split, wildcards.kind]),
    output:
        answers=f"{OUT}/generations/{{split}}/{{kind}}/answers-{{shard}}.parquet",
        traces=f"{OUT}/generations/{{split}}/{{kind}}/traces-{{shard}}.parquet",
    log:
        f"{LOGS}/generate/{{split}}-{{kind}}-{{shard}}.log",
    benchmark:
        f"{BENCHMARKS}/generate/{{split}}-{{kind}}-{{shard}}.tsv"
    # Long jobs first, so that none is left over at the end.
    priority: 1
    conda:
        "../../environment.yml"
    resources:
        **needs.decodes(
            lambda wildcards: needs.split_work(wildcards.split, plan.points[wildcards.split, wildcards.kind])
        ),
    params:
        code=digests.of("generate"),
        reader=lambda wildcards: plan.readers[wildcards.kind],
        points=lambda wildcards: [as_written(point) for point in plan.points[wildcards.split, wildcards.kind]],
        methods=lambda wildcards: plan.methods_of(plan.points[wildcards.split, wildcards.kind]),
        triggers=lambda wildcards: plan.triggers(plan.points[wildcards.split, wildcards.kind]),
        taken=lambda wildcards: plan.taken_by(plan.points[wildcards.split, wildcards.kind]),
        codes=lambda wildcards: digests.of_points("generate.py", plan.points[wildcards.split, wildcards.kind]),
        together=SETTINGS.generation.together,
        shards=lambda wildcards: plan.size(wildcards.split).shards,
        journal=f"{OUT}/journal/generations",
    script:
        "../scripts/generate.py"


# Single decisions of a detector, reversed.
rule replay:
    input:
        documents=f"{OUT}/documents/test.parquet",
        reader=plan.reader_files,
        labels=f"{LABELS}/traces/test.parquet",
        detector=plan.trigger_files(plan.replayed),
    output:
        plan.replays,
    log:
        f"{LOGS}/replay.log",
    benchmark:
        f"{BENCHMARKS}/replay.tsv"
    conda:
        "../../environment.yml"
    resources:
        **needs.decodes(lambda wildcards: needs.split_work("test", plan.replayed)),
    params:
        code=digests.of("replay"),
        reader=plan.reader,
        points=[as_written(point) for point in plan.replayed],
        triggers=plan.triggers(plan.replayed),
        taken=plan.taken_by(plan.replayed),
        number=SETTINGS.scale.replays,
        seed=SETTINGS.seed,
        together=SETTINGS.generation.together,
        journal=f"{OUT}/journal/replays",
    script:
        "../scripts/replay.py"


# Where answers share passes: what an answer takes by itself.
rule time_answers:
    input:
        documents=f"{OUT}/documents/test.parquet",
        reader=plan.reader_files,
        detectors=plan.trigger_files(SETTINGS.timed),
    output:
        plan.timed_answers,
    log:
        f"{LOGS}/time_answers.log",
    benchmark:
        f"{BENCHMARKS}/time_answers.tsv"
    conda:
        "../../environment.yml"
    resources:
        **needs.decodes(lambda wildcards: needs.split_work("test", SETTINGS.timed)),
    params:
        code=digests.of("time_answers"),
        reader=plan.reader,
        points=[as_written(point) for point in SETTINGS.timed],
        triggers=plan.triggers(SETTINGS.timed),
        taken=plan.taken_by(SETTINGS.timed),
        number=SETTINGS.scale.timed,
        journal=f"{OUT}/journal/timed",
    script:
        "../scripts/time_answers.py"
