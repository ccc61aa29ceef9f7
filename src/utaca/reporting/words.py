"""What a run is made of, in words: reader, corpus, endpoints, seeds, intervals."""

from __future__ import annotations

from utaca.readers.gguf import is_gguf
from utaca.reporting import render, statistics
from utaca.settings import schema
from utaca.settings.machine import chosen_dtype


def corpus_in_words(config: schema.Config) -> str:
    """The padding corpus, marked as synthetic if it is."""
    return f"{config.corpus.name}{' (synthetic prose)' if config.corpus.source == 'embedded' else ''}"


def endpoint_in_words(endpoint: schema.EndpointSettings) -> str:
    """An endpoint, said to be no language model where it is the reference."""
    if endpoint.kind == "reference":
        return f"{endpoint.name} (built-in rules, not GPT-OSS-120B nor any language model)"
    return f"{endpoint.name} ({endpoint.model})"


def what_is_synthetic(config: schema.Config) -> str:
    """What in a run is made up or stands in for something else, and where the paper's figures come from."""
    people = config.scale.test.people
    source = f"those of the test split were written by hand ({people})" if people else "drawn by the pipeline"
    synthetic = [f"All people and facts are fictitious and {source}."]
    if config.corpus.source == "embedded":
        synthetic.append("The padding is synthetic prose that ships with the project, not natural text.")
    roles = ("labeller", "judge") if people else ("writer", "labeller", "judge")
    built_in = [role for role in roles if getattr(config, role).kind == "reference"]
    if built_in:
        synthetic.append(
            f"The built-in reference endpoint, rules and no language model, stands in as {' and '.join(built_in)}."
        )
    if "data/readers/" in config.reader.path and not is_gguf(config.reader.path):
        synthetic.append("The reader is a small model that ships with the project, trained on this task.")
    synthetic.append("The paper's figures stand beside as reference; they come from its own models and data.")
    return " ".join(synthetic)


def seeds_in_words(config: schema.Config) -> str:
    """The seeds of a config and of its operating points' detectors."""
    number = max((point.seed + 1 for point in config.operating.values()), default=1)
    detector = f"{number} detector seeds" if number > 1 else "detector seed 0"
    return f"config seed {config.seed}, {detector}"


def run_in_words(config: schema.Config, role: str) -> str:
    """The line that says what a run is: reader, corpus, the endpoint of ``role`` and the scale."""
    return (
        f"{render.RUN}reader {reader_in_words(config.reader)}; padding {corpus_in_words(config)}; {role} "
        f"{endpoint_in_words(getattr(config, role))}; scale {config.scale.name}"
    )


def reader_in_words(reader: schema.ReaderSettings) -> str:
    """A reader's name, and the settings in which its block memory leaves InfLLM's rules, whose name points bear."""
    memory = reader.memory
    others = [f"representatives={memory.representatives}"] if memory.representatives == schema.TOKENS else []
    others += [f"far_positions={memory.far_positions}"] if memory.far_positions != schema.CLIPPED else []
    name = f"{reader.name} in {chosen_dtype(reader.dtype, reader.device)}" if reader.dtype == "auto" else reader.name
    return f"{name} (not by InfLLM's rules: {', '.join(others)})" if others else name


def intervals_in_words(config: schema.Config) -> str:
    """What brackets hold."""
    what = f"documents, and seeds where a figure has several ({config.scale.bootstrap} resamples)"
    return f"brackets: {statistics.LEVEL:.0%} bootstrap over {what}."
