"""How fast the parts are; no part of the main job."""


rule benchmark_endpoints:
    input:
        modules=MODULES["benchmark_endpoints"],
    output:
        multiext("results/benchmarks/endpoints", ".csv", ".md", ".tex"),
    log:
        "logs/benchmarks/endpoints.log",
    conda:
        ENVIRONMENT
    # One for the client, one for the server; nothing else is to run meanwhile.
    threads: workflow.cores
    params:
        number=1000,
        concurrency=32,
        seconds=0.05,
        runs=5,
    script:
        "../scripts/benchmark_endpoints.py"
