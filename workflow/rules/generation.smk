"""Decoding of answers: all operating points of a split side by side, from one prefill a document."""


# Points of kind `blocks` are decoded from block memory, those of kind `methods` by other methods.
rule generate:
    input:
        documents=f"{OUT}/documents/{{split}}.parquet",
        reader=READER_FILES,
        classifier=lambda wildcards: classifier_files(POINTS[wildcards.split, wildcards.kind]),
        detectors=lambda wildcards: trigger_files(POINTS[wildcards.split, wildcards.kind]),
    output:
        answers=f"{OUT}/generations/{{split}}/{{kind}}/answers-{{shard}}.parquet",
        traces=f"{OUT}/generations/{{split}}/{{kind}}/traces-{{shard}}.parquet",
    log:
        f"{LOGS}/generate/{{split}}-{{kind}}-{{shard}}.log",
    benchmark:
        f"{BENCHMARKS}/generate/{{split}}-{{kind}}-{{shard}}.tsv"
    # Long jobs first, lest one is left alone at the end.
    priority: 1
    conda:
        "../../environment.yml"
    resources:
        **decodes(lambda wildcards: split_work(wildcards.split, POINTS[wildcards.split, wildcards.kind])),
    params:
        code=code_of("generate"),
        reader=lambda wildcards: READERS[wildcards.kind],
        points=lambda wildcards: [as_written(point) for point in POINTS[wildcards.split, wildcards.kind]],
        methods=lambda wildcards: methods_of(POINTS[wildcards.split, wildcards.kind]),
        triggers=lambda wildcards: triggers(POINTS[wildcards.split, wildcards.kind]),
        taken=lambda wildcards: taken(POINTS[wildcards.split, wildcards.kind]),
        codes=lambda wildcards: codes("generate.py", POINTS[wildcards.split, wildcards.kind]),
        together=SETTINGS.generation.together,
        shards=lambda wildcards: size(wildcards.split).shards,
        journal=f"{OUT}/journal/generations",
    script:
        "../scripts/generate.py"


# Single decisions of a detector, turned.
rule replay:
    input:
        documents=f"{OUT}/documents/test.parquet",
        reader=READER_FILES,
        labels=f"{LABELS}/traces/test.parquet",
        detector=trigger_files(REPLAYED),
    output:
        REPLAYS,
    log:
        f"{LOGS}/replay.log",
    benchmark:
        f"{BENCHMARKS}/replay.tsv"
    conda:
        "../../environment.yml"
    resources:
        **decodes(lambda wildcards: split_work("test", REPLAYED)),
    params:
        code=code_of("replay"),
        reader=READER,
        points=[as_written(point) for point in REPLAYED],
        triggers=triggers(REPLAYED),
        taken=taken(REPLAYED),
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
        reader=READER_FILES,
        detectors=trigger_files(SETTINGS.timed),
    output:
        TIMED,
    log:
        f"{LOGS}/time_answers.log",
    benchmark:
        f"{BENCHMARKS}/time_answers.tsv"
    conda:
        "../../environment.yml"
    resources:
        **decodes(lambda wildcards: split_work("test", SETTINGS.timed)),
    params:
        code=code_of("time_answers"),
        reader=READER,
        points=[as_written(point) for point in SETTINGS.timed],
        triggers=triggers(SETTINGS.timed),
        taken=taken(SETTINGS.timed),
        number=SETTINGS.scale.timed,
        journal=f"{OUT}/journal/timed",
    script:
        "../scripts/time_answers.py"
