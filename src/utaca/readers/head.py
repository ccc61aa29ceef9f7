"""The product of hidden states and the output matrix, in float32."""

import torch
from torch import Tensor

MATRIX_ROWS = 256
"""Rows of a bfloat16 output matrix that are converted to float32 at once."""
FEW = 8
"""Most hidden states that get exact logits for their best tokens only; for more, converting the matrix is faster."""
CANDIDATES = 512
"""Tokens of a hidden state that get an exact logit: the best ones by the product in bfloat16."""
EXACT = 10
"""Best tokens whose logits must be exact: those that a trace has (:data:`utaca.detection.token_reader.TOP`)."""
ROUNDING = 2.0**-7
"""Bound on the relative error of a product that is rounded to bfloat16. The rounding itself gives 2^-9."""
SUM_ERROR = 1e-3
"""Bound on the error of the float32 sum before it is rounded."""


def products(hidden: Tensor, weight: Tensor) -> Tensor:
    """Float32 products [N, V] of hidden states [N, D] and the output matrix [V, D]."""
    if weight.dtype == torch.float32:
        return hidden.float() @ weight.T
    if weight.is_cuda:
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)
    # Only a vocabulary larger than CANDIDATES leaves tokens out.
    if len(hidden) <= FEW < CANDIDATES < len(weight):
        found = best_exact(hidden, weight)
        if found is not None:
            return found
    return _converted(hidden, weight)


def best_exact(hidden: Tensor, weight: Tensor) -> Tensor | None:
    """Products [N, V], exact in float32 for the best candidates of each row and rounded to bfloat16 for the others.

    The :data:`EXACT` best tokens of every row are among the candidates, and so are exact: no other token, whatever its
    rounding, can be better. None if that is not certain, as it is if very many tokens are nearly alike.

    Reading the matrix takes nearly all the time of a decoding step's product. A product in float32 would convert it
    first, which costs three times as much.
    """
    rounded = (hidden @ weight.T).float()
    best = rounded.topk(CANDIDATES)
    exact = torch.einsum("nd,ncd->nc", hidden.float(), weight[best.indices].float())
    # The other tokens' rounded products are at most this, and their exact ones exceed it by the error's bound at most.
    worst_candidate = best.values[:, -1]
    best_of_others = worst_candidate + ROUNDING * worst_candidate.abs() + SUM_ERROR
    if not bool((exact.topk(EXACT).values[:, -1] > best_of_others).all()):
        return None
    return rounded.scatter_(1, best.indices, exact)


def _converted(hidden: Tensor, weight: Tensor) -> Tensor:
    """All products in float32.

    The matrix is converted in parts, because a float32 copy would be a quarter as large as a small model with a large
    vocabulary.
    """
    columns = hidden.float().T.contiguous()
    result = columns.new_empty(len(weight), len(hidden))
    part = columns.new_empty(MATRIX_ROWS, weight.shape[1])
    for rows, out in zip(weight.split(MATRIX_ROWS), result.split(MATRIX_ROWS), strict=True):
        torch.mm(part[: len(rows)].copy_(rows), columns, out=out)
    return result.T.contiguous()
