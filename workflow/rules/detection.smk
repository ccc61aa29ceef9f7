"""Detectors, and the verdicts of all of them and of the logit baselines on test and validation trajectories."""


rule train_detector:
    input:
        unpack(lambda wildcards: plan.lessons(wildcards.variant)),
    output:
        models=expand(plan.detector_file, n=plan.detector_seeds, file="model.safetensors", allow_missing=True),
        curves=expand(plan.detector_file, n=plan.detector_seeds, file="curve.csv", allow_missing=True),
    log:
        f"{LOGS}/train_detector/{{variant}}.log",
    benchmark:
        f"{BENCHMARKS}/train_detector/{{variant}}.tsv"
    conda:
        "../../environment.yml"
    resources:
        **needs.learns("train", "validation"),
    params:
        code=digests.of("train_detector"),
        detector=lambda wildcards: IDENTITY["detectors"][wildcards.variant],
        taken=lambda wildcards: plan.taken.get(SETTINGS.detectors[wildcards.variant].start),
        steps=SETTINGS.scale.detector_steps,
    script:
        "../scripts/train_detector.py"


rule detect:
    input:
        trajectories=lambda wildcards: plan.shards(plan.trajectories, wildcards.split),
        labels=f"{LABELS}/{{split}}.parquet",
        detectors=list(plan.detectors.values()),
        # Thresholds of the logit baselines are chosen on it.
        validation=plan.shards(plan.trajectories, "validation"),
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
        **needs.learns("test", "validation"),
    params:
        code=digests.of("detect"),
        variants=list(plan.detectors),
        taken=plan.taken,
        main=SETTINGS.detector,
    script:
        "../scripts/detect.py"
