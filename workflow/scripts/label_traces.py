"""Labels of the tokens that detectors judged along the answers of a split."""

from collections.abc import Sequence

from utaca.judging.roles import Role
from utaca.judging.trace_labels import COLUMNS, label_traces
from utaca.readers.tokenizer import load_tokenizer
from utaca.records.logs import stage_log
from utaca.records.tables import rows, write
from utaca.settings.checks import digest


def decode(tokens: Sequence[int]) -> str:
    """Text of an answer's tokens, as decoding has it."""
    return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)


with stage_log(snakemake.log[0]):
    params = snakemake.params
    files = snakemake.input
    tokenizer = load_tokenizer(*params.tokenizer)
    labeller = Role.of("labeller", snakemake.config)
    answers, traces = (
        [row for row in found if row["point"] in params.points]
        for found in (rows(files.answers, "answers"), rows(files.traces, "traces", COLUMNS))
    )
    labels = label_traces(answers, traces, rows(files.documents, "documents"), decode, labeller)
    config = digest(dict(params.items()))
    made_from = [*files.answers, *files.traces]
    write(snakemake.output.labels, "trace_labels", labels, config=config, made_from=made_from)
    write(snakemake.output.usage, "usage", labeller.used, config=digest(params.labeller))
