"""Tables and figures of one reader, collected in results/tables with an index page; pages for people to review."""

FORMATS = ["csv", "md", "tex"]
# Splits with suites; their tables are made of all of these.
GENERATION_TABLES = {
    split: suites
    for split in ["validation", "test"]
    if (suites := [name for name, s in SETTINGS.suites.items() if s.split == split])
}
ANSWERS = {
    split: [path for suite in suites for path in GENERATIONS[suite]]
    for split, suites in GENERATION_TABLES.items()
}
JUDGED = {
    split: [path for suite in suites for path in SCORES[suite]]
    for split, suites in GENERATION_TABLES.items()
}
DETECTION_FIGURES = ["reliability", "margins"]
# What an expansion changes is told by trajectories that tried it.
TRIGGER_TABLES = ["triggers"] if SETTINGS.trajectories.expanded else []
TABLES = (
    expand(
        f"{OUT}/tables/{{table}}.{{format}}",
        table=[
            "detection",
            "ablation",
            *TRIGGER_TABLES,
            "endpoints",
            *GENERATION_TABLES,
            *(["tradeoff"] if "test" in JUDGED else []),
            "labels",
            *(["human"] if "test" in JUDGED else []),
        ],
        format=FORMATS,
    )
    + expand(
        f"{OUT}/tables/{{figure}}.{{format}}",
        figure=[
            *(["pareto", "budget"] if "test" in JUDGED else []),
            *DETECTION_FIGURES,
            "detectors",
        ],
        format=["png", "svg"],
    )
    + expand(
        f"{OUT}/tables/{{figure}}.csv",
        figure=[*(["budget"] if "test" in JUDGED else []), *DETECTION_FIGURES],
    )
)
TABLE_TARGETS = {"tables", "results/tables", "results/tables/"}
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


if "validation" in JUDGED:

    rule table_validation:
        input:
            answers=ANSWERS["validation"],
            scores=JUDGED["validation"],
            modules=MODULES["table_validation"],
        output:
            multiext(f"{OUT}/tables/validation", ".csv", ".md", ".tex"),
        log:
            f"{LOGS}/tables/validation.log",
        benchmark:
            f"{BENCHMARKS}/tables/validation.tsv"
        conda:
            ENVIRONMENT
        params:
            caption=CAPTION,
            judge=IDENTITY["judge"],
        script:
            "../scripts/table_validation.py"


if "test" in JUDGED:

    rule table_test:
        input:
            answers=ANSWERS["test"],
            scores=JUDGED["test"],
            modules=MODULES["table_test"],
        output:
            multiext(f"{OUT}/tables/test", ".csv", ".md", ".tex"),
            multiext(f"{OUT}/tables/pareto", ".png", ".svg"),
        log:
            f"{LOGS}/tables/test.log",
        benchmark:
            f"{BENCHMARKS}/tables/test.tsv"
        conda:
            ENVIRONMENT
        params:
            caption=CAPTION,
            judge=IDENTITY["judge"],
        script:
            "../scripts/table_test.py"

    rule table_tradeoff:
        input:
            answers=ANSWERS["test"],
            scores=JUDGED["test"],
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


if "test" in JUDGED:

    rule review_scores:
        input:
            scores=JUDGED["test"],
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
            scores=JUDGED["test"],
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
