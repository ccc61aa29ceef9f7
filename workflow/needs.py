"""Say which resources jobs need: GPUs on this machine; on a cluster also memory and time, more in every further try."""

from collections.abc import Callable, Sequence
from typing import Any

from utaca.machine import gpus
from utaca.readers import files
from utaca.settings import schema
from utaca.settings.budgets import resolve
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
        """The reader's sizes; raises :class:`UserError` if its files are not here."""
        return files.model(self.settings.reader)

    def gpu(self) -> int:
        """Number of GPUs that a job needs which decodes, 0 or 1.

        On a cluster it depends on the reader only, and not on what this machine has.
        """
        device = self.settings.reader.device if self.here else self.model().device
        return int(device == "cuda" or (device == "auto" and gpus() > 0))

    def decodes(self, work: Callable[[Any], Work]) -> dict[str, Any]:
        """The resources of a rule that decodes; ``work`` says what a job decodes, from its wildcards."""
        if self.here:
            return {"gpu": self.gpu()}
        # Functions, so that the reader's sizes are read only for a job of the rule: it may not be here yet.
        return {
            "gpu": lambda wildcards: self.gpu(),
            "mem_mb": lambda wildcards, attempt: attempt * self.model().memory_bytes(work(wildcards)) // 10**6,
            "runtime": lambda wildcards, attempt: attempt * self.model().minutes(work(wildcards)),
        }

    def learns(self, *splits: str) -> dict[str, Any]:
        """The resources of a rule that reads the embeddings of these splits' trajectories into memory."""
        if self.here:
            return {}
        trajectories = sum(self.plan.size(split).trajectories for split in splits)
        tokens = trajectories * self.settings.reader.max_new_tokens
        return {"mem_mb": lambda wildcards, attempt: attempt * shown_bytes(tokens, self.model().sizes.hidden) // 10**6}

    def split_work(self, split: str, points: Sequence[schema.PointSettings] | None = None) -> Work:
        """The work of the largest shard of a split: its documents answered at ``points``, or its trajectories if None.

        Only trajectories are decoded under several conditions of a document's evidence.
        """
        size = self.plan.size(split)
        documents = -(-size.biographies // size.shards)  # rounded up
        if points is None:
            documents *= len(size.evidence)
            points = _compact(size)
        return self._work(documents, size.tokens[-1], FACTS[split] * self.settings.reader.max_new_tokens, points)

    def task_work(self, name: str) -> Work:
        """The work of answering a set of tasks at its points or, if it has none, of decoding its trajectories."""
        task_set = self.settings.tasks.sets[name]
        task = TASKS[task_set.task]
        rows = (task_set.examples or task.rows) * len(task_set.evidence)
        points = self.settings.decoded(name) or _compact(task_set)
        return self._work(rows, task_set.length or self.model().positions, task.new_tokens, points)

    def _work(self, documents: int, length: int, tokens: int, points: Sequence[schema.PointSettings]) -> Work:
        """The work of decoding ``tokens`` tokens at each point about ``documents`` documents of ``length`` tokens."""
        # Each method without block memory reads the whole document itself.
        whole = len({point.base or point.method for point in points if not point.in_blocks})
        blocks = self.settings.reader.memory.layout.blocks(length)
        budgets = tuple(resolve(point.budget, blocks) for point in points if point.in_blocks)
        return Work(documents, length, tokens, max(1, len(points)), whole, budgets)

    def retries(self, role: str) -> int:
        """How often a job that asks the endpoint in a ``role`` is tried again: twice for a server, which may fail."""
        return 2 if getattr(self.settings, role).kind == "remote" else 0


def _compact(settings: schema.SplitSettings | schema.TaskSetSettings) -> list[schema.PointSettings]:
    """Points of fixed budgets that take as much work as the trajectories of a split or set of tasks."""
    # A path has a budget for each step; its K_max is the largest. Only splits have paths.
    budgets = [*settings.budgets, *(path.budget for path in getattr(settings, "paths", ()))]
    return [schema.PointSettings(method="infllm", budget=budget) for budget in budgets]
