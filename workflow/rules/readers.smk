"""Fetching of readers."""


# If only code has changed, a complete file is kept and nothing is fetched.
rule public_reader:
    output:
        update("data/readers/{file}.gguf"),
    log:
        f"{LOGS}/public_reader/{{file}}.log",
    benchmark:
        f"{BENCHMARKS}/public_reader/{{file}}.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        code=digests.of("public_reader"),
        sha256=lambda wildcards, output: public.entry(output[0]) and public.entry(output[0]).sha256,
    script:
        "../scripts/public_reader.py"


# The machine that submits has the network, and jobs that begin together would all fetch. Nothing is left but the files.
rule readers:
    input:
        plan.reader_files,
    log:
        f"{LOGS}/readers.log",
    benchmark:
        f"{BENCHMARKS}/readers.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        code=digests.of("readers"),
    script:
        "../scripts/readers.py"
