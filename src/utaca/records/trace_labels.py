"""Schema of the tokens that a detector judged along its own answers, with their labels.

Apart from :mod:`utaca.records.schemas`, which every stage depends on: a new kind of file there repeats them all.
"""

from __future__ import annotations

import pyarrow as pa

KIND = "trace_labels"

# A token tried below K_max, and the detector's verdict on it: `uncertain` tokens were rolled back. `token`, `text` and
# `k` are of the pass that was judged, accepted or not; `replaced`: the expanded pass put another token in its place.
# `label`, `source` and `reason` as in "labels", the rest as in "answers" and "traces".
TRACE_LABELS = pa.schema(
    [
        ("document", pa.string()),
        ("suite", pa.string()),
        ("point", pa.string()),
        ("budget", pa.int32()),
        ("policy", pa.string()),
        ("detector", pa.string()),
        ("seed", pa.int32()),
        ("step", pa.int32()),
        ("token", pa.int32()),
        ("text", pa.string()),
        ("k", pa.int32()),
        ("uncertain", pa.bool_()),
        ("replaced", pa.bool_()),
        ("label", pa.int8()),
        ("source", pa.string()),
        ("reason", pa.string()),
        ("p_hallucinated", pa.float32()),
        ("p_correct", pa.float32()),
        ("p_unknown", pa.float32()),
    ]
)
