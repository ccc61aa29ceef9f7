"""What people look at: answers token by token, and the report."""

# Beside the answers.
TRACES = {
    name: [
        os.path.join(os.path.dirname(path), os.path.basename(path).replace("answers", "traces", 1))
        for path in paths
    ]
    for name, paths in GENERATIONS.items()
}
VIEWS = [f"{OUT}/traces/{name}.html" for name in GENERATIONS]


rule traces:
    input:
        VIEWS,
    localrule: True


rule view_traces:
    input:
        documents=lambda wildcards: f"{OUT}/documents/{SETTINGS.suites[wildcards.suite].split}.parquet",
        answers=lambda wildcards: GENERATIONS[wildcards.suite],
        traces=lambda wildcards: TRACES[wildcards.suite],
        scores=lambda wildcards: SCORES[wildcards.suite],
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
    conda:
        ENVIRONMENT
    params:
        caption=CAPTION,
        judge=IDENTITY["judge"],
        documents=SETTINGS.report.traced_documents,
        memory=READER["memory"],
    script:
        "../scripts/view_traces.py"
