"""Decoding of answers: all operating points of a suite side by side, from one prefill a document."""


rule generations:
    input:
        [answers for suite in GENERATIONS.values() for answers in suite],
    localrule: True


for suite, spec in SETTINGS.suites.items():

    rule:
        name:
            f"generate_{suite}"
        input:
            documents=f"{OUT}/documents/{spec.split}.parquet",
            reader=READER_FILES,
            detector=(
                DETECTORS[SETTINGS.detector][SETTINGS.detector_seed]
                if any(point.method == "utaca" for point in spec.points)
                else []
            ),
            modules=MODULES["generate"],
        output:
            answers=expand(
                f"{OUT}/generations/{suite}/{{point}}/answers-{{{{shard}}}}.parquet",
                point=POINTS[suite],
            ),
            traces=expand(
                f"{OUT}/generations/{suite}/{{point}}/traces-{{{{shard}}}}.parquet",
                point=POINTS[suite],
            ),
        log:
            f"{LOGS}/generate/{suite}-{{shard}}.log",
        benchmark:
            f"{BENCHMARKS}/generate/{suite}-{{shard}}.tsv"
        # Long jobs first, lest one is left alone at the end.
        priority: 1
        conda:
            ENVIRONMENT
        threads: 1
        resources:
            gpu=GPU,
        params:
            reader=READER,
            suite=suite,
            points=IDENTITY["suites"][suite]["points"],
            paired=SETTINGS.generation.paired,
            shards=SCALE[spec.split]["shards"],
            journal=f"{OUT}/journal/generations",
        script:
            "../scripts/generate.py"
