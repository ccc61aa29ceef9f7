"""Whether PyTorch multiplies matrices on the CPU by oneDNN.

oneDNN is the faster way for matrices of many rows and for products in batches. A single row times a bfloat16 matrix it
gives in twice the time of PyTorch's own kernels, and a decoding step is made of such products.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def onednn(enabled: bool) -> Iterator[None]:
    """With or without oneDNN for the block, whatever holds outside of it; a setting of the whole process."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = enabled
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before
