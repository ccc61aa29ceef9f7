"""Decoding of answers: all operating points of a split side by side, from one prefill a document."""


rule generations:
    input:
        [answers for suite in GENERATIONS.values() for answers in suite],
    localrule: True


for split, suites in SUITES.items():

    rule:
        name:
            f"generate_{split}"
        input:
            documents=f"{OUT}/documents/{split}.parquet",
            reader=READER_FILES,
            detectors=sorted({path for _, _, path in TRIGGERS[split].values()}),
            modules=MODULES["generate"],
        output:
            answers=[
                f"{OUT}/generations/{suite}/{point}/answers-{{shard}}.parquet"
                for suite in suites
                for point in POINTS[suite]
            ],
            traces=[
                f"{OUT}/generations/{suite}/{point}/traces-{{shard}}.parquet"
                for suite in suites
                for point in POINTS[suite]
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
            suites={suite: [asdict(point) for point in RAN[suite]] for suite in suites},
            triggers=TRIGGERS[split],
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
