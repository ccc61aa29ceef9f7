"""Fetching of readers, and the card that says how well a reader reads; it is no part of the main job."""

CARD = IDENTITY["card"]


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
        cell="[a-z]+(-[0-9]+)?",
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
        card={k: v for k, v in CARD.items() if k not in ("lengths", "written_lengths")},
        journal=f"{OUT}/journal/card",
    script:
        "../scripts/read_card.py"


rule reader_speed:
    input:
        corpus=rules.corpus.output,
        reader=PLAN.reader_files,
    output:
        f"{OUT}/reader/speed.json",
    log:
        f"{LOGS}/reader/speed.log",
    benchmark:
        f"{MEASURED}/reader/speed.tsv"
    conda:
        ENVIRONMENT
    # It uses one; nothing else is to run meanwhile.
    threads: lambda wildcards: workflow.cores
    resources:
        **PLAN.decodes(lambda wildcards: PLAN.card_work()),
    params:
        code=CODE["reader_speed"],
        seed=SETTINGS.seed,
        corpus=SETTINGS.corpus.name,
        reader=PLAN.reader,
        # A document keeps its length to within 1 %.
        length=max([*CARD["lengths"], *CARD["written_lengths"], 4096]) + 512,
    script:
        "../scripts/reader_speed.py"


rule card:
    input:
        readings=expand(rules.read_card.output, cell=SETTINGS.card.cells),
        labels=f"{LABELS}/train.parquet",
        corpus=rules.corpus.output,
        speed=rules.reader_speed.output[0],
        tokenizer=PLAN.tokenizer_files,
    output:
        markdown=f"{OUT}/reader/card.md",
        csv=f"{OUT}/reader/card.csv",
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
        questions=CARD["questions"],
        judge=IDENTITY["judge"],
        tokenizer=[SETTINGS.reader.path, SETTINGS.reader.revision],
    script:
        "../scripts/card.py"
