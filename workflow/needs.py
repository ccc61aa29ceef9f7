"""What jobs need: of this machine only GPUs; of a cluster memory and time, more of both in every further try."""

from collections.abc import Callable, Sequence
from typing import Any

from utaca.machine import gpus
from utaca.readers import files
from utaca.settings import schema
from utaca.sizes import FACTS, Model, Work, shown_bytes
from utaca.tasks.registry import TASKS
from workflow.plan import Plan


class Needs:
    """The resources and retries of rules; ``here`` says whether jobs run on this machine."""

    def __init__(self, plan: Plan, here: bool) -> None:
        self.plan = plan
        self.settings = plan.settings
        self.here = here

    def model(self) -> Model:
        """The reader's sizes; raises :class:`UserError` where the reader is not fetched."""
        return files.model(self.settings.reader)

    def gpu(self) -> int:
        """GPUs that a job needs which decodes: on a cluster by the reader only, whatever this machine has."""
        device = self.settings.reader.device if self.here else self.model().device
        return int(device == "cuda" or (device == "auto" and gpus() > 0))

    def decodes(self, work: Callable[[Any], Work]) -> dict[str, Any]:
        """Resources of a rule that decodes the work which ``work`` makes of its wildcards."""
        if self.here:
            return {"gpu": self.gpu()}
        # Not before a job asks: other rules need no reader.
        return {
            "gpu": lambda wildcards: self.gpu(),
            "mem_mb": lambda wildcards, attempt: attempt * self.model().memory_bytes(work(wildcards)) // 10**6,
            "runtime": lambda wildcards, attempt: attempt * self.model().minutes(work(wildcards)),
        }

    def learns(self, *splits: str) -> dict[str, Any]:
        """Resources of a rule that reads the embeddings of these splits' trajectories."""
        if self.here:
            return {}
        trajectories = sum(self.plan.size(split).trajectories for split in splits)
        tokens = trajectories * self.settings.reader.max_new_tokens
        return {"mem_mb": lambda wildcards, attempt: attempt * shown_bytes(tokens, self.model().sizes.hidden) // 10**6}

    def split_work(self, split: str, points: Sequence[schema.PointSettings] | None = None) -> Work:
        """The largest shard of a split decoded at these points, without them the trajectories of it."""
        about = self.plan.size(split)
        documents = -(-about.biographies // about.shards) * (len(about.evidence) if points is None else 1)
        points = _compact(about) if points is None else points
        return _work(documents, about.tokens[-1], FACTS[split] * self.settings.reader.max_new_tokens, points)

    def task_work(self, name: str) -> Work:
        """The answers to a set of tasks, or the trajectories of these."""
        about = self.settings.tasks.sets[name]
        kind = TASKS[about.task]
        rows = (about.examples or kind.rows) * len(about.evidence)
        points = self.settings.decoded(name) or _compact(about)
        return _work(rows, about.length or self.model().positions, kind.new_tokens, points)

    def retries(self, role: str) -> int:
        """How often a stage is tried again: twice where a network may have failed; rules have none."""
        return 2 if getattr(self.settings, role).kind == "remote" else 0


def _compact(about: schema.SplitSettings | schema.TaskSetSettings) -> list[schema.PointSettings]:
    """The points that the trajectories of a split or set are decoded at."""
    # A path is a budget a step, which decodes as a fixed one does.
    budgets = [*about.budgets, *(path.budget for path in getattr(about, "paths", ()))]
    return [schema.PointSettings(method="infllm", budget=budget) for budget in budgets]


def _work(documents: int, length: int, tokens: int, points: Sequence[schema.PointSettings]) -> Work:
    """``tokens`` new tokens at each point, of ``documents`` documents of ``length`` tokens."""
    whole = len({point.base or point.method for point in points if not point.in_blocks})
    budgets = tuple(point.budget for point in points if point.in_blocks)
    return Work(documents, length, tokens, max(1, len(points)), whole, budgets)
