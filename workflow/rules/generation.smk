"""Decoding of answers: all operating points of a split side by side, from one prefill a document."""


rule generations:
    input:
        [answers for suite in GENERATIONS.values() for answers in suite],
    localrule: True


for split, suites in BLOCKS.items():
    if not suites:
        continue

    rule:
        name:
            f"generate_{split}"
        input:
            documents=f"{OUT}/documents/{split}.parquet",
            reader=READER_FILES,
            detectors=sorted(
                {
                    TRIGGERS[point.label][2]
                    for points in suites.values()
                    for point in points
                    if point.label in TRIGGERS
                }
            ),
            modules=MODULES["generate"],
        output:
            answers=[
                f"{OUT}/generations/{suite}/{point.label}/answers-{{shard}}.parquet"
                for suite, points in suites.items()
                for point in points
            ],
            traces=[
                f"{OUT}/generations/{suite}/{point.label}/traces-{{shard}}.parquet"
                for suite, points in suites.items()
                for point in points
            ],
            replays=(
                [f"{OUT}/replays/{SETTINGS.replays_of}/part-{{shard}}.parquet"]
                if split in REPLAYS
                else []
            ),
        log:
            f"{LOGS}/generate/{split}-{{shard}}.log",
        benchmark:
            f"{BENCHMARKS}/generate/{split}-{{shard}}.tsv"
        # Long jobs first, lest one is left alone at the end.
        priority: 1
        conda:
            ENVIRONMENT
        threads: 1
        resources:
            gpu=GPU,
        params:
            reader=READER,
            suites={
                suite: [asdict(point) for point in points]
                for suite, points in suites.items()
            },
            methods={},
            triggers={
                point.label: TRIGGERS[point.label]
                for points in suites.values()
                for point in points
                if point.label in TRIGGERS
            },
            paired=SETTINGS.generation.paired,
            replays=(
                [SETTINGS.replays_of, SETTINGS.scale.replays, SETTINGS.seed]
                if split in REPLAYS
                else []
            ),
            shards=SCALE[split]["shards"],
            journal=f"{OUT}/journal/generations",
        script:
            "../scripts/generate.py"
