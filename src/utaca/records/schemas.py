"""Parquet schemas of the stages, one row described each.

Every file carries its schema's name and the digest of the config it was made with as metadata
(:mod:`utaca.records.tables`), and is checked against the schema when read.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from utaca.settings.schema import SIGNALS

# Labels of generated tokens, in the order of the detector's classes (paper, section 3.1).
HALLUCINATED, CORRECT, UNKNOWN = 0, 1, 2

TEMPLATE = "template"
"""Source of the labels of an answer's template, which no labeller sees."""

FACT = pa.struct([("attribute", pa.string()), ("value", pa.string())])

USED_ANSWER = pa.struct([("request", pa.string()), ("prompt_tokens", pa.int64()), ("completion_tokens", pa.int64())])

# kind: "biography" (source = biography id), "crowd" (source = the name of another person) or "article" (source =
# title); start and end are character offsets.
SPAN = pa.struct([("kind", pa.string()), ("source", pa.string()), ("start", pa.int32()), ("end", pa.int32())])

# Where a document states the (current) value of a fact: `text` as it stands there, from character `start` to `end`.
EVIDENCE = pa.struct([("attribute", pa.string()), ("text", pa.string()), ("start", pa.int32()), ("end", pa.int32())])

SCHEMAS: dict[str, pa.Schema] = {
    # A fictitious person and what is known of them. `sentences` joined by spaces is the biography; padding
    # keeps them whole and in order. `writer` is "pattern" or the model that wrote the narrative.
    "biographies": pa.schema(
        [
            ("id", pa.string()),
            ("split", pa.string()),
            ("person", pa.string()),
            ("locale", pa.string()),
            ("facts", pa.list_(FACT)),
            ("sentences", pa.list_(pa.string())),
            ("writer", pa.string()),
        ]
    ),
    # Padding prose; paragraphs are separated by blank lines.
    "corpus": pa.schema(
        [
            ("title", pa.string()),
            ("text", pa.string()),
            ("url", pa.string()),
            ("licence", pa.string()),
            ("revision", pa.string()),
            ("source", pa.string()),
            ("synthetic", pa.bool_()),
        ]
    ),
    # A long document around one biography, and the facts that it is asked for. `id` is the biography's. `evidence`
    # lacks a fact whose value is nowhere in the biography as it is to be stated: a model may have written it otherwise.
    "documents": pa.schema(
        [
            ("id", pa.string()),
            ("split", pa.string()),
            ("person", pa.string()),
            ("facts", pa.list_(FACT)),
            ("text", pa.string()),
            ("n_tokens", pa.int32()),
            ("spans", pa.list_(SPAN)),
            ("evidence", pa.list_(EVIDENCE)),
            ("corpus", pa.string()),
        ]
    ),
    # A token's label: 0 hallucinated, 1 correct, 2 unknown; null where the labeller failed.
    # `source` says who decided: TEMPLATE, "endpoint", "person" (corrected by hand) or "failed".
    "labels": pa.schema(
        [
            ("document", pa.string()),
            ("budget", pa.int32()),
            ("step", pa.int32()),
            ("token", pa.int32()),
            ("text", pa.string()),
            ("label", pa.int8()),
            ("source", pa.string()),
            ("reason", pa.string()),
        ]
    ),
    # A detector's verdict on a token of the evaluation traces. `value`: the token belongs to an answer's value, not to
    # its template. `uncertain` is the decision, `score` grows with distrust; p_* are null for detectors without class
    # probabilities. `needed`: the expanded pass gives another token, as the trajectories recorded it, null where they
    # did not.
    "detections": pa.schema(
        [
            ("detector", pa.string()),
            ("seed", pa.int32()),
            ("document", pa.string()),
            ("budget", pa.int32()),
            ("step", pa.int32()),
            ("label", pa.int8()),
            ("value", pa.bool_()),
            ("needed", pa.bool_()),
            ("uncertain", pa.bool_()),
            ("score", pa.float32()),
            ("p_hallucinated", pa.float32()),
            ("p_correct", pa.float32()),
            ("p_unknown", pa.float32()),
        ]
    ),
    # An answer under one operating point; `detector` ("": none) and `seed` are its detector's. Means are per generated
    # token, in tokens: selected = retrieved blocks x block size (the paper's mTokens), attended = every key attended;
    # `*_with_tentative` count the passes too that were not accepted. Rollbacks are effective where the token was
    # generated again from another set of blocks. Seconds and bytes are measurements; all else is
    # reproducible.
    "answers": pa.schema(
        [
            ("document", pa.string()),
            ("suite", pa.string()),
            ("point", pa.string()),
            ("method", pa.string()),
            ("budget", pa.int32()),
            ("policy", pa.string()),
            ("detector", pa.string()),
            ("seed", pa.int32()),
            ("question", pa.string()),
            ("text", pa.string()),
            ("n_context", pa.int32()),
            ("dropped", pa.int32()),
            ("n_generated", pa.int32()),
            ("finish", pa.string()),
            ("selected", pa.float32()),
            ("attended", pa.float32()),
            ("selected_with_tentative", pa.float32()),
            ("attended_with_tentative", pa.float32()),
            ("rollbacks", pa.int32()),
            ("effective_rollbacks", pa.int32()),
            ("prefill_seconds", pa.float64()),
            ("decode_seconds", pa.float64()),
            ("peak_bytes", pa.int64()),
        ]
    ),
    # A generated token of an answer. `k` is the budget of the accepted pass; `tentative_*` describe the pass
    # that was tried first (equal to the accepted one where nothing was rolled back), p_* are the detector's GDM of
    # that pass, null without a detector. `intervened`: an intervention stood in for the detector's decision.
    # `top_*` are the ten best tokens of a pass and their logits; `selected` the blocks that each layer retrieved,
    # `scores` what they scored. Question and the k of every step give the same tokens again.
    "traces": pa.schema(
        [
            ("document", pa.string()),
            ("point", pa.string()),
            ("step", pa.int32()),
            ("token", pa.int32()),
            ("text", pa.string()),
            ("k", pa.int32()),
            ("margin", pa.float32()),
            ("logprob", pa.float32()),
            ("rolled_back", pa.bool_()),
            ("intervened", pa.bool_()),
            ("tentative_token", pa.int32()),
            ("tentative_k", pa.int32()),
            ("tentative_margin", pa.float32()),
            ("tentative_logprob", pa.float32()),
            ("p_hallucinated", pa.float32()),
            ("p_correct", pa.float32()),
            ("p_unknown", pa.float32()),
            ("attended", pa.float32()),
            ("top_tokens", pa.list_(pa.int32())),
            ("top_logits", pa.list_(pa.float32())),
            ("tentative_top_tokens", pa.list_(pa.int32())),
            ("tentative_top_logits", pa.list_(pa.float32())),
            ("selected", pa.list_(pa.list_(pa.int32()))),
            ("scores", pa.list_(pa.list_(pa.float32()))),
        ]
    ),
    # An answer decoded again with one decision of its detector turned: `expanded` is what the detector chose at `step`,
    # one of `of` decisions of that kind in the answer. The two tokens are those of the compact and the expanded pass
    # there; rank and log-probability of the expanded one before (null beyond the ten best tokens) and after the
    # expansion. `text` and what follows are of the replayed answer, as in "answers".
    "replays": pa.schema(
        [
            ("document", pa.string()),
            ("point", pa.string()),
            ("step", pa.int32()),
            ("of", pa.int32()),
            ("expanded", pa.bool_()),
            ("compact_token", pa.int32()),
            ("compact_text", pa.string()),
            ("expanded_token", pa.int32()),
            ("expanded_text", pa.string()),
            ("rank_before", pa.int32()),
            ("logprob_before", pa.float32()),
            ("logprob_after", pa.float32()),
            ("text", pa.string()),
            ("n_generated", pa.int32()),
            ("selected", pa.float32()),
            ("selected_with_tentative", pa.float32()),
            ("rollbacks", pa.int32()),
        ]
    ),
    # One attribute of an answer, judged. `cas` is null where the judge failed, `failure` then says how.
    "scores": pa.schema(
        [
            ("document", pa.string()),
            ("suite", pa.string()),
            ("point", pa.string()),
            ("attribute", pa.string()),
            ("prediction", pa.string()),
            ("reference", pa.string()),
            ("cas", pa.float32()),
            ("string_match", pa.float32()),
            ("reason", pa.string()),
            ("failure", pa.string()),
        ]
    ),
    # A row of a benchmark's task as a reader is asked it (utaca.tasks.task.Example); `official`: the task's files have
    # as many rows as the official ones.
    "examples": pa.schema(
        [
            ("id", pa.string()),
            ("document", pa.string()),
            ("text", pa.string()),
            ("question", pa.string()),
            ("references", pa.list_(pa.string())),
            ("query", pa.string()),
            ("official", pa.bool_()),
        ]
    ),
    # The official score, 0 to 100, of an answer to a row `example`; `document` is what rows share.
    "task_scores": pa.schema(
        [
            ("example", pa.string()),
            ("document", pa.string()),
            ("suite", pa.string()),
            ("point", pa.string()),
            ("score", pa.float64()),
        ]
    ),
    # What an endpoint was needed for: an item asked, the kind of its failure (null: none), and the answers that its
    # outcome rests on, first to last. `request` is the digest under which the answer store keeps the answer: items may
    # share it.
    "usage": pa.schema([("item", pa.string()), ("failure", pa.string()), ("answers", pa.list_(USED_ANSWER))]),
    # One attribute asked for the reader card. `question` numbers the questions of a document, one with several
    # attributes has a row for each, all with the whole answer. `value` is null where the document does not state it;
    # `also` are other ways to write it. `budget` (blocks) is null where the reader had full attention, `prefill_budget`
    # where it is the reader's own; `n_context` is in tokens.
    "readings": pa.schema(
        [
            ("cell", pa.string()),
            ("document", pa.string()),
            ("question", pa.int32()),
            ("prefill_budget", pa.int32()),
            ("budget", pa.int32()),
            ("person", pa.string()),
            ("attribute", pa.string()),
            ("value", pa.string()),
            ("also", pa.list_(pa.string())),
            ("answer", pa.string()),
            ("n_context", pa.int32()),
        ]
    ),
}


def embedding_column(site: str) -> str:
    """The column of the trajectories that holds the embeddings of a site."""
    return f"embedding_{site}"


def trajectory_schema(width: int, sites: Sequence[str] = ("attention",)) -> pa.Schema:
    """Schema of a trajectory part: one generated token under a fixed compact budget.

    ``width`` is the reader's residual width, ``sites`` those of the embeddings. A column a signal of
    :mod:`utaca.detection.signals` follows ``logprob``. ``expanded_token`` and its log-probability are what the expanded
    pass gives for the same prefix, null where it was not run. ``selected`` lists block ids, sorted, a list a layer;
    ``finish`` is empty but on the last token of an answer ("eos" or "length").
    """
    return pa.schema(
        [
            ("document", pa.string()),
            ("budget", pa.int32()),
            ("step", pa.int32()),
            ("token", pa.int32()),
            ("text", pa.string()),
            ("logprob", pa.float32()),
            *((name, pa.float32()) for name in SIGNALS),
            ("top10", pa.list_(pa.float32(), 10)),
            *((embedding_column(site), pa.list_(pa.float16(), width)) for site in sites),
            ("expanded_token", pa.int32()),
            ("expanded_logprob", pa.float32()),
            ("selected", pa.list_(pa.list_(pa.int32()))),
            ("finish", pa.string()),
        ]
    )
