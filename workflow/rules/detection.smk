"""Detectors, their baselines, and the verdicts of all of them on test and validation trajectories."""


rule detectors:
    input:
        PLAN.stage("detectors"),
    localrule: True


rule train_detector:
    input:
        train=lambda wildcards: PLAN.shown_to(wildcards.variant, "train"),
        validation=lambda wildcards: PLAN.shown_to(wildcards.variant, "validation"),
        train_labels=lambda wildcards: PLAN.training_labels(wildcards.variant, "train"),
        validation_labels=lambda wildcards: PLAN.training_labels(
            wildcards.variant, "validation"
        ),
        tasks=lambda wildcards: PLAN.shown_tasks(wildcards.variant, "trajectories"),
        examples=lambda wildcards: PLAN.shown_tasks(wildcards.variant, "examples"),
        task_labels=lambda wildcards: PLAN.task_labels(wildcards.variant),
        start=lambda wildcards: PLAN.start(wildcards.variant),
    output:
        models=PLAN.seeds("{variant}", "model.safetensors"),
        curves=PLAN.seeds("{variant}", "curve.csv"),
    log:
        f"{LOGS}/train_detector/{{variant}}.log",
    benchmark:
        f"{MEASURED}/train_detector/{{variant}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        **PLAN.learns("train", "validation"),
    params:
        code=CODE["train_detector"],
        detector=lambda wildcards: IDENTITY["detectors"][wildcards.variant],
        steps=SETTINGS.scale.detector_steps,
    script:
        "../scripts/train_detector.py"


rule fit_baselines:
    input:
        validation=PLAN.trajectories("validation"),
        validation_labels=f"{LABELS}/validation.parquet",
    output:
        PLAN.baselines,
    log:
        f"{LOGS}/fit_baselines.log",
    benchmark:
        f"{MEASURED}/fit_baselines.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        **PLAN.learns("validation"),
    params:
        code=CODE["fit_baselines"],
    script:
        "../scripts/fit_baselines.py"


rule detections:
    input:
        PLAN.stage("detections"),
    localrule: True


rule detect:
    input:
        trajectories=lambda wildcards: PLAN.trajectories(wildcards.split),
        labels=f"{LABELS}/{{split}}.parquet",
        detectors=[path for seeds in PLAN.detectors.values() for path in seeds],
        baselines=rules.fit_baselines.output,
    output:
        f"{OUT}/detections/{{split}}.parquet",
    log:
        f"{LOGS}/detect/{{split}}.log",
    benchmark:
        f"{MEASURED}/detect/{{split}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        **PLAN.learns("test", "validation"),
    params:
        code=CODE["detect"],
        variants=list(PLAN.detectors),
        taken=PLAN.taken,
        main=SETTINGS.detector,
    script:
        "../scripts/detect.py"
