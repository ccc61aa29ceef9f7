"""Fetching of readers, and the card that says how well a reader reads; it is no part of the main job."""


# A whole file is kept, and nothing is fetched, where code alone has changed.
rule public_reader:
    output:
        update("data/readers/{file}.gguf"),
    log:
        f"{LOGS}/reader/{{file}}.log",
    benchmark:
        f"{MEASURED}/reader/{{file}}.tsv"
    localrule: True
    conda:
        ENVIRONMENT
    params:
        code=CODE["public_reader"],
    script:
        "../scripts/public_reader.py"


# The machine that submits has the network, and jobs that begin together would all fetch. Nothing is left but the files.
rule readers:
    input:
        PLAN.reader_files,
    log:
        f"{LOGS}/reader/readers.log",
    benchmark:
        f"{MEASURED}/reader/readers.tsv"
    localrule: True
    conda:
        ENVIRONMENT
    params:
        code=CODE["readers"],
    script:
        "../scripts/readers.py"


rule read_card:
    input:
        corpus=rules.corpus.output,
        reader=PLAN.reader_files,
        asked=PLAN.card_files,
    output:
        f"{OUT}/reader/readings/{{cell}}.parquet",
    log:
        f"{LOGS}/reader/readings/{{cell}}.log",
    benchmark:
        f"{MEASURED}/reader/readings/{{cell}}.tsv"
    wildcard_constraints:
        cell="summary|natural|absent|xquad|written(-[0-9]+)?|(blocks|prefill)-[0-9]+",
    conda:
        ENVIRONMENT
    threads: 1
    resources:
        **PLAN.decodes(lambda wildcards: PLAN.card_work()),
    params:
        code=CODE["read_card"],
        seed=SETTINGS.seed,
        corpus=SETTINGS.corpus.name,
        reader=PLAN.reader,
        card={
            k: v
            for k, v in IDENTITY["card"].items()
            if k not in ("lengths", "written_lengths")
        },
        journal=f"{OUT}/journal/card",
    script:
        "../scripts/read_card.py"


rule card:
    input:
        readings=expand(rules.read_card.output, cell=SETTINGS.card.cells),
    output:
        expand(f"{OUT}/reader/card.{{ending}}", ending=["csv", "md", "tex"]),
    log:
        f"{LOGS}/reader/card.log",
    benchmark:
        f"{MEASURED}/reader/card.tsv"
    retries: PLAN.retries("judge")
    conda:
        ENVIRONMENT
    params:
        code=CODE["card"],
        seed=SETTINGS.seed,
        corpus=[SETTINGS.corpus.name, SETTINGS.corpus.source, SETTINGS.corpus.path],
        reader=PLAN.reader,
        scale=[SETTINGS.scale.name, SETTINGS.scale.bootstrap],
        judge=IDENTITY["judge"],
        bars=[repr(bar) for bar in SETTINGS.reader.bars],
    script:
        "../scripts/card.py"
