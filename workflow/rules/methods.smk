"""Answers by context-management methods that do not decode from block memory."""

from importlib.util import find_spec

# LLMLingua-2's classifier, where a suite has the method, its package is there and its model is the one that the project
# trains.
CLASSIFIER = (
    rules.keeper.output
    if find_spec("llmlingua")
    and SETTINGS.methods["llmlingua2"]["model"] == f"{OUT}/keeper"
    and any(
        point.method == "llmlingua2"
        for suites in METHODS.values()
        for points in suites.values()
        for point in points
    )
    else []
)

for split, suites in METHODS.items():
    if not suites:
        continue

    rule:
        name:
            f"compare_{split}"
        input:
            documents=f"{OUT}/documents/{split}.parquet",
            reader=READER_FILES,
            classifier=CLASSIFIER,
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
        log:
            f"{LOGS}/compare/{split}-{{shard}}.log",
        benchmark:
            f"{BENCHMARKS}/compare/{split}-{{shard}}.tsv"
        priority: 1
        conda:
            ENVIRONMENT
        threads: 1
        resources:
            gpu=GPU,
        params:
            reader=READER | {"positions": SETTINGS.reader.positions},
            suites={
                suite: [asdict(point) for point in points]
                for suite, points in suites.items()
            },
            methods={
                name: SETTINGS.methods[name]
                for points in suites.values()
                for point in points
                for name in [point.base or point.method]
            },
            triggers={
                point.label: TRIGGERS[point.label]
                for points in suites.values()
                for point in points
                if point.label in TRIGGERS
            },
            paired=SETTINGS.generation.paired,
            replays=[],
            shards=SCALE[split]["shards"],
            journal=f"{OUT}/journal/methods",
        script:
            "../scripts/generate.py"
