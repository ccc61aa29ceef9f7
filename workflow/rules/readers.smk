"""Training of the tiny reader: never part of the main job, which uses the reader in config `reader.path`."""


rule reader:
    input:
        corpus=TRAINING_FILES,
        modules=MODULES["reader"],
    output:
        directory(f"{OUT}/reader"),
    log:
        f"{LOGS}/reader/reader.log",
    conda:
        ENVIRONMENT
    threads: workflow.cores
    params:
        training=IDENTITY["reader"]["training"],
        memory=IDENTITY["reader"]["memory"],
    script:
        "../scripts/reader.py"
