"""People and facts, padding prose, and the long documents made of both."""


rule biographies:
    input:
        expand("results/biographies/{split}.parquet", split=SPLITS),
    localrule: True


rule draw_biographies:
    input:
        modules=MODULES["draw_biographies"],
    output:
        "results/biographies/{split}.parquet",
    log:
        "logs/draw_biographies/{split}.log",
    benchmark:
        "results/benchmarks/draw_biographies/{split}.tsv"
    wildcard_constraints:
        split="train|validation",
    conda:
        ENVIRONMENT
    params:
        seed=SETTINGS.seed,
        number=lambda wildcards: SCALE[wildcards.split]["biographies"],
    script:
        "../scripts/draw_biographies.py"


rule write_biographies:
    input:
        modules=MODULES["write_biographies"],
    output:
        biographies="results/biographies/test.parquet",
        usage=USAGE["writer"],
    log:
        "logs/write_biographies/test.log",
    benchmark:
        "results/benchmarks/write_biographies/test.tsv"
    retries: RETRIES["writer"]
    conda:
        ENVIRONMENT
    params:
        seed=SETTINGS.seed,
        number=SCALE["test"]["biographies"],
        writer=IDENTITY["writer"],
        store=STORE,
    script:
        "../scripts/write_biographies.py"


rule corpus:
    input:
        files=CORPUS_FILES,
        modules=MODULES["corpus"],
    output:
        f"results/corpus/{SETTINGS.corpus.name}.parquet",
    log:
        f"logs/corpus/{SETTINGS.corpus.name}.log",
    benchmark:
        f"results/benchmarks/corpus/{SETTINGS.corpus.name}.tsv"
    retries: 2 if SETTINGS.corpus.source == "wikipedia" else 0
    conda:
        ENVIRONMENT
    params:
        seed=SETTINGS.seed,
        corpus=IDENTITY["corpus"],
        cache="results/corpus/cache",
    script:
        "../scripts/corpus.py"


rule documents:
    input:
        expand(f"{OUT}/documents/{{split}}.parquet", split=SPLITS),
    localrule: True


rule pad:
    input:
        biographies="results/biographies/{split}.parquet",
        corpus=rules.corpus.output,
        tokenizer=TOKENIZER_FILES,
        modules=MODULES["pad"],
    output:
        f"{OUT}/documents/{{split}}.parquet",
    log:
        f"{LOGS}/pad/{{split}}.log",
    benchmark:
        f"{BENCHMARKS}/pad/{{split}}.tsv"
    conda:
        ENVIRONMENT
    params:
        seed=SETTINGS.seed,
        tokens=lambda wildcards: SCALE[wildcards.split]["tokens"],
        corpus=SETTINGS.corpus.name,
        tokenizer=[SETTINGS.reader.path, SETTINGS.reader.revision],
    script:
        "../scripts/pad.py"
