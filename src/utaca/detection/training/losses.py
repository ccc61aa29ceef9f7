"""Losses of a detector over labelled tokens: weighted cross-entropy, and the evidential loss of Sensoy et al. (2018).

Each token is weighted by its label, and a loss is divided by the sum of these weights. With two classes the target is
uncertain (0) or correct (1); the weight still depends on the label, one of three.
"""

import torch
from torch.distributions import Dirichlet, kl_divergence
from torch.nn import functional

from utaca.detection.detector import concentration
from utaca.records.schemas import CORRECT

ANNEALING = 10
"""Passes over the training data until the evidential regulariser has its full weight."""


def cross_entropy(logits: torch.Tensor, label: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted cross-entropy (paper, appendix "Training Details").

    ``logits`` [..., M, C] and ``label`` [..., M] are of M tokens; tokens with a negative label are left out.
    ``weights`` [3] are of the labels hallucinated, correct and unknown. Returns the loss [...], zero for a batch
    without labels.
    """
    target = _targets(label, logits.shape[-1])
    loss = functional.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="none").view(label.shape)
    return _weighted(loss, label, weights)


def evidential(logits: torch.Tensor, label: torch.Tensor, weights: torch.Tensor, passes: int) -> torch.Tensor:
    """Evidential loss (Sensoy et al., 2018): Bayes risk of the squared error, plus a penalty on misleading evidence.

    Evidence for wrong classes is misleading; its penalty is the KL divergence of a Dirichlet distribution with only
    this evidence from one without evidence. The penalty's factor grows linearly with the number of complete ``passes``
    over the training data, and is 1 from ten passes on. Shapes are as in :func:`cross_entropy`.
    """
    alpha = concentration(logits)
    n_classes = logits.shape[-1]
    target = functional.one_hot(_targets(label, n_classes), n_classes).to(alpha.dtype)
    misleading = Dirichlet(target + (1 - target) * alpha, validate_args=False)
    without_evidence = Dirichlet(torch.ones_like(alpha), validate_args=False)
    factor = min(1.0, passes / ANNEALING)
    loss = bayes_risk(alpha, target) + factor * kl_divergence(misleading, without_evidence)
    return _weighted(loss, label, weights)


def bayes_risk(alpha: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Expected squared error [...] of Dir(``alpha``) against a one-hot ``target``, both [..., C].

    It is the squared error of the mean plus the variance.
    """
    total = alpha.sum(-1, keepdim=True)
    p = alpha / total
    return ((target - p) ** 2 + p * (1 - p) / (total + 1)).sum(-1)


def _targets(label: torch.Tensor, classes: int) -> torch.Tensor:
    """Target class of each token, of three ``classes`` or two; any class if it has no label, as it then weighs 0."""
    return label.clamp_min(0) if classes == 3 else (label == CORRECT).long()


def _weighted(loss: torch.Tensor, label: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean [...] of ``loss`` [..., M], each token weighted by its label; zero without labels."""
    weight = weights[label.clamp_min(0)] * (label >= 0)
    # The clamp makes 0 / 0 of a batch without labels 0, and not NaN.
    return (weight * loss).sum(-1) / weight.sum(-1).clamp_min(torch.finfo(weight.dtype).tiny)
