"""Descriptions of a run in captions: reader, corpus, endpoints, seeds, intervals."""

from utaca.machine import chosen_dtype
from utaca.readers.gguf import is_packed
from utaca.reporting import statistics
from utaca.settings import schema

_SMALLEST = "smoke"
"""The scale whose documents are so few and short that its numbers mean nothing."""


def corpus_in_words(config: schema.Config) -> str:
    """The name of the padding corpus, with a remark if the corpus is synthetic."""
    remark = " (synthetic prose)" if config.corpus.source == "embedded" else ""
    return f"{config.corpus.name}{remark}"


def endpoint_in_words(endpoint: schema.EndpointSettings) -> str:
    """The name of an endpoint with its model, or with a note that built-in rules replace a model."""
    if endpoint.kind == "reference":
        return f"{endpoint.name} (built-in rules, no language model; the paper used GPT-OSS-120B)"
    return f"{endpoint.name} ({endpoint.model})"


def what_is_synthetic(config: schema.Config) -> str:
    """Sentences on the synthetic parts of a run, and on the origin of the paper's numbers."""
    people_file = config.scale.test.people  # biographies that people wrote; "" if the test split's people are drawn
    sentences = ["All people and facts are invented."]
    if people_file:
        sentences.append(f"The people of the test split come from {people_file}.")
    if config.corpus.source == "embedded":
        sentences.append(
            "The test documents are filled with synthetic prose that ships with the project, not with natural text."
        )
    # The writer only writes biographies of the test split, if they do not come from a file.
    roles = ("labeller", "judge") if people_file else ("writer", "labeller", "judge")
    rules = [role for role in roles if getattr(config, role).kind == "reference"]
    if rules:
        sentences.append(f"Built-in rules, and no language model, are used as {' and '.join(rules)}.")
    if config.reader.path.rstrip("/").endswith("data/readers/tiny"):
        sentences.append("The reader is a small model that ships with the project and was trained on this task.")
    sentences.append("The paper's results are shown for comparison; the paper used other models and data.")
    if config.scale.name == _SMALLEST:
        sentences.append("This run uses the smallest sizes that work, so its results mean nothing.")
    return " ".join(sentences)


def tasks_in_words(config: schema.Config) -> str:
    """A warning if a run asks the small questions that ship with the project; "" for other questions."""
    if config.tasks.path.rstrip("/").endswith("data/tasks"):
        return (
            "The questions are a few examples that ship with the project to try its code, so the scores mean nothing."
        )
    return ""


def seeds_in_words(config: schema.Config) -> str:
    """The config's seed, and which seeds of detectors its points are decoded with."""
    # Seeds of detectors count from 0, so their number is the largest plus 1.
    number = max((point.seed + 1 for point in config.operating.values()), default=1)
    detector = f"{number} detector seeds" if number > 1 else "detector seed 0"
    return f"config seed {config.seed}, {detector}"


def run_in_words(config: schema.Config, role: str) -> str:
    """The paragraph on the run: reader, corpus, the endpoint in a ``role`` ("labeller", say) and the scale."""
    endpoint = endpoint_in_words(getattr(config, role))
    remark = " (the smallest; its results mean nothing)" if config.scale.name == _SMALLEST else ""
    return (
        f"Run: reader {reader_in_words(config.reader)}; test documents padded with {corpus_in_words(config)}; "
        f"{role} {endpoint}; scale {config.scale.name}{remark}"
    )


def reader_in_words(reader: schema.ReaderSettings) -> str:
    """A reader's name, its number type if this machine chooses it, and settings of memory that differ from InfLLM's."""
    memory = reader.memory
    unlike_infllm = []
    if memory.representatives == schema.TOKENS:
        unlike_infllm.append(f"representatives={memory.representatives}")
    if memory.far_positions != schema.CLIPPED:
        unlike_infllm.append(f"far_positions={memory.far_positions}")
    name = reader.name
    if reader.dtype == "auto":
        name += f" in {chosen_dtype(reader.dtype, reader.device)}"
    if is_packed(reader):
        name += " with packed weights"
    return f"{name} (not by InfLLM's rules: {', '.join(unlike_infllm)})" if unlike_infllm else name


def intervals_in_words(config: schema.Config) -> str:
    """The end of a caption that says what the intervals in brackets are."""
    what = f"documents, and seeds if a number has several ({config.scale.bootstrap} resamples)"
    return f"brackets: {statistics.LEVEL:.0%} bootstrap intervals over {what}."
