"""Detectors, and the verdicts of all of them and of the logit baselines on test and validation trajectories."""


rule train_detector:
    input:
        unpack(lambda wildcards: lessons(wildcards.variant)),
    output:
        models=expand(SEED, n=SEEDS, file="model.safetensors", allow_missing=True),
        curves=expand(SEED, n=SEEDS, file="curve.csv", allow_missing=True),
    log:
        f"{LOGS}/train_detector/{{variant}}.log",
    benchmark:
        f"{BENCHMARKS}/train_detector/{{variant}}.tsv"
    conda:
        "../../environment.yml"
    resources:
        **learns("train", "validation"),
    params:
        code=code_of("train_detector"),
        detector=lambda wildcards: IDENTITY["detectors"][wildcards.variant],
        taken=lambda wildcards: TAKEN.get(SETTINGS.detectors[wildcards.variant].start),
        steps=SETTINGS.scale.detector_steps,
    script:
        "../scripts/train_detector.py"


rule detect:
    input:
        trajectories=lambda wildcards: shards(TRAJECTORIES, wildcards.split),
        labels=f"{LABELS}/{{split}}.parquet",
        detectors=list(DETECTORS.values()),
        # Thresholds of the logit baselines are chosen on it.
        validation=shards(TRAJECTORIES, "validation"),
        validation_labels=f"{LABELS}/validation.parquet",
    output:
        f"{OUT}/detections/{{split}}.parquet",
    log:
        f"{LOGS}/detect/{{split}}.log",
    benchmark:
        f"{BENCHMARKS}/detect/{{split}}.tsv"
    conda:
        "../../environment.yml"
    resources:
        **learns("test", "validation"),
    params:
        code=code_of("detect"),
        variants=list(DETECTORS),
        taken=TAKEN,
        main=SETTINGS.detector,
    script:
        "../scripts/detect.py"
