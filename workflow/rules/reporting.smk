"""Tables, figures, the pages that show answers token by token, and the report; `utaca.reporting.registry` lists them."""


rule table:
    input:
        unpack(lambda wildcards: PLAN.made_from(wildcards.table)),
    output:
        multiext(f"{OUT}/tables/{{table}}", ".csv", ".md", ".tex"),
    log:
        f"{LOGS}/tables/{{table}}.log",
    benchmark:
        f"{MEASURED}/table/{{table}}.tsv"
    conda:
        ENVIRONMENT
    params:
        code=lambda wildcards: PLAN.code(TABLE, wildcards.table),
        shown=lambda wildcards: PLAN.shown(wildcards.table),
    script:
        "../scripts/table.py"


rule figure:
    input:
        unpack(lambda wildcards: PLAN.made_from(wildcards.figure)),
    output:
        multiext(f"{OUT}/figures/{{figure}}", ".csv", ".png", ".svg"),
    log:
        f"{LOGS}/figures/{{figure}}.log",
    benchmark:
        f"{MEASURED}/figure/{{figure}}.tsv"
    conda:
        ENVIRONMENT
    params:
        code=lambda wildcards: PLAN.code(TABLE, wildcards.figure),
        shown=lambda wildcards: PLAN.shown(wildcards.figure),
    script:
        "../scripts/table.py"


rule traces:
    input:
        PLAN.stage("traces"),
    localrule: True


rule view_traces:
    input:
        documents=f"{OUT}/documents/{{split}}.parquet",
        answers=lambda wildcards: PLAN.generations("answers", wildcards.split, "blocks"),
        traces=lambda wildcards: PLAN.generations("traces", wildcards.split, "blocks"),
        scores=f"{SCORES}/{{split}}/blocks.parquet",
        labels=lambda wildcards: PLAN.labelled(wildcards.split),
        tokenizer=PLAN.tokenizer_files,
    output:
        f"{OUT}/traces/{{split}}.html",
    log:
        f"{LOGS}/view_traces/{{split}}.log",
    benchmark:
        f"{MEASURED}/view_traces/{{split}}.tsv"
    conda:
        ENVIRONMENT
    params:
        code=CODE["view_traces"],
        caption=PLAN.caption,
        memory=PLAN.reader["memory"],
    script:
        "../scripts/view_traces.py"


rule report:
    input:
        results=PLAN.results,
        run=rules.run_config.output[0],
        manifest=rules.manifest.output[0],
        links=list(PLAN.links.values()),
    output:
        PLAN.report,
    log:
        f"{LOGS}/report.log",
    benchmark:
        f"{MEASURED}/report.tsv"
    localrule: True
    conda:
        ENVIRONMENT
    params:
        code=CODE["report"],
        identity=IDENTITY,
        links=PLAN.links,
        texts=[
            (entry.title, entry.theme, entry.caption) for entry in PLAN.tables.values()
        ],
    script:
        "../scripts/report.py"
