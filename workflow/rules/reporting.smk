"""Tables, figures, the pages that show answers token by token, and the report; `utaca.reporting.registry` lists them."""

for kind, endings in ENDINGS.items():

    rule:
        name:
            kind
        input:
            unpack(lambda wildcards: reporting.made_from(wildcards.entry)),
        output:
            report(
                f"{OUT}/{kind}s/{{entry}}.{SHOWN[kind]}",
                caption="../report/result.rst",
                category=reporting.theme,
                labels=reporting.labels,
            ),
            multiext(f"{OUT}/{kind}s/{{entry}}", *(f".{ending}" for ending in endings if ending != SHOWN[kind])),
        log:
            f"{LOGS}/{kind}/{{entry}}.log",
        benchmark:
            f"{BENCHMARKS}/{kind}/{{entry}}.tsv"
        wildcard_constraints:
            entry="|".join(name for name, entry in ENTRIES.items() if entry.kind == kind),
        conda:
            "../../environment.yml"
        params:
            code=digests.of(kind, "table.py"),
            shown=lambda wildcards: reporting.shown(wildcards.entry),
        script:
            "../scripts/table.py"


rule view_traces:
    input:
        documents=f"{OUT}/documents/{{split}}.parquet",
        answers=lambda wildcards: plan.generations("answers", wildcards.split, "blocks"),
        traces=lambda wildcards: plan.generations("traces", wildcards.split, "blocks"),
        scores=f"{SCORES}/{{split}}/blocks.parquet",
        labels=lambda wildcards: plan.labelled(wildcards.split),
        tokenizer=plan.tokenizer_files,
    output:
        f"{OUT}/traces/{{split}}.html",
    log:
        f"{LOGS}/view_traces/{{split}}.log",
    benchmark:
        f"{BENCHMARKS}/view_traces/{{split}}.tsv"
    conda:
        "../../environment.yml"
    params:
        code=digests.of("view_traces"),
        caption=plan.caption,
        memory=plan.reader["memory"],
    script:
        "../scripts/view_traces.py"


rule report:
    input:
        results=reporting.results,
        run=rules.run_config.output[0],
        manifest=rules.manifest.output[0],
        links=list(reporting.links.values()),
    output:
        report(
            plan.report,
            caption="../report/run.rst",
            category=OF_RUN,
            labels={"shows": "The report of the run", "as": "page"},
        ),
    log:
        f"{LOGS}/report.log",
    benchmark:
        f"{BENCHMARKS}/report.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        code=digests.of("report"),
        identity=IDENTITY,
        links=reporting.links,
        left_out=reporting.left_out,
        texts=[(entry.title, entry.theme, entry.caption, entry.fill) for entry in reporting.tables.values()],
    script:
        "../scripts/report.py"
