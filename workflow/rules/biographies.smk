"""People and facts, padding prose, and the documents made of them."""


rule draw_biographies:
    output:
        f"{OUT}/biographies/{{split}}.parquet",
    log:
        f"{LOGS}/draw_biographies/{{split}}.log",
    benchmark:
        f"{BENCHMARKS}/draw_biographies/{{split}}.tsv"
    wildcard_constraints:
        split="train|validation",
    conda:
        "../../environment.yml"
    params:
        code=digests.of("draw_biographies"),
        seed=SETTINGS.seed,
        number=lambda wildcards: plan.size(wildcards.split).biographies,
    script:
        "../scripts/draw_biographies.py"


rule write_biographies:
    input:
        plan.people_files,
    output:
        biographies=f"{OUT}/biographies/test.parquet",
        usage=plan.usage(f"{OUT}/biographies/test.parquet"),
    log:
        f"{LOGS}/write_biographies.log",
    benchmark:
        f"{BENCHMARKS}/write_biographies.tsv"
    retries: needs.retries("writer")
    conda:
        "../../environment.yml"
    params:
        code=digests.of("write_biographies"),
        seed=SETTINGS.seed,
        number=SETTINGS.scale.test.biographies,
        people=SETTINGS.scale.test.people,
        writer=IDENTITY["writer"],
    script:
        "../scripts/write_biographies.py"


rule corpus:
    input:
        files=plan.corpus_files,
    output:
        f"{OUT}/corpus.parquet",
    log:
        f"{LOGS}/corpus.log",
    benchmark:
        f"{BENCHMARKS}/corpus.tsv"
    retries: 2 if SETTINGS.corpus.source == "wikipedia" else 0
    conda:
        "../../environment.yml"
    params:
        code=digests.of("corpus"),
        seed=SETTINGS.seed,
        corpus=IDENTITY["corpus"],
        cache="results/corpus/cache",
    script:
        "../scripts/corpus.py"


rule fill:
    input:
        biographies=f"{OUT}/biographies/{{split}}.parquet",
        tokenizer=plan.tokenizer_files,
    output:
        f"{OUT}/documents/{{split}}.parquet",
    log:
        f"{LOGS}/fill/{{split}}.log",
    benchmark:
        f"{BENCHMARKS}/fill/{{split}}.tsv"
    wildcard_constraints:
        split="train|validation",
    conda:
        "../../environment.yml"
    params:
        code=digests.of("fill"),
        seed=SETTINGS.seed,
        people_per_document=lambda wildcards: plan.size(wildcards.split).people_per_document,
        tokens=lambda wildcards: plan.size(wildcards.split).tokens,
        mean_tokens=lambda wildcards: plan.size(wildcards.split).mean_tokens,
        tokenizer=[SETTINGS.reader.path, SETTINGS.reader.revision],
    script:
        "../scripts/fill.py"


rule pad:
    input:
        biographies=f"{OUT}/biographies/test.parquet",
        corpus=rules.corpus.output,
        tokenizer=plan.tokenizer_files,
    output:
        f"{OUT}/documents/test.parquet",
    log:
        f"{LOGS}/pad.log",
    benchmark:
        f"{BENCHMARKS}/pad.tsv"
    conda:
        "../../environment.yml"
    params:
        code=digests.of("pad"),
        seed=SETTINGS.seed,
        tokens=SETTINGS.scale.test.tokens,
        mean_tokens=SETTINGS.scale.test.mean_tokens,
        corpus=SETTINGS.corpus.name,
        tokenizer=[SETTINGS.reader.path, SETTINGS.reader.revision],
    script:
        "../scripts/pad.py"
