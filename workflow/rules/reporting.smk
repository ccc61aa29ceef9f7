"""Tables of one reader, collected in results/tables with an index page."""

FORMATS = ["csv", "md", "tex"]
# Tables by name, each with the suites that it is made of.
GENERATION_TABLES = {
    split: suites
    for split in ["validation", "test"]
    if (suites := [name for name, s in SETTINGS.suites.items() if s.split == split])
}
TABLES = ["detection", *GENERATION_TABLES]
if "test" in GENERATION_TABLES:
    TABLES.append("tradeoff")
TABLE_TARGETS = {"tables", "results/tables", "results/tables/"}
COLLECTED = expand(
    f"results/tables/{SETTINGS.reader.name}-{{table}}.{{format}}",
    table=TABLES,
    format=FORMATS,
)


rule table_detection:
    input:
        detections=f"{OUT}/detections/test.parquet",
        modules=MODULES["table_detection"],
    output:
        multiext(f"{OUT}/tables/detection", csv=".csv", md=".md", tex=".tex"),
    log:
        f"{LOGS}/table_detection/detection.log",
    conda:
        ENVIRONMENT
    params:
        reader=SETTINGS.reader.name,
        bootstrap=SCALE["bootstrap"],
        seed=SETTINGS.seed,
    script:
        "../scripts/table_detection.py"


for split, suites in GENERATION_TABLES.items():

    rule:
        name:
            f"table_{split}"
        input:
            answers=[path for suite in suites for path in GENERATIONS[suite]],
            scores=[path for suite in suites for path in SCORES[suite]],
            modules=MODULES["table_generation"],
        output:
            multiext(f"{OUT}/tables/{split}", csv=".csv", md=".md", tex=".tex"),
        log:
            f"{LOGS}/table_{split}/{split}.log",
        conda:
            ENVIRONMENT
        params:
            table=split,
            reader=SETTINGS.reader.name,
            bootstrap=SCALE["bootstrap"],
            seed=SETTINGS.seed,
        script:
            "../scripts/table_generation.py"


if "test" in GENERATION_TABLES:

    rule table_tradeoff:
        input:
            answers=[
                p for suite in GENERATION_TABLES["test"] for p in GENERATIONS[suite]
            ],
            scores=[p for suite in GENERATION_TABLES["test"] for p in SCORES[suite]],
            modules=MODULES["table_generation"],
        output:
            multiext(f"{OUT}/tables/tradeoff", csv=".csv", md=".md", tex=".tex"),
        log:
            f"{LOGS}/table_tradeoff/tradeoff.log",
        conda:
            ENVIRONMENT
        params:
            table="tradeoff",
            reader=SETTINGS.reader.name,
            bootstrap=SCALE["bootstrap"],
            seed=SETTINGS.seed,
        script:
            "../scripts/table_generation.py"


rule collect:
    input:
        multiext(f"{OUT}/tables/{{table}}", csv=".csv", md=".md", tex=".tex"),
    output:
        multiext(
            f"results/tables/{SETTINGS.reader.name}-{{table}}",
            csv=".csv",
            md=".md",
            tex=".tex",
        ),
    log:
        f"{LOGS}/collect/{{table}}.log",
    wildcard_constraints:
        table="|".join(TABLES),
    localrule: True
    conda:
        ENVIRONMENT
    shell:
        """
        {{
                                                    cp {input.csv} {output.csv}
                                                    cp {input.md} {output.md}
                                                    cp {input.tex} {output.tex}
                                                }} 2>{log}
        """


rule index:
    input:
        tables=expand(f"{OUT}/tables/{{table}}.md", table=TABLES),
        modules=MODULES["index"],
    output:
        "results/tables/index.md",
    log:
        f"{LOGS}/index/index.log",
    localrule: True
    conda:
        ENVIRONMENT
    params:
        config=IDENTITY,
    script:
        "../scripts/index.py"
