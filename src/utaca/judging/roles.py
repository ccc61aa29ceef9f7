"""Who fills a role, writer, labeller or judge: the rules, in this process, or a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utaca.endpoints import client
from utaca.judging.rules import revision, tasks
from utaca.settings.checks import build
from utaca.settings.schema import Endpoint


@dataclass(frozen=True)
class Role:
    """An endpoint in its role, and the store of its answers; ``used`` gets rows of schema "usage"."""

    endpoint: Endpoint
    store: Path | str
    used: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, config: Mapping[str, Any]) -> Role:
        """The role of that name in a plain config."""
        return cls(build(Endpoint, config[name], name), config["answers"])

    def ask(self, requests: Sequence[client.Request], description: str) -> client.Answers:
        """Ask the endpoint every request, as :func:`utaca.endpoints.client.ask` does."""
        model = client.InProcess(tasks.complete, revision()) if self.endpoint.kind == "reference" else None
        answers = client.ask(self.endpoint, requests, store=self.store, description=description, model=model)
        self.used.extend(answers.used)
        return answers
