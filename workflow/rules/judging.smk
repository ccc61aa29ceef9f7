"""What endpoints decide: labels of generated tokens, scores of answers."""


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
        labels=f"{LABELS}/{{split}}.parquet",
        usage=f"{OUT}/usage/labels/{SETTINGS.labeller.name}/{{split}}.parquet",
    log:
        f"{LOGS}/label/{SETTINGS.labeller.name}/{{split}}.log",
    retries: RETRIES["labeller"]
    conda:
        ENVIRONMENT
    params:
        labeller=IDENTITY["labeller"],
        store=STORE,
    script:
        "../scripts/label.py"


rule scores:
    input:
        [score for scores in SCORES.values() for score in scores],
    localrule: True


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
        retries: RETRIES["judge"]
        conda:
            ENVIRONMENT
        params:
            judge=IDENTITY["judge"],
            store=STORE,
        script:
            "../scripts/score.py"
