"""Checks before the first job of a run: everything that a stage would miss later is named now."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from utaca.errors import UserError
from utaca.settings import schema

_SAMPLE = 200
_ROLES = {
    "write_biographies": "writer",
    "label": "labeller",
    "label_traces": "labeller",
    "score": "judge",
    "card": "judge",
}


def check(settings: schema.Config, rules: Collection[str]) -> None:
    """Check what the rules about to run need: corpus, reader, endpoints, document lengths.

    ``rules`` holds the names of the workflow's rules with a job to do. Raises :class:`UserError`, one sentence
    naming what is missing, where it was looked for and what to set.
    """
    stages = {
        rule.partition("_")[0] if rule.startswith(("score_", "generate_", "compare_")) else rule for rule in rules
    }
    if "corpus" in stages:
        from utaca.biographies import corpora

        corpora.check(settings.corpus)
    if stages & {"pad", "decode_trajectories", "generate", "compare", "read_card", "reader_speed", "benchmark_engine"}:
        from utaca.readers.load import check as check_reader

        check_reader(settings.reader)
    if "compare" in stages:
        from utaca.methods.registry import method_of

        for suite in settings.suites.values():
            for point in suite.points:
                if not point.in_blocks:
                    method_of(point, settings.methods)
    if "pad" in stages:
        _check_lengths(settings)
    checked: list[dict[str, object]] = []
    for stage, role in _ROLES.items():
        endpoint = getattr(settings, role)
        if stage in stages and asdict(endpoint) not in checked:
            from utaca.endpoints.preflight import check as check_endpoint

            check_endpoint(endpoint, role)
            checked.append(asdict(endpoint))


def _check_lengths(settings: schema.Config) -> None:
    """The shortest document of a split must hold its longest biography."""
    from transformers import AutoTokenizer

    from utaca.biographies.dataset import biographies, drafts
    from utaca.biographies.padding import counter
    from utaca.biographies.sentences import summary

    reader = settings.reader
    count = counter(AutoTokenizer.from_pretrained(reader.path, revision=reader.revision or None))
    for split in ("train", "validation", "test"):
        size: schema.SplitSize = getattr(settings.scale, split)
        number = min(size.biographies, _SAMPLE)
        if split == "test":
            # narratives are longer than these sentences, but not written yet
            texts = [
                " ".join(summary(attribute, draft.person.name, value) for attribute, value in draft.facts)
                for draft in drafts(split, number, settings.seed)
            ]
        else:
            texts = [" ".join(row["sentences"]) for row in biographies(split, number, settings.seed)]
        longest = max(count(text) for text in texts)
        if longest > size.tokens[0]:
            raise UserError(
                f"scale.{split}.tokens starts at {size.tokens[0]} but the longest biography has {longest} tokens; "
                f"start it at {longest} or more."
            )
