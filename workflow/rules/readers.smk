"""Fetching of readers."""


# A whole file is kept, and nothing is fetched, where code alone has changed.
rule public_reader:
    output:
        update("data/readers/{file}.gguf"),
    log:
        f"{LOGS}/reader/{{file}}.log",
    benchmark:
        f"{MEASURED}/reader/{{file}}.tsv"
    localrule: True
    params:
        code=CODE["public_reader"],
    script:
        "../scripts/public_reader.py"


# The machine that submits has the network, and jobs that begin together would all fetch. Nothing is left but the files.
rule readers:
    input:
        READER_FILES,
    log:
        f"{LOGS}/reader/readers.log",
    benchmark:
        f"{MEASURED}/reader/readers.tsv"
    localrule: True
    params:
        code=CODE["readers"],
    script:
        "../scripts/readers.py"
