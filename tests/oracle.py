"""Which tokens kvpress keeps; run by the environment that `make oracle` makes, see test_oracle.py.

Reads requests from standard input, a JSON list of the arguments of :func:`kept`, and writes the answers to standard
output.
"""

import json
import sys

import torch
from kvpress import AdaKVPress, SnapKVPress
from transformers import AutoModelForCausalLM, DynamicCache


def kept(model: str, tokens: list[int], budget: int, window: int, kernel: int, floor: float | None) -> list:
    """Ids that SnapKVPress, or with a ``floor`` AdaKVPress, leaves of ``tokens``, a list a layer and head."""
    reader = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
    ids = torch.tensor([tokens])
    press = SnapKVPress(1 - (budget + 0.5) / len(tokens), window, kernel)
    whole, cache = DynamicCache(), DynamicCache()
    with torch.inference_mode():
        reader(ids, past_key_values=whole)
        with (press if floor is None else AdaKVPress(press, floor))(reader):
            reader(ids, past_key_values=cache)
    found = []
    for module, before, after in zip(reader.model.layers, whole.layers, cache.layers, strict=True):
        if floor is None:
            # Which keys are left is seen by their values.
            left = (after.keys[0][:, :, None] == before.keys[0][:, None]).all(-1).any(1)
        else:
            left = torch.ones(before.keys.shape[1:3], dtype=torch.bool)
            _, heads, places = module.self_attn.masked_key_indices
            left[heads, places] = False
        found.append([row.nonzero()[:, 0].tolist() for row in left])
    return found


if __name__ == "__main__":
    json.dump([kept(**request) for request in json.load(sys.stdin)], sys.stdout)
