"""Tables, figures, the pages that show answers token by token, and the report; `utaca.reporting.registry` lists them."""


rule table:
    input:
        unpack(lambda wildcards: made_from(wildcards.table)),
    output:
        multiext(f"{OUT}/tables/{{table}}", ".csv", ".md", ".tex"),
    log:
        f"{LOGS}/tables/{{table}}.log",
    benchmark:
        f"{MEASURED}/table/{{table}}.tsv"
    conda:
        ENVIRONMENT
    params:
        code=lambda wildcards: table_code(wildcards.table),
        shown=lambda wildcards: shown(wildcards.table),
    script:
        "../scripts/table.py"


rule figure:
    input:
        unpack(lambda wildcards: made_from(wildcards.figure)),
    output:
        multiext(f"{OUT}/figures/{{figure}}", ".csv", ".png", ".svg"),
    log:
        f"{LOGS}/figures/{{figure}}.log",
    benchmark:
        f"{MEASURED}/figure/{{figure}}.tsv"
    conda:
        ENVIRONMENT
    params:
        code=lambda wildcards: table_code(wildcards.figure),
        shown=lambda wildcards: shown(wildcards.figure),
    script:
        "../scripts/table.py"


rule view_traces:
    input:
        documents=f"{OUT}/documents/{{split}}.parquet",
        answers=lambda wildcards: generations("answers", wildcards.split, "blocks"),
        traces=lambda wildcards: generations("traces", wildcards.split, "blocks"),
        scores=f"{SCORES}/{{split}}/blocks.parquet",
        labels=lambda wildcards: labelled(wildcards.split),
        tokenizer=TOKENIZER_FILES,
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
        caption=CAPTION,
        memory=READER["memory"],
    script:
        "../scripts/view_traces.py"


rule report:
    input:
        results=RESULTS,
        run=rules.run_config.output[0],
        manifest=rules.manifest.output[0],
        links=list(LINKS.values()),
    output:
        REPORT,
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
        links=LINKS,
        texts=[(entry.title, entry.theme, entry.caption) for entry in TABLES.values()],
    script:
        "../scripts/report.py"
