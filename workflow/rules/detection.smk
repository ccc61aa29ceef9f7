"""Detectors, their baselines, and the verdicts of all of them on test and validation trajectories."""


rule train_detector:
    input:
        unpack(lambda wildcards: lessons(wildcards.variant)),
    output:
        models=expand(SEED, n=SEEDS, file="model.safetensors", allow_missing=True),
        curves=expand(SEED, n=SEEDS, file="curve.csv", allow_missing=True),
    log:
        f"{LOGS}/train_detector/{{variant}}.log",
    benchmark:
        f"{MEASURED}/train_detector/{{variant}}.tsv"
    threads: 1
    resources:
        **learns("train", "validation"),
    params:
        code=CODE["train_detector"],
        detector=lambda wildcards: IDENTITY["detectors"][wildcards.variant],
        steps=SETTINGS.scale.detector_steps,
    script:
        "../scripts/train_detector.py"


rule fit_baselines:
    input:
        validation=shards(TRAJECTORIES, "validation"),
        validation_labels=f"{LABELS}/validation.parquet",
    output:
        BASELINES,
    log:
        f"{LOGS}/fit_baselines.log",
    benchmark:
        f"{MEASURED}/fit_baselines.tsv"
    threads: 1
    resources:
        **learns("validation"),
    params:
        code=CODE["fit_baselines"],
    script:
        "../scripts/fit_baselines.py"


rule detect:
    input:
        trajectories=lambda wildcards: shards(TRAJECTORIES, wildcards.split),
        labels=f"{LABELS}/{{split}}.parquet",
        detectors=list(DETECTORS.values()),
        baselines=rules.fit_baselines.output,
    output:
        f"{OUT}/detections/{{split}}.parquet",
    log:
        f"{LOGS}/detect/{{split}}.log",
    benchmark:
        f"{MEASURED}/detect/{{split}}.tsv"
    threads: 1
    resources:
        **learns("test", "validation"),
    params:
        code=CODE["detect"],
        variants=list(DETECTORS),
        taken=TAKEN,
        main=SETTINGS.detector,
    script:
        "../scripts/detect.py"
