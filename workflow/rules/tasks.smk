"""Sets of tasks: their rows, answers, official scores, and trajectories that detectors learn from."""


rule task_examples:
    input:
        files=lambda wildcards: plan.task_files(wildcards.task),
        tokenizer=plan.tokenizer_files,
        corpus=lambda wildcards: plan.task_corpus(wildcards.task),
    output:
        f"{OUT}/tasks/{{task}}/examples.parquet",
    log:
        f"{LOGS}/task_examples/{{task}}.log",
    benchmark:
        f"{BENCHMARKS}/task_examples/{{task}}.tsv"
    conda:
        "../../environment.yml"
    params:
        code=digests.of("task_examples"),
        set=lambda wildcards: plan.task(wildcards.task),
        declared=lambda wildcards: plan.declared(wildcards.task),
        path=SETTINGS.tasks.path,
        reader=plan.reader,
    script:
        "../scripts/task_examples.py"


rule task_answers:
    input:
        examples=f"{OUT}/tasks/{{task}}/examples.parquet",
        reader=plan.reader_files,
        classifier=lambda wildcards: plan.classifier_files(SETTINGS.decoded(wildcards.task)),
        detectors=lambda wildcards: plan.trigger_files(SETTINGS.decoded(wildcards.task)),
    output:
        answers=f"{OUT}/tasks/{{task}}/answers.parquet",
        traces=f"{OUT}/tasks/{{task}}/traces.parquet",
    log:
        f"{LOGS}/task_answers/{{task}}.log",
    benchmark:
        f"{BENCHMARKS}/task_answers/{{task}}.tsv"
    # Long jobs first, so that none is left over at the end.
    priority: 1
    conda:
        "../../environment.yml"
    resources:
        **needs.decodes(lambda wildcards: needs.task_work(wildcards.task)),
    params:
        code=digests.of("task_answers"),
        task=lambda wildcards: plan.task(wildcards.task)["task"],
        declared=lambda wildcards: plan.declared(wildcards.task),
        reader=lambda wildcards: plan.task_reader(wildcards.task),
        points=lambda wildcards: [as_written(point) for point in SETTINGS.decoded(wildcards.task)],
        methods=lambda wildcards: plan.methods_of(SETTINGS.decoded(wildcards.task)),
        triggers=lambda wildcards: plan.triggers(SETTINGS.decoded(wildcards.task)),
        taken=lambda wildcards: plan.taken_by(SETTINGS.decoded(wildcards.task)),
        together=SETTINGS.generation.together,
        journal=f"{OUT}/journal/tasks",
    script:
        "../scripts/task_answers.py"


rule task_scores:
    input:
        examples=f"{OUT}/tasks/{{task}}/examples.parquet",
        answers=f"{OUT}/tasks/{{task}}/answers.parquet",
    output:
        f"{OUT}/tasks/{{task}}/scores.parquet",
    log:
        f"{LOGS}/task_scores/{{task}}.log",
    benchmark:
        f"{BENCHMARKS}/task_scores/{{task}}.tsv"
    localrule: True
    conda:
        "../../environment.yml"
    params:
        code=digests.of("task_scores"),
        task=lambda wildcards: plan.task(wildcards.task)["task"],
        declared=lambda wildcards: plan.declared(wildcards.task),
    script:
        "../scripts/task_scores.py"


rule task_trajectories:
    input:
        examples=f"{OUT}/tasks/{{task}}/examples.parquet",
        reader=plan.reader_files,
    output:
        f"{OUT}/tasks/{{task}}/trajectories.parquet",
    log:
        f"{LOGS}/task_trajectories/{{task}}.log",
    benchmark:
        f"{BENCHMARKS}/task_trajectories/{{task}}.tsv"
    conda:
        "../../environment.yml"
    resources:
        **needs.decodes(lambda wildcards: needs.task_work(wildcards.task)),
    params:
        code=digests.of("task_trajectories"),
        task=lambda wildcards: plan.task(wildcards.task)["task"],
        declared=lambda wildcards: plan.declared(wildcards.task),
        reader=lambda wildcards: plan.task_reader(wildcards.task),
        budgets=lambda wildcards: SETTINGS.tasks.sets[wildcards.task].budgets,
        recorded=IDENTITY["trajectories"],
        signals=SETTINGS.recorded,
        together=SETTINGS.generation.together,
        journal=f"{OUT}/journal/tasks/trajectories",
    script:
        "../scripts/task_trajectories.py"


rule label_tasks:
    input:
        trajectories=f"{OUT}/tasks/{{task}}/trajectories.parquet",
        examples=f"{OUT}/tasks/{{task}}/examples.parquet",
    output:
        labels=f"{LABELS}/tasks/{{task}}.parquet",
        usage=plan.usage(f"{LABELS}/tasks/{{task}}.parquet"),
    log:
        f"{LOGS}/label_tasks/{SETTINGS.labeller.name}/{{task}}.log",
    benchmark:
        f"{BENCHMARKS}/label_tasks/{SETTINGS.labeller.name}/{{task}}.tsv"
    retries: needs.retries("labeller")
    conda:
        "../../environment.yml"
    params:
        code=digests.of("label_tasks"),
        labeller=IDENTITY["labeller"],
    script:
        "../scripts/label_tasks.py"
