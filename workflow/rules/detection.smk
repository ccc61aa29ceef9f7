"""Detectors, their baselines, and the verdicts of all of them on the test trajectories."""


rule detectors:
    input:
        [path for seeds in DETECTORS.values() for path in seeds],
        f"{OUT}/detectors/baselines/model.json",
    localrule: True


for variant, spec in SETTINGS.detectors.items():

    rule:
        name:
            f"train_{variant}"
        input:
            train=TRAJECTORIES["train"],
            validation=TRAJECTORIES["validation"],
            # A detector that learns from the expanded pass needs no judge.
            train_labels=f"{LABELS}/train.parquet" if spec.label == "judged" else [],
            validation_labels=(
                f"{LABELS}/validation.parquet" if spec.label == "judged" else []
            ),
            modules=MODULES["train_detector"],
        output:
            models=DETECTORS[variant],
            curves=[
                path.replace("model.safetensors", "curve.csv")
                for path in DETECTORS[variant]
            ],
        log:
            f"{LOGS}/train_detector/{variant}.log",
        benchmark:
            f"{BENCHMARKS}/train_detector/{variant}.tsv"
        conda:
            ENVIRONMENT
        threads: 1
        params:
            detector=IDENTITY["detectors"][variant],
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


# What the verdicts are made from.
DETECTED_FROM = [
    *TRAJECTORIES["test"],
    f"{LABELS}/test.parquet",
    *(path for seeds in DETECTORS.values() for path in seeds),
    *rules.fit_baselines.output,
]


rule detections:
    input:
        trajectories=TRAJECTORIES["test"],
        labels=f"{LABELS}/test.parquet",
        detectors=[path for seeds in DETECTORS.values() for path in seeds],
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
        variants=list(DETECTORS),
        main=SETTINGS.detector,
    script:
        "../scripts/detections.py"
