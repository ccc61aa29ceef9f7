"""What people look at: answers token by token, and the report."""

# What was decoded from block memory, by suite: that alone has blocks and decisions to look at.
TRACED = {
    name: {
        "answers": [
            f"{OUT}/generations/{name}/{point.label}/answers-{shard}.parquet"
            for point in points
            for shard in range(SCALE[split]["shards"])
        ],
        "traces": [
            f"{OUT}/generations/{name}/{point.label}/traces-{shard}.parquet"
            for point in points
            for shard in range(SCALE[split]["shards"])
        ],
        "scores": [
            f"{OUT}/scores/{SETTINGS.judge.name}/{name}/{point.label}.parquet"
            for point in points
        ],
    }
    for split, suites in BLOCKS.items()
    for name, points in suites.items()
}
VIEWS = [f"{OUT}/traces/{name}.html" for name in TRACED]
# Pages that the report links.
LINKS = {
    **{
        f"Answers of suite {name}, token by token": f"{OUT}/traces/{name}.html"
        for name in TRACED
    },
    "Labels, to review": f"{LABELS}/review.html",
    **(
        {"Answers, to score": f"{OUT}/scores/{SETTINGS.judge.name}/review.html"}
        if JUDGED
        else {}
    ),
}


rule traces:
    input:
        VIEWS,
    localrule: True


rule view_traces:
    input:
        documents=lambda wildcards: f"{OUT}/documents/{SETTINGS.suites[wildcards.suite].split}.parquet",
        answers=lambda wildcards: TRACED[wildcards.suite]["answers"],
        traces=lambda wildcards: TRACED[wildcards.suite]["traces"],
        scores=lambda wildcards: TRACED[wildcards.suite]["scores"],
        tokenizer=TOKENIZER_FILES,
        modules=MODULES["view_traces"],
    output:
        report(
            f"{OUT}/traces/{{suite}}.html",
            caption="../report/traces.rst",
            category="Traces",
            labels={"suite": "{suite}"},
        ),
    log:
        f"{LOGS}/view_traces/{{suite}}.log",
    benchmark:
        f"{BENCHMARKS}/view_traces/{{suite}}.tsv"
    conda:
        ENVIRONMENT
    params:
        caption=CAPTION,
        judge=IDENTITY["judge"],
        documents=SETTINGS.report.traced_documents,
        memory=READER["memory"],
    script:
        "../scripts/view_traces.py"


if "test" in GENERATION_TABLES:

    rule figure_budget:
        input:
            traces=[
                path
                for suite in BLOCKS["test"]
                if SETTINGS.suites[suite].table == "generation"
                for path in TRACED[suite]["traces"]
            ],
            modules=MODULES["figure_budget"],
        output:
            multiext(f"{OUT}/tables/budget", ".csv", ".png", ".svg"),
        log:
            f"{LOGS}/tables/budget.log",
        benchmark:
            f"{BENCHMARKS}/tables/budget.tsv"
        conda:
            ENVIRONMENT
        params:
            caption=CAPTION,
        script:
            "../scripts/figure_budget.py"


rule figure_detectors:
    input:
        table=f"{OUT}/tables/detection.csv",
        modules=MODULES["figure_detectors"],
    output:
        multiext(f"{OUT}/tables/detectors", ".png", ".svg"),
    log:
        f"{LOGS}/tables/detectors.log",
    benchmark:
        f"{BENCHMARKS}/tables/detectors.tsv"
    conda:
        ENVIRONMENT
    script:
        "../scripts/figure_detectors.py"


rule table_resources:
    input:
        tables=TABLES,
        documents=expand(f"{OUT}/documents/{{split}}.parquet", split=SPLITS),
        trajectories=list(TRAJECTORIES.values()),
        answers=[files["answers"] for files in TRACED.values()],
        traces=[files["traces"] for files in TRACED.values()],
        replays=REPLAYED.get("replays", []),
        modules=MODULES["table_resources"],
    output:
        multiext(f"{OUT}/tables/resources", ".csv", ".md", ".tex"),
    log:
        f"{LOGS}/tables/resources.log",
    benchmark:
        f"{BENCHMARKS}/tables/resources.tsv"
    conda:
        ENVIRONMENT
    params:
        caption=CAPTION,
        # Measurements are no inputs: a missing one repeats no job.
        jobs=JOBS,
        trajectories=TRAJECTORIES,
        # Answers, traces and replays of each split.
        generated={
            split: [
                [path for suite in suites for path in TRACED[suite]["answers"]],
                [path for suite in suites for path in TRACED[suite]["traces"]],
                REPLAYED["replays"] if split in REPLAYS else [],
            ]
            for split, suites in BLOCKS.items()
        },
    script:
        "../scripts/table_resources.py"


rule report:
    input:
        results=TABLES + RESOURCES,
        links=list(LINKS.values()),
        modules=MODULES["report"],
    output:
        report(
            [f"{OUT}/report.html", "results/report.html"],
            caption="../report/report.rst",
            category="Report",
        ),
    log:
        f"{LOGS}/report.log",
    benchmark:
        f"{BENCHMARKS}/report.tsv"
    localrule: True
    conda:
        ENVIRONMENT
    params:
        identity=IDENTITY,
        links=LINKS,
        command=COMMAND,
    script:
        "../scripts/report.py"
