"""How fast the parts are; no part of the main job."""


rule benchmark_endpoints:
    output:
        multiext("results/benchmarks/endpoints", ".csv", ".md", ".tex"),
    log:
        "logs/benchmarks/endpoints.log",
    benchmark:
        "results/benchmarks/measured/endpoints.tsv"
    conda:
        ENVIRONMENT
    # One for the client, one for the server; nothing else is to run meanwhile.
    threads: lambda wildcards: workflow.cores
    params:
        code=CODE["benchmark_endpoints"],
        number=1000,
        concurrency=32,
        seconds=0.05,
        runs=5,
    script:
        "../scripts/benchmark_endpoints.py"


rule benchmark_engine:
    input:
        reader=PLAN.reader_files,
    output:
        multiext("results/benchmarks/engine", ".csv", ".md", ".tex", ".png", ".svg"),
        multiext("results/benchmarks/engine_contexts", ".csv", ".md", ".tex"),
    log:
        "logs/benchmarks/engine.log",
    benchmark:
        "results/benchmarks/measured/engine.tsv"
    conda:
        ENVIRONMENT
    # The model uses all of them.
    threads: lambda wildcards: workflow.cores
    resources:
        **PLAN.decodes(),
    params:
        code=CODE["benchmark_engine"],
        reader=PLAN.reader,
        # Contexts, documents and answers in tokens, budgets in blocks; every how many steps UT-ACA expands.
        plan={
            "decode": [8192, 131072],
            "prefill": [32768, 262144],
            "dense": [8192, 32768, 65536],
            "resident": 400000,
            "budget": 32,
            "tokens": 55,
            "every": 11,
            "repeats": 3,
        },
        # An 8B shape with random weights, where there is a GPU.
        shape={
            "length": 252000,
            "budgets": [32, 48, 64, 96],
            "tokens": 200,
            "every": 11,
            "repeats": 3,
        },
    script:
        "../scripts/benchmark_engine.py"


rule benchmark_detectors:
    output:
        multiext("results/benchmarks/detectors", ".csv", ".md", ".tex"),
    log:
        "logs/benchmarks/detectors.log",
    benchmark:
        "results/benchmarks/measured/detectors.tsv"
    conda:
        ENVIRONMENT
    # Nothing else is to run meanwhile.
    threads: lambda wildcards: workflow.cores
    params:
        code=CODE["benchmark_detectors"],
        # The tiny reader's width and Llama-3.1-8B's.
        widths=[256, 4096],
        seeds=8,
        steps=100,
        paper_steps=10000,
    script:
        "../scripts/benchmark_detectors.py"
