"""Training of the detector (paper, appendix "Training Details")."""

import logging
import math
import random
from collections.abc import Sequence
from typing import Any

import torch

from utaca.detection.detector import Detector, distrust
from utaca.detection.training.data import Sequences, joined
from utaca.detection.training.losses import cross_entropy, evidential
from utaca.detection.training.metrics import MOST_DISTRUSTED, TOO_MUCH_DISTRUST, detection_metrics, youden
from utaca.detection.training.network import Network, Noise
from utaca.detection.training.verdicts import token_logits, vacuity
from utaca.errors import UserError
from utaca.records import Origin, progress
from utaca.records.schemas import CORRECT, HALLUCINATED, UNKNOWN
from utaca.settings import schema

CLASS_WEIGHTS = (1.0, 0.05, 1.0)
"""Weights of the classes hallucinated, correct, unknown in the loss (paper, appendix "Training Details"); they suit
trajectories that are mostly correct."""
LEARNING_RATE = 1e-3
BATCH = 16
"""Initial learning rate of Adam, and number of trajectories per step."""
EVALUATE_EVERY = 100
"""Steps between validations."""
CALIBRATION_STEPS = 300
CALIBRATION_RATE = 1e-4
CALIBRATION_EVALUATE_EVERY = 20
"""Most steps, learning rate and steps between validations if training starts from a trained detector. The paper
calls such a calibration limited and gives no figure."""

_log = logging.getLogger(__name__)


def train(
    settings: schema.DetectorSettings,
    train: Sequences,
    validation: Sequences,
    *,
    steps: int,
    seeds: Sequence[int],
    reader: Origin | None = None,
    initial: Sequence[Detector] | None = None,
    second: Sequences | None = None,
    description: str = "detector",
) -> list[tuple[Detector, list[dict[str, Any]]]]:
    """Train a detector for every seed, all of them side by side, on the CPU.

    The optimiser is Adam without weight decay; a cosine over ``steps`` anneals its learning rate to 0. A batch holds
    :data:`BATCH` trajectories; every ``settings.chain`` of them are concatenated. Batches pass over the training set
    repeatedly, each time in a new random order; a batch may hold the end of one pass and the start of the next.
    Validation, also on concatenated trajectories, runs every :data:`EVALUATE_EVERY` steps and after the last. Training
    never stops early; each seed keeps the weights with the best validation F1 of the uncertain class, the earliest in a
    tie. Thresholds are chosen on the validation set (:func:`youden`).

    ``initial``: detectors, one per seed, whose weights training starts from, instead of random ones. Training is then a
    limited calibration: at most :data:`CALIBRATION_STEPS` steps, all at :data:`CALIBRATION_RATE`, a validation every
    :data:`CALIBRATION_EVALUATE_EVERY` of them and one of the starting weights, which are kept if no later ones are
    better. Answers to the questions of a calibration are often wrong, so each class weighs by the inverse of its share
    in the training set (:func:`class_weights`) and not by :data:`CLASS_WEIGHTS`, as with ``settings.weights`` "shares".

    ``second``: more trajectories, of other documents than ``train``; half of each batch then comes from each of the two
    sets. ``reader`` decoded the trajectories; the detectors refuse any other reader (:meth:`Detector.check`).

    Returns for each seed the detector and its curve, one row per validation: ``step`` (0: the starting weights),
    ``loss`` (mean over the steps since the previous row; NaN at step 0), ``learning_rate`` (of the last step), ``f1``
    and other validation metrics, and ``kept`` (whether these weights are the best so far). The detector's facts say
    how it was trained, and which share of the labelled tokens of both sets is uncertain and which it distrusts; a
    warning is logged if it distrusts more than :data:`MOST_DISTRUSTED` of the validation tokens. Each seed has a random
    generator, so that its result does not depend on the other seeds, up to rounding; the same seeds give the same
    bytes. The caller's random state is unchanged.

    Raises :class:`UserError` if a set has no uncertain or no correct tokens, if the embeddings of the sets differ in
    width, if ``train`` and ``second`` share a document, if ``initial`` are detectors of another reader or of another
    shape, or if the loss is not finite.
    """
    sets = [data for data in (train, second) if data is not None]
    train = train if second is None else joined(train, second)
    _check(train, validation)
    rate = LEARNING_RATE
    evaluate_every = EVALUATE_EVERY
    by_shares = bool(initial) or settings.weights == "shares"
    weights = class_weights(settings, sets) if by_shares else torch.tensor(CLASS_WEIGHTS)
    if initial:
        steps = min(steps, CALIBRATION_STEPS)
        rate = CALIBRATION_RATE
        evaluate_every = CALIBRATION_EVALUATE_EVERY
    sizes = [len(data) for data in sets]
    # The trajectories of each seed's batches: indices into ``train``, [S, steps, BATCH].
    order = torch.stack([_order(sizes, steps * BATCH, seed) for seed in seeds])
    order = order.view(len(seeds), steps, BATCH)
    detectors = []
    for seed, start in zip(seeds, initial or [None] * len(seeds), strict=True):
        detectors.append(_started(settings, train.width, reader, seed, start))
    network = Network(detectors)
    generators = [_generator(seed, "dropout") for seed in seeds]
    optimiser = torch.optim.Adam(network.weights.values(), lr=rate, fused=True)
    facts: dict[str, Any] = {
        "steps": steps,
        "learning_rate": rate,
        "class_weights": [round(weight, 6) for weight in weights.tolist()],
    }
    if initial:
        facts["warm_start"] = True
    facts |= _counts(train=train, validation=validation)
    course = _Course(network, validation, seeds, facts)
    if initial:
        course.evaluate(0, [math.nan] * len(seeds), 0.0)
    losses = []  # [S] of each step since the last validation
    for done in progress(range(1, steps + 1), total=steps, unit="step", desc=description):
        if not initial:
            rate = LEARNING_RATE * (1 + math.cos(math.pi * (done - 1) / steps)) / 2
        optimiser.param_groups[0]["lr"] = rate
        batch = train.batch(order[:, done - 1], settings.chain)
        noise = None
        if network.dropped_width:
            noise = Noise(generators, batch.position < train.n_tokens, network.dropped_width)
        logits = network(batch, noise)
        if settings.kind == "evidential":
            n_passes = (done - 1) * BATCH // len(train)  # complete ones, over the training set
            loss = evidential(logits, batch.label, weights, n_passes)
        else:
            loss = cross_entropy(logits, batch.label, weights)
        optimiser.zero_grad()
        # The seeds share no weight, so the gradient of the sum is each seed's own.
        loss.sum().backward()
        optimiser.step()
        losses.append(loss.detach())
        if done % evaluate_every == 0 or done == steps:
            means = torch.stack(losses).double().mean(0).tolist()
            if not all(map(math.isfinite, means)):
                raise UserError(f"the detector's loss is not finite by step {done}; decode its trajectories again")
            course.evaluate(done, means, rate)
            losses = []
    for detector in course.best:
        _set_thresholds(detector, validation)
    _add_distrust(course.best, train=train, validation=validation)
    return list(zip(course.best, course.curves, strict=True))


def _counts(**sets: Sequences) -> dict[str, int]:
    """Facts on each set by its name: how many trajectories and tokens it has, and on how many the labeller failed."""
    counts = {}
    for name, data in sets.items():
        counts[f"{name}_trajectories"] = len(data)
        counts[f"{name}_tokens"] = data.n_tokens
        counts[f"{name}_failed"] = data.n_failed
    return counts


class _Course:
    """What validations of a training found, per seed: its curve (:func:`train`), and its ``best`` detector so far.

    ``facts`` are those of all detectors; each detector that is kept gets a copy, with the facts of its seed.
    """

    def __init__(self, network: Network, validation: Sequences, seeds: Sequence[int], facts: dict[str, Any]) -> None:
        self.best = list(network.detectors)
        self.curves: list[list[dict[str, Any]]] = [[] for _ in seeds]
        self._network = network
        self._validation = validation
        self._seeds = seeds
        self._facts = facts

    def evaluate(self, done: int, losses: Sequence[float], rate: float) -> None:
        """Validate the network after ``done`` steps: add a row to each curve, keep weights that are the best so far.

        ``losses`` has the mean loss of each seed since the last validation; ``rate`` is the learning rate.
        """
        metrics_by_seed = _evaluate(self._network, self._validation)
        for place, (metrics, loss) in enumerate(zip(metrics_by_seed, losses, strict=True)):
            row = {"step": done, "loss": loss, "learning_rate": rate, **metrics}
            row["kept"] = row["f1"] > self.best[place].facts.get("validation_f1", -1.0)
            if row["kept"]:
                kept = self._network.detector(place)
                kept.facts = {**self._facts, "seed": self._seeds[place], "kept_step": done, "validation_f1": row["f1"]}
                self.best[place] = kept
            self.curves[place].append(row)


def class_weights(settings: schema.DetectorSettings, sets: Sequence[Sequences]) -> torch.Tensor:
    """Weights [3] of the labels hallucinated, correct, unknown in the loss, so that all classes weigh the same in sum.

    A class weighs by the inverse of its share among the labelled tokens, normalised so that a token weighs 1 on
    average; a class without tokens weighs 0. Batches draw the same number of trajectories from each of ``sets``, and
    the shares are those of the tokens that they draw. To a detector of two classes, hallucinated and unknown are the
    same class.
    """
    # Tokens of each label that an average trajectory of a set has.
    tokens_by_label = []
    for data in sets:
        labelled = data.label[data.label >= 0]
        tokens_by_label.append(torch.bincount(labelled, minlength=3) / len(data))
    share = torch.stack(tokens_by_label).sum(0)
    share = share / share.sum()
    uncertain = [HALLUCINATED, UNKNOWN]
    if settings.classes == 2:
        share[uncertain] = share[uncertain].sum()
    n_classes = settings.classes - int((share == 0).sum())
    return torch.where(share > 0, 1 / (n_classes * share), 0.0)


def _started(
    settings: schema.DetectorSettings, width: int, reader: Origin | None, seed: int, start: Detector | None
) -> Detector:
    """Make the detector that training under a seed starts from: with random weights, or with those of ``start``.

    Raises :class:`UserError` if ``start`` has other settings or embeddings of another ``width``, or is of another
    reader.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        detector = Detector(settings, width, reader)
    if start is None:
        return detector
    key = settings.differing(start.settings)
    if key:
        raise UserError(
            f"{key} is {getattr(settings, key)}, but {getattr(start.settings, key)} in the detector that training "
            "starts from; set both to the same value"
        )
    if width != start.input_width:
        raise UserError(
            f"the trajectories have embeddings of width {width}, but the detector that training starts from needs "
            f"width {start.input_width}; decode the trajectories with the reader of that detector"
        )
    if (reader and reader.identity) != (start.reader and start.reader.identity):
        raise UserError(
            f"the trajectories were made with reader {reader or 'unknown'}, but the detector that training starts from "
            f"was made with reader {start.reader or 'unknown'}; use one reader for both"
        )
    detector.load_state_dict(start.state_dict())
    return detector


def _set_thresholds(detector: Detector, validation: Sequences) -> None:
    """Choose a detector's thresholds for the rules "youden" and, if it is evidential, "mass" on the validation set."""
    logits = token_logits(detector, validation, detector.settings.chain)
    p = detector.probabilities(logits)
    label = validation.labels
    detector.thresholds["youden"] = youden(distrust(p, "youden").numpy(), label)
    if detector.settings.kind == "evidential":
        detector.thresholds["mass"] = youden(vacuity(logits).numpy(), label)


def _add_distrust(detectors: Sequence[Detector], **sets: Sequences) -> None:
    """Record two shares of the labelled tokens in each detector's facts: the uncertain, and those that it distrusts.

    ``sets`` are "train" and "validation". Logs a warning if the detectors distrust too many validation tokens on
    average. All detectors have the same settings.
    """
    network = Network(detectors)
    rule = detectors[0].settings.decision
    for name, data in sets.items():
        labelled = data.labels >= 0
        share_uncertain = (data.labels[labelled] != CORRECT).mean()
        p = detectors[0].probabilities(network.logits(data, network.settings.chain))
        scores = distrust(p, rule).numpy()  # [S, n]
        for detector, score in zip(detectors, scores, strict=True):
            is_distrusted = score > detector.thresholds[rule]
            detector.facts[f"{name}_distrusted"] = float(is_distrusted[labelled].mean())
            detector.facts[f"{name}_uncertain"] = float(share_uncertain)
    shares = [detector.facts["validation_distrusted"] for detector in detectors]
    mean_share = sum(shares) / len(shares)
    if mean_share > MOST_DISTRUSTED:
        _log.warning("the detector distrusts %.0f %% of the validation tokens. %s", 100 * mean_share, TOO_MUCH_DISTRUST)


def _order(sizes: Sequence[int], total: int, seed: int) -> torch.Tensor:
    """Draw ``total`` indices [total] into the concatenation of sets that have ``sizes`` members.

    The sets take turns, one index each. Each set is passed over as often as needed, each time in another random order.
    """
    generator = _generator(seed, "order")
    by_set = []
    first = 0  # index of the set's first member
    n_from_each = math.ceil(total / len(sizes))
    for size in sizes:
        n_passes = math.ceil(n_from_each / size)
        passes = [torch.randperm(size, generator=generator) for _ in range(n_passes)]
        by_set.append(first + torch.cat(passes)[:n_from_each])
        first += size
    return torch.stack(by_set, dim=-1).flatten()[:total]


def _generator(seed: int, purpose: str) -> torch.Generator:
    """A random generator for a purpose ("order", "dropout") of the training under a seed, independent of others."""
    return torch.Generator().manual_seed(random.Random(f"{seed}:{purpose}").getrandbits(63))


def _evaluate(network: Network, validation: Sequences) -> list[dict[str, Any]]:
    """Validation metrics of each seed's detector, under the decision rule of the settings.

    The threshold of "youden" is chosen for these weights; that of every other rule is 0.
    """
    p = network.detectors[0].probabilities(network.logits(validation, network.settings.chain))
    rule = network.settings.decision
    names = ["balanced_accuracy", "macc", "recall_n", "recall_p", "auroc", "auprc"]
    rows = []
    for score in distrust(p, rule).numpy():
        threshold = youden(score, validation.labels) if rule == "youden" else 0.0
        metrics = detection_metrics(score > threshold, validation.labels, score)
        rows.append({"f1": metrics["f1_n"], **{name: metrics[name] for name in names}})
    return rows


def _check(train: Sequences, validation: Sequences) -> None:
    """Raise :class:`UserError` if no detector can be trained on the sets.

    They must have embeddings of one width, and each must have tokens labelled correct and tokens labelled otherwise.
    """
    if train.width != validation.width:
        raise UserError(
            f"embeddings have width {train.width} in the training split and {validation.width} in the validation "
            "split; decode both with the same reader"
        )
    for name, split in [("train", train), ("validation", validation)]:
        n_correct = int((split.labels == CORRECT).sum())
        n_labelled = split.n_tokens - split.n_failed
        if n_correct in (0, n_labelled):
            lack, budget = ("uncertain", "smaller") if n_correct else ("correct", "larger")
            raise UserError(
                f"the {name} split has no token labelled {lack} (of {split.n_tokens} tokens, {split.n_failed} failed), "
                f"so no detector can be trained; enlarge scale.{name} or its set of tasks, or add a {budget} budget"
            )
