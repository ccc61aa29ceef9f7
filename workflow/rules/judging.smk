"""What endpoints decide, and what people make of it: labels of generated tokens, scores of answers."""


rule label:
    input:
        trajectories=plan.trajectories,
        documents=f"{OUT}/documents/{{split}}.parquet",
    output:
        labels=plan.uncorrected,
        usage=plan.usage(plan.uncorrected),
    log:
        f"{LOGS}/label/{SETTINGS.labeller.name}/{{split}}-{{shard}}.log",
    benchmark:
        f"{BENCHMARKS}/label/{SETTINGS.labeller.name}/{{split}}-{{shard}}.tsv"
    retries: needs.retries("labeller")
    conda:
        "../../environment.yml"
    resources:
        labelling=1,
    params:
        code=digests.of("label"),
        labeller=IDENTITY["labeller"],
    script:
        "../scripts/label.py"


rule correct_labels:
    input:
        labels=lambda wildcards: plan.shards(plan.uncorrected, wildcards.split),
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
        code=digests.of("correct_labels"),
        labeller=IDENTITY["labeller"],
    script:
        "../scripts/correct_labels.py"


rule label_traces:
    input:
        answers=lambda wildcards: plan.generations("answers", wildcards.split, "blocks"),
        traces=lambda wildcards: plan.generations("traces", wildcards.split, "blocks"),
        documents=f"{OUT}/documents/{{split}}.parquet",
        tokenizer=plan.tokenizer_files,
    output:
        labels=f"{LABELS}/traces/{{split}}.parquet",
        usage=plan.usage(f"{LABELS}/traces/{{split}}.parquet"),
    log:
        f"{LOGS}/label_traces/{SETTINGS.labeller.name}/{{split}}.log",
    benchmark:
        f"{BENCHMARKS}/label_traces/{SETTINGS.labeller.name}/{{split}}.tsv"
    retries: needs.retries("labeller")
    conda:
        "../../environment.yml"
    params:
        code=digests.of("label_traces"),
        labeller=IDENTITY["labeller"],
        points=lambda wildcards: SETTINGS.tried(wildcards.split),
        tokenizer=[SETTINGS.reader.path, SETTINGS.reader.revision],
    script:
        "../scripts/label_traces.py"


rule score:
    input:
        answers=lambda wildcards: plan.generations("answers", wildcards.split, wildcards.kind),
        documents=f"{OUT}/documents/{{split}}.parquet",
    output:
        scores=f"{SCORES}/{{split}}/{{kind}}.parquet",
        usage=plan.usage(f"{SCORES}/{{split}}/{{kind}}.parquet"),
    log:
        f"{LOGS}/score/{SETTINGS.judge.name}/{{split}}-{{kind}}.log",
    benchmark:
        f"{BENCHMARKS}/score/{SETTINGS.judge.name}/{{split}}-{{kind}}.tsv"
    retries: needs.retries("judge")
    conda:
        "../../environment.yml"
    params:
        code=digests.of("score"),
        judge=IDENTITY["judge"],
    script:
        "../scripts/score.py"


rule score_replays:
    input:
        replays=plan.replays,
        documents=f"{OUT}/documents/test.parquet",
    output:
        scores=plan.replay_scores,
        usage=plan.usage(plan.replay_scores),
    log:
        f"{LOGS}/score_replays/{SETTINGS.judge.name}.log",
    benchmark:
        f"{BENCHMARKS}/score_replays/{SETTINGS.judge.name}.tsv"
    retries: needs.retries("judge")
    conda:
        "../../environment.yml"
    params:
        code=digests.of("score_replays"),
        judge=IDENTITY["judge"],
    script:
        "../scripts/score_replays.py"


rule review_labels:
    input:
        labels=[plan.shards(plan.uncorrected, split) for split in SPLITS],
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
        code=digests.of("review_labels"),
        labels={split: plan.shards(plan.uncorrected, split) for split in SPLITS},
        caption=plan.caption,
        labeller=IDENTITY["labeller"],
    script:
        "../scripts/review_labels.py"


rule review_scores:
    input:
        scores=plan.judged("test"),
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
        code=digests.of("review_scores"),
        caption=plan.caption,
        judge=IDENTITY["judge"],
    script:
        "../scripts/review_scores.py"
