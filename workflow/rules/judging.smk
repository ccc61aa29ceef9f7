"""What endpoints decide, and what people make of it: labels of generated tokens, scores of answers."""

# The sheets that people filled in on the review pages, where there are any.
CORRECTIONS, HUMAN_SCORES = (
    [path] if os.path.exists(path) else []
    for path in [
        "data/annotations/label_corrections.csv",
        "data/annotations/cas_scores.csv",
    ]
)


rule labels:
    input:
        expand(f"{LABELS}/{{split}}.parquet", split=SPLITS),
    localrule: True


rule label:
    input:
        trajectories=lambda wildcards: TRAJECTORIES[wildcards.split],
        documents=f"{OUT}/documents/{{split}}.parquet",
        modules=MODULES["label"],
    output:
        labels=f"{LABELS}/uncorrected/{{split}}.parquet",
        usage=f"{OUT}/usage/labels/{SETTINGS.labeller.name}/{{split}}.parquet",
    log:
        f"{LOGS}/label/{SETTINGS.labeller.name}/{{split}}.log",
    benchmark:
        f"{BENCHMARKS}/label/{SETTINGS.labeller.name}/{{split}}.tsv"
    retries: RETRIES["labeller"]
    conda:
        ENVIRONMENT
    params:
        labeller=IDENTITY["labeller"],
        store=STORE,
    script:
        "../scripts/label.py"


rule correct_labels:
    input:
        labels=f"{LABELS}/uncorrected/{{split}}.parquet",
        sheet=CORRECTIONS,
        modules=MODULES["correct_labels"],
    output:
        f"{LABELS}/{{split}}.parquet",
    log:
        f"{LOGS}/correct_labels/{SETTINGS.labeller.name}/{{split}}.log",
    benchmark:
        f"{BENCHMARKS}/correct_labels/{SETTINGS.labeller.name}/{{split}}.tsv"
    localrule: True
    conda:
        ENVIRONMENT
    params:
        labeller=IDENTITY["labeller"],
    script:
        "../scripts/correct_labels.py"


rule label_traces:
    input:
        answers=lambda wildcards: TRIED[wildcards.suite]["answers"],
        traces=lambda wildcards: TRIED[wildcards.suite]["traces"],
        documents=lambda wildcards: f"{OUT}/documents/{SETTINGS.suites[wildcards.suite].split}.parquet",
        tokenizer=TOKENIZER_FILES,
        modules=MODULES["label_traces"],
    output:
        labels=f"{LABELS}/traces/{{suite}}.parquet",
        usage=f"{OUT}/usage/labels/{SETTINGS.labeller.name}/traces/{{suite}}.parquet",
    log:
        f"{LOGS}/label_traces/{SETTINGS.labeller.name}/{{suite}}.log",
    benchmark:
        f"{BENCHMARKS}/label_traces/{SETTINGS.labeller.name}/{{suite}}.tsv"
    retries: RETRIES["labeller"]
    conda:
        ENVIRONMENT
    params:
        labeller=IDENTITY["labeller"],
        store=STORE,
        tokenizer=[SETTINGS.reader.path, SETTINGS.reader.revision],
    script:
        "../scripts/label_traces.py"


rule scores:
    input:
        [score for scores in SCORES.values() for score in scores],
    localrule: True


if REPLAYS:

    rule score_replays:
        input:
            replays=REPLAYED["replays"],
            answers=REPLAYED["answers"],
            documents=f"{OUT}/documents/test.parquet",
            modules=MODULES["score_replays"],
        output:
            scores=REPLAYED["replay_scores"],
            usage=f"{OUT}/usage/scores/{SETTINGS.judge.name}/replays/{SETTINGS.replays_of}.parquet",
        log:
            f"{LOGS}/score/{SETTINGS.judge.name}/replays.log",
        benchmark:
            f"{BENCHMARKS}/score/{SETTINGS.judge.name}/replays.tsv"
        retries: RETRIES["judge"]
        conda:
            ENVIRONMENT
        params:
            judge=IDENTITY["judge"],
            store=STORE,
        script:
            "../scripts/score_replays.py"


for suite, spec in SETTINGS.suites.items():

    rule:
        name:
            f"score_{suite}"
        input:
            answers=expand(
                f"{OUT}/generations/{suite}/{{{{point}}}}/answers-{{shard}}.parquet",
                shard=range(SCALE[spec.split]["shards"]),
            ),
            documents=f"{OUT}/documents/{spec.split}.parquet",
            modules=MODULES["score"],
        output:
            scores=f"{OUT}/scores/{SETTINGS.judge.name}/{suite}/{{point}}.parquet",
            usage=f"{OUT}/usage/scores/{SETTINGS.judge.name}/{suite}/{{point}}.parquet",
        log:
            f"{LOGS}/score/{SETTINGS.judge.name}/{suite}-{{point}}.log",
        benchmark:
            f"{BENCHMARKS}/score/{SETTINGS.judge.name}/{suite}-{{point}}.tsv"
        retries: RETRIES["judge"]
        conda:
            ENVIRONMENT
        params:
            judge=IDENTITY["judge"],
            store=STORE,
        script:
            "../scripts/score.py"
