"""What endpoints decide, and what people make of it: labels of generated tokens, scores of answers."""


rule label:
    input:
        trajectories=TRAJECTORIES,
        documents=f"{OUT}/documents/{{split}}.parquet",
    output:
        labels=UNCORRECTED,
        usage=usage(UNCORRECTED),
    log:
        f"{LOGS}/label/{SETTINGS.labeller.name}/{{split}}-{{shard}}.log",
    benchmark:
        f"{BENCHMARKS}/label/{SETTINGS.labeller.name}/{{split}}-{{shard}}.tsv"
    retries: retries("labeller")
    conda:
        "../../environment.yml"
    resources:
        labelling=1,
    params:
        code=code_of("label"),
        labeller=IDENTITY["labeller"],
    script:
        "../scripts/label.py"


rule correct_labels:
    input:
        labels=lambda wildcards: shards(UNCORRECTED, wildcards.split),
        sheet=there(SHEETS["labels"]),
    output:
        f"{LABELS}/{{split}}.parquet",
    log:
        f"{LOGS}/correct_labels/{SETTINGS.labeller.name}/{{split}}.log",
    benchmark:
        f"{BENCHMARKS}/correct_labels/{SETTINGS.labeller.name}/{{split}}.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        code=code_of("correct_labels"),
        labeller=IDENTITY["labeller"],
    script:
        "../scripts/correct_labels.py"


rule label_traces:
    input:
        answers=lambda wildcards: generations("answers", wildcards.split, "blocks"),
        traces=lambda wildcards: generations("traces", wildcards.split, "blocks"),
        documents=f"{OUT}/documents/{{split}}.parquet",
        tokenizer=TOKENIZER_FILES,
    output:
        labels=f"{LABELS}/traces/{{split}}.parquet",
        usage=usage(f"{LABELS}/traces/{{split}}.parquet"),
    log:
        f"{LOGS}/label_traces/{SETTINGS.labeller.name}/{{split}}.log",
    benchmark:
        f"{BENCHMARKS}/label_traces/{SETTINGS.labeller.name}/{{split}}.tsv"
    retries: retries("labeller")
    conda:
        "../../environment.yml"
    params:
        code=code_of("label_traces"),
        labeller=IDENTITY["labeller"],
        points=lambda wildcards: SETTINGS.tried(wildcards.split),
        tokenizer=[SETTINGS.reader.path, SETTINGS.reader.revision],
    script:
        "../scripts/label_traces.py"


rule score:
    input:
        answers=lambda wildcards: generations("answers", wildcards.split, wildcards.kind),
        documents=f"{OUT}/documents/{{split}}.parquet",
    output:
        scores=f"{SCORES}/{{split}}/{{kind}}.parquet",
        usage=usage(f"{SCORES}/{{split}}/{{kind}}.parquet"),
    log:
        f"{LOGS}/score/{SETTINGS.judge.name}/{{split}}-{{kind}}.log",
    benchmark:
        f"{BENCHMARKS}/score/{SETTINGS.judge.name}/{{split}}-{{kind}}.tsv"
    retries: retries("judge")
    conda:
        "../../environment.yml"
    params:
        code=code_of("score"),
        judge=IDENTITY["judge"],
    script:
        "../scripts/score.py"


rule score_replays:
    input:
        replays=REPLAYS,
        documents=f"{OUT}/documents/test.parquet",
    output:
        scores=REPLAY_SCORES,
        usage=usage(REPLAY_SCORES),
    log:
        f"{LOGS}/score_replays/{SETTINGS.judge.name}.log",
    benchmark:
        f"{BENCHMARKS}/score_replays/{SETTINGS.judge.name}.tsv"
    retries: retries("judge")
    conda:
        "../../environment.yml"
    params:
        code=code_of("score_replays"),
        judge=IDENTITY["judge"],
    script:
        "../scripts/score_replays.py"


rule review_labels:
    input:
        labels=[shards(UNCORRECTED, split) for split in SPLITS],
        documents=[f"{OUT}/documents/{split}.parquet" for split in SPLITS],
    output:
        f"{LABELS}/review.html",
    log:
        f"{LOGS}/review_labels/{SETTINGS.labeller.name}.log",
    benchmark:
        f"{BENCHMARKS}/review_labels/{SETTINGS.labeller.name}.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        code=code_of("review_labels"),
        labels={split: shards(UNCORRECTED, split) for split in SPLITS},
        caption=CAPTION,
        labeller=IDENTITY["labeller"],
    script:
        "../scripts/review_labels.py"


rule review_scores:
    input:
        scores=judged("test"),
        documents=f"{OUT}/documents/test.parquet",
    output:
        f"{SCORES}/review.html",
    log:
        f"{LOGS}/review_scores/{SETTINGS.judge.name}.log",
    benchmark:
        f"{BENCHMARKS}/review_scores/{SETTINGS.judge.name}.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        code=code_of("review_scores"),
        caption=CAPTION,
        judge=IDENTITY["judge"],
    script:
        "../scripts/review_scores.py"
