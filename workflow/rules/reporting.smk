"""Tables, figures, the pages that show answers token by token, and the report; `utaca.reporting.registry` lists them."""

for kind, endings in ENDINGS.items():

    rule:
        name:
            kind
        input:
            unpack(lambda wildcards: made_from(wildcards.entry)),
        output:
            multiext(f"{OUT}/{kind}s/{{entry}}", *(f".{ending}" for ending in endings)),
        log:
            f"{LOGS}/{kind}/{{entry}}.log",
        benchmark:
            f"{BENCHMARKS}/{kind}/{{entry}}.tsv"
        wildcard_constraints:
            entry="|".join(name for name, entry in ENTRIES.items() if entry.kind == kind),
        conda:
            "../../environment.yml"
        params:
            code=code_of(kind, "table.py"),
            shown=lambda wildcards: shown(wildcards.entry),
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
        f"{BENCHMARKS}/view_traces/{{split}}.tsv"
    conda:
        "../../environment.yml"
    params:
        code=code_of("view_traces"),
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
        f"{BENCHMARKS}/report.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        code=code_of("report"),
        identity=IDENTITY,
        links=LINKS,
        texts=[(entry.title, entry.theme, entry.caption) for entry in TABLES.values()],
    script:
        "../scripts/report.py"
