"""What endpoints decide, and what people make of it: labels of generated tokens, scores of answers."""


rule label:
    input:
        trajectories=TRAJECTORIES,
        documents=f"{OUT}/documents/{{split}}.parquet",
    output:
        labels=UNCORRECTED,
        usage=usage(UNCORRECTED),
    retries: retries("labeller")
    resources:
        labelling=1,
    params:
        labeller=IDENTITY["labeller"],
    script:
        "../scripts/label.py"


rule correct_labels:
    input:
        labels=lambda wildcards: shards(UNCORRECTED, wildcards.split),
        sheet=there(SHEETS["labels"]),
    output:
        f"{LABELS}/{{split}}.parquet",
    localrule: True
    params:
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
    retries: retries("labeller")
    params:
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
    retries: retries("judge")
    params:
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
    retries: retries("judge")
    params:
        judge=IDENTITY["judge"],
    script:
        "../scripts/score_replays.py"


rule review_labels:
    input:
        labels=[shards(UNCORRECTED, split) for split in SPLITS],
        documents=[f"{OUT}/documents/{split}.parquet" for split in SPLITS],
    output:
        f"{LABELS}/review.html",
    localrule: True
    params:
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
    localrule: True
    params:
        caption=CAPTION,
        judge=IDENTITY["judge"],
    script:
        "../scripts/review_scores.py"
