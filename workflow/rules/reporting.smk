"""Tables and figures of one reader, collected in results/tables with an index page; pages for people to review."""

FORMATS = ["csv", "md", "tex"]
# Answers and scores that a table of generation shows: its split, and the kinds of suites.
SHOWN = {
    name: {
        "answers": [path for suite in suites for path in GENERATIONS[suite]],
        "scores": [path for suite in suites for path in SCORES[suite]],
    }
    for name, split, *kinds in [
        ["validation", "validation", "generation"],
        ["test", "test", "generation"],
        ["seeds", "test", "generation", "seeds"],
        ["pareto", "test", "generation", "sweep"],
    ]
    for suites in [
        [s for s in SUITES.get(split, []) if SETTINGS.suites[s].table in kinds]
    ]
}
# The same for tables of methods: points decoded from block memory, and those of the methods by table.
OF_METHODS = {
    table: [
        [suite, point.label]
        for suite, points in METHODS.get("test", {}).items()
        if SETTINGS.suites[suite].table == kind
        for point in points
    ]
    for table, kind in [["methods", "methods"], ["equal_budgets", "budgets"]]
}
METHOD_TABLES = [table for table, points in OF_METHODS.items() if points]
COMPARED = {
    "block": [
        [suite, point.label]
        for suite, points in BLOCKS.get("test", {}).items()
        if SETTINGS.suites[suite].table != "seeds"
        for point in points
    ],
    **{table: OF_METHODS[table] for table in METHOD_TABLES},
}
# Every answer on the test split that is judged.
JUDGED = [path for suite in SUITES.get("test", []) for path in SCORES[suite]]
# Those of the smallest fixed budget.
COMPACT = [
    f"{OUT}/scores/{SETTINGS.judge.name}/{suite}/{point.label}.parquet"
    for budget, suite, point in sorted(
        [
            (point.budget, suite, point)
            for suite in SUITES.get("test", [])
            for point in RAN[suite]
            if point.method == "infllm"
        ],
        key=lambda one: one[0],
    )
][:1]
PURPOSES = {SETTINGS.suites[suite].table for suite in SUITES.get("test", [])}
GENERATION_TABLES = [
    *(split for split in ["validation", "test"] if SHOWN[split]["scores"]),
    *(["tradeoff"] if SHOWN["test"]["scores"] else []),
    *(["seeds"] if "seeds" in PURPOSES else []),
    *(["pareto"] if SHOWN["pareto"]["scores"] else []),
    *(["sweep"] if "sweep" in PURPOSES else []),
    *METHOD_TABLES,
    *(["replay", "failures", "cases"] if REPLAYS else []),
    *(["scorers", "disagreements"] if JUDGED else []),
]
OWN_TABLES = ["detection_own"] if TRIED else []
# What the labels of the tokens that detectors judged are made from, by suite.
DECODED = [[*files["answers"], *files["traces"]] for files in TRIED.values()]
BUDGET = ["budget"] if "test" in GENERATION_TABLES else []
DETECTION_FIGURES = ["reliability", "margins"]
# What an expansion changes is told by trajectories that tried it.
TRIGGER_TABLES = ["triggers"] if SETTINGS.trajectories.expanded else []
TABLES = (
    expand(
        f"{OUT}/tables/{{table}}.{{format}}",
        table=[
            "detection",
            "ablation",
            *OWN_TABLES,
            *TRIGGER_TABLES,
            "endpoints",
            *GENERATION_TABLES,
            "labels",
            *(["human"] if JUDGED else []),
        ],
        format=FORMATS,
    )
    + expand(
        f"{OUT}/tables/{{figure}}.{{format}}",
        figure=[
            *(["pareto"] if "pareto" in GENERATION_TABLES else []),
            *(["methods"] if "methods" in METHOD_TABLES else []),
            *BUDGET,
            *DETECTION_FIGURES,
            "detectors",
        ],
        format=["png", "svg"],
    )
    + expand(
        f"{OUT}/tables/{{figure}}.csv",
        figure=[*BUDGET, *DETECTION_FIGURES],
    )
)
# Made last: what the others took.
RESOURCES = expand(f"{OUT}/tables/resources.{{format}}", format=FORMATS)
AFTER_RESOURCES = {
    "table_resources",
    "collect",
    "view_traces",
    "review_labels",
    "review_scores",
    "report",
}
TABLE_TARGETS = {"tables", "results/tables", "results/tables/"}
COLLECTED = [
    f"results/tables/{SETTINGS.reader.name}-{os.path.basename(path)}"
    for path in TABLES + RESOURCES
] + ["results/tables/index.md"]
# What captions say of a run, beside the role that decided.
CAPTION = {
    "reader": [SETTINGS.reader.name, SETTINGS.reader.path],
    "corpus": [SETTINGS.corpus.name, SETTINGS.corpus.source],
    "scale": [SETTINGS.scale.name, SETTINGS.scale.bootstrap],
    "seeds": [SETTINGS.seed, SETTINGS.scale.detector_seeds, SETTINGS.detector_seed],
}


rule table_detection:
    input:
        detections=f"{OUT}/detections/test.parquet",
        detected_from=DETECTED_FROM,
        modules=MODULES["table_detection"],
    output:
        expand(
            f"{OUT}/tables/{{table}}.{{format}}",
            table=["detection", "ablation", *TRIGGER_TABLES],
            format=FORMATS,
        ),
        expand(
            f"{OUT}/tables/{{figure}}.{{format}}",
            figure=DETECTION_FIGURES,
            format=["csv", "png", "svg"],
        ),
    log:
        f"{LOGS}/tables/detection.log",
    benchmark:
        f"{BENCHMARKS}/tables/detection.tsv"
    conda:
        ENVIRONMENT
    params:
        caption=CAPTION,
        labeller=IDENTITY["labeller"],
        detectors=IDENTITY["detectors"],
        main=SETTINGS.detector,
    script:
        "../scripts/table_detection.py"


if OWN_TABLES:

    rule table_detection_own:
        input:
            detections=f"{OUT}/detections/test.parquet",
            labels=expand(f"{LABELS}/traces/{{suite}}.parquet", suite=TRIED),
            detected_from=DETECTED_FROM,
            decoded=DECODED,
            modules=MODULES["table_detection_own"],
        output:
            multiext(f"{OUT}/tables/detection_own", ".csv", ".md", ".tex"),
        log:
            f"{LOGS}/tables/detection_own.log",
        benchmark:
            f"{BENCHMARKS}/tables/detection_own.tsv"
        conda:
            ENVIRONMENT
        params:
            caption=CAPTION,
            labeller=IDENTITY["labeller"],
            decisions={name: spec.decision for name, spec in SETTINGS.detectors.items()},
            decoded=DECODED,
        script:
            "../scripts/table_detection_own.py"


rule table_endpoints:
    input:
        writer=USAGE["writer"],
        labeller=USAGE["labeller"],
        judge=USAGE["judge"],
        modules=MODULES["table_endpoints"],
    output:
        multiext(f"{OUT}/tables/endpoints", ".csv", ".md", ".tex"),
    log:
        f"{LOGS}/tables/endpoints.log",
    benchmark:
        f"{BENCHMARKS}/tables/endpoints.tsv"
    conda:
        ENVIRONMENT
    params:
        caption=CAPTION,
        endpoints=[IDENTITY[role] for role in ROLES],
        prices=[
            [config[role]["prompt_price"], config[role]["completion_price"]]
            for role in ROLES
        ],
    script:
        "../scripts/table_endpoints.py"


for split in ["validation", "test"]:
    if split in GENERATION_TABLES:

        rule:
            name:
                f"table_{split}"
            input:
                **SHOWN[split],
                modules=MODULES["table_generation"],
            output:
                multiext(f"{OUT}/tables/{split}", ".csv", ".md", ".tex"),
            log:
                f"{LOGS}/tables/{split}.log",
            benchmark:
                f"{BENCHMARKS}/tables/{split}.tsv"
            conda:
                ENVIRONMENT
            params:
                split=split,
                caption=CAPTION,
                judge=IDENTITY["judge"],
            script:
                "../scripts/table_generation.py"


if "tradeoff" in GENERATION_TABLES:

    rule table_tradeoff:
        input:
            **SHOWN["test"],
            modules=MODULES["table_tradeoff"],
        output:
            multiext(f"{OUT}/tables/tradeoff", ".csv", ".md", ".tex"),
        log:
            f"{LOGS}/tables/tradeoff.log",
        benchmark:
            f"{BENCHMARKS}/tables/tradeoff.tsv"
        conda:
            ENVIRONMENT
        params:
            caption=CAPTION,
            judge=IDENTITY["judge"],
        script:
            "../scripts/table_tradeoff.py"


if "seeds" in GENERATION_TABLES:

    rule table_seeds:
        input:
            **SHOWN["seeds"],
            modules=MODULES["table_seeds"],
        output:
            multiext(f"{OUT}/tables/seeds", ".csv", ".md", ".tex"),
        log:
            f"{LOGS}/tables/seeds.log",
        benchmark:
            f"{BENCHMARKS}/tables/seeds.tsv"
        conda:
            ENVIRONMENT
        params:
            caption=CAPTION,
            judge=IDENTITY["judge"],
        script:
            "../scripts/table_seeds.py"


if "pareto" in GENERATION_TABLES:

    rule table_pareto:
        input:
            **SHOWN["pareto"],
            modules=MODULES["table_pareto"],
        output:
            [
                f"{OUT}/tables/{table}.{ending}"
                for table in ["pareto", "sweep"]
                if table in GENERATION_TABLES
                for ending in FORMATS
            ],
            multiext(f"{OUT}/tables/pareto", ".png", ".svg"),
        log:
            f"{LOGS}/tables/pareto.log",
        benchmark:
            f"{BENCHMARKS}/tables/pareto.tsv"
        conda:
            ENVIRONMENT
        params:
            swept="sweep" in GENERATION_TABLES,
            caption=CAPTION,
            judge=IDENTITY["judge"],
        script:
            "../scripts/table_pareto.py"


if METHOD_TABLES:

    rule table_methods:
        input:
            **{
                f"{table}_answers": [
                    f"{OUT}/generations/{suite}/{point}/answers-{shard}.parquet"
                    for suite, point in points
                    for shard in range(SCALE["test"]["shards"])
                ]
                for table, points in COMPARED.items()
            },
            **{
                f"{table}_scores": [
                    f"{OUT}/scores/{SETTINGS.judge.name}/{suite}/{point}.parquet"
                    for suite, point in points
                ]
                for table, points in COMPARED.items()
            },
            modules=MODULES["table_methods"],
        output:
            [
                f"{OUT}/tables/{table}.{ending}"
                for table in METHOD_TABLES
                for ending in FORMATS
            ],
            [
                f"{OUT}/tables/methods.{ending}"
                for ending in ["png", "svg"]
                if "methods" in METHOD_TABLES
            ],
        log:
            f"{LOGS}/tables/methods.log",
        benchmark:
            f"{BENCHMARKS}/tables/methods.tsv"
        conda:
            ENVIRONMENT
        params:
            tables=METHOD_TABLES,
            caption=CAPTION,
            judge=IDENTITY["judge"],
            detectors=[SETTINGS.detector, SETTINGS.detector_seed],
            block_size=SETTINGS.reader.memory.block_size,
        script:
            "../scripts/table_methods.py"


if REPLAYS:

    rule table_replay:
        input:
            **REPLAYED,
            fixed=COMPACT,
            modules=MODULES["table_replay"],
        output:
            multiext(f"{OUT}/tables/replay", ".csv", ".md", ".tex"),
            multiext(f"{OUT}/tables/failures", ".csv", ".md", ".tex"),
            multiext(f"{OUT}/tables/cases", ".csv", ".md", ".tex"),
        log:
            f"{LOGS}/tables/replay.log",
        benchmark:
            f"{BENCHMARKS}/tables/replay.tsv"
        conda:
            ENVIRONMENT
        params:
            caption=CAPTION,
            replayed=[SETTINGS.replays_of, SETTINGS.scale.replays],
            judge=IDENTITY["judge"],
        script:
            "../scripts/table_replay.py"


if JUDGED:

    rule table_scorers:
        input:
            scores=JUDGED,
            modules=MODULES["table_scorers"],
        output:
            multiext(f"{OUT}/tables/scorers", ".csv", ".md", ".tex"),
            multiext(f"{OUT}/tables/disagreements", ".csv", ".md", ".tex"),
        log:
            f"{LOGS}/tables/scorers.log",
        benchmark:
            f"{BENCHMARKS}/tables/scorers.tsv"
        conda:
            ENVIRONMENT
        params:
            caption=CAPTION,
            judge=IDENTITY["judge"],
        script:
            "../scripts/table_scorers.py"


rule table_labels:
    input:
        uncorrected=expand(f"{LABELS}/uncorrected/{{split}}.parquet", split=SPLITS),
        labels=expand(f"{LABELS}/{{split}}.parquet", split=SPLITS),
        sheet=CORRECTIONS,
        modules=MODULES["table_labels"],
    output:
        multiext(f"{OUT}/tables/labels", ".csv", ".md", ".tex"),
    log:
        f"{LOGS}/tables/labels.log",
    benchmark:
        f"{BENCHMARKS}/tables/labels.tsv"
    conda:
        ENVIRONMENT
    params:
        splits=SPLITS,
        caption=CAPTION,
        labeller=IDENTITY["labeller"],
    script:
        "../scripts/table_labels.py"


rule review_labels:
    input:
        labels=expand(f"{LABELS}/uncorrected/{{split}}.parquet", split=SPLITS),
        documents=expand(f"{OUT}/documents/{{split}}.parquet", split=SPLITS),
        modules=MODULES["review_labels"],
    output:
        f"{LABELS}/review.html",
    log:
        f"{LOGS}/review_labels/{SETTINGS.labeller.name}.log",
    benchmark:
        f"{BENCHMARKS}/review_labels/{SETTINGS.labeller.name}.tsv"
    localrule: True
    conda:
        ENVIRONMENT
    params:
        splits=SPLITS,
        caption=CAPTION,
        labeller=IDENTITY["labeller"],
    script:
        "../scripts/review_labels.py"


if JUDGED:

    rule review_scores:
        input:
            scores=JUDGED,
            documents=f"{OUT}/documents/test.parquet",
            modules=MODULES["review_scores"],
        output:
            f"{OUT}/scores/{SETTINGS.judge.name}/review.html",
        log:
            f"{LOGS}/review_scores/{SETTINGS.judge.name}.log",
        benchmark:
            f"{BENCHMARKS}/review_scores/{SETTINGS.judge.name}.tsv"
        localrule: True
        conda:
            ENVIRONMENT
        params:
            caption=CAPTION,
            judge=IDENTITY["judge"],
        script:
            "../scripts/review_scores.py"

    rule table_human:
        input:
            scores=JUDGED,
            sheet=HUMAN_SCORES,
            modules=MODULES["table_human"],
        output:
            multiext(f"{OUT}/tables/human", ".csv", ".md", ".tex"),
        log:
            f"{LOGS}/tables/human.log",
        benchmark:
            f"{BENCHMARKS}/tables/human.tsv"
        conda:
            ENVIRONMENT
        params:
            caption=CAPTION,
            judge=IDENTITY["judge"],
        script:
            "../scripts/table_human.py"


# What `snakemake --report` shows, by captions and categories.
KINDS = {".csv": "tables", ".svg": "figures"}


rule collect:
    input:
        tables=TABLES + RESOURCES,
        modules=MODULES["collect"],
    output:
        [
            (
                report(
                    path,
                    caption=f"../report/{KINDS[kind]}.rst",
                    category=KINDS[kind].capitalize(),
                    labels={"name": name},
                )
                if kind in KINDS
                else path
            )
            for path in COLLECTED
            for name, kind in [os.path.splitext(os.path.basename(path))]
        ],
    log:
        f"{LOGS}/tables/collect.log",
    benchmark:
        f"{BENCHMARKS}/tables/collect.tsv"
    localrule: True
    conda:
        ENVIRONMENT
    params:
        caption=CAPTION,
        endpoints=[IDENTITY[role] for role in ROLES],
    script:
        "../scripts/collect.py"
