"""People and facts, padding prose, and the long documents made of both."""


rule draw_biographies:
    output:
        f"{OUT}/biographies/{{split}}.parquet",
    log:
        f"{LOGS}/draw_biographies/{{split}}.log",
    benchmark:
        f"{MEASURED}/draw_biographies/{{split}}.tsv"
    wildcard_constraints:
        split="train|validation",
    params:
        code=CODE["draw_biographies"],
        seed=SETTINGS.seed,
        number=lambda wildcards: size(wildcards.split).biographies,
    script:
        "../scripts/draw_biographies.py"


rule write_biographies:
    input:
        PEOPLE_FILES,
    output:
        biographies=f"{OUT}/biographies/test.parquet",
        usage=usage(f"{OUT}/biographies/test.parquet"),
    log:
        f"{LOGS}/write_biographies/test.log",
    benchmark:
        f"{MEASURED}/write_biographies/test.tsv"
    retries: retries("writer")
    params:
        code=CODE["write_biographies"],
        seed=SETTINGS.seed,
        number=SETTINGS.scale.test.biographies,
        people=SETTINGS.scale.test.people,
        writer=IDENTITY["writer"],
    script:
        "../scripts/write_biographies.py"


rule corpus:
    input:
        files=CORPUS_FILES,
    output:
        f"{OUT}/corpus.parquet",
    log:
        f"{LOGS}/corpus.log",
    benchmark:
        f"{MEASURED}/corpus.tsv"
    retries: 2 if SETTINGS.corpus.source == "wikipedia" else 0
    params:
        code=CODE["corpus"],
        seed=SETTINGS.seed,
        corpus=IDENTITY["corpus"],
        cache="results/corpus/cache",
    script:
        "../scripts/corpus.py"


rule pad:
    input:
        biographies=f"{OUT}/biographies/{{split}}.parquet",
        corpus=rules.corpus.output,
        tokenizer=TOKENIZER_FILES,
    output:
        f"{OUT}/documents/{{split}}.parquet",
    log:
        f"{LOGS}/pad/{{split}}.log",
    benchmark:
        f"{MEASURED}/pad/{{split}}.tsv"
    params:
        code=CODE["pad"],
        seed=SETTINGS.seed,
        tokens=lambda wildcards: size(wildcards.split).tokens,
        corpus=SETTINGS.corpus.name,
        tokenizer=[SETTINGS.reader.path, SETTINGS.reader.revision],
    script:
        "../scripts/pad.py"
