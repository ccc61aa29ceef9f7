"""Detectors, their baselines, and the verdicts of all of them on the test trajectories."""


rule detectors:
    input:
        DETECTORS,
        f"{OUT}/detectors/baselines/model.json",
    localrule: True


rule train_detector:
    input:
        train=TRAJECTORIES["train"],
        train_labels=f"{LABELS}/train.parquet",
        validation=TRAJECTORIES["validation"],
        validation_labels=f"{LABELS}/validation.parquet",
        modules=MODULES["train_detector"],
    output:
        model=DETECTOR,
        curve=DETECTOR.replace("model.safetensors", "curve.csv"),
    log:
        f"{LOGS}/train_detector/{SETTINGS.detector.name}-{{seed}}.log",
    benchmark:
        f"{BENCHMARKS}/train_detector/{SETTINGS.detector.name}-{{seed}}.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    params:
        detector=IDENTITY["detector"],
        steps=SCALE["detector_steps"],
    script:
        "../scripts/train_detector.py"


rule fit_baselines:
    input:
        validation=TRAJECTORIES["validation"],
        validation_labels=f"{LABELS}/validation.parquet",
        modules=MODULES["fit_baselines"],
    output:
        f"{OUT}/detectors/baselines/model.json",
    log:
        f"{LOGS}/fit_baselines/baselines.log",
    benchmark:
        f"{BENCHMARKS}/fit_baselines/baselines.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    script:
        "../scripts/fit_baselines.py"


rule detections:
    input:
        trajectories=TRAJECTORIES["test"],
        labels=f"{LABELS}/test.parquet",
        detectors=DETECTORS,
        baselines=rules.fit_baselines.output,
        modules=MODULES["detections"],
    output:
        f"{OUT}/detections/test.parquet",
    log:
        f"{LOGS}/detections/test.log",
    benchmark:
        f"{BENCHMARKS}/detections/test.tsv"
    conda:
        ENVIRONMENT
    threads: 1
    params:
        detector=SETTINGS.detector.name,
    script:
        "../scripts/detections.py"
