"""Who fills a role, writer, labeller or judge: the rules, in this process, or a server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from utaca.endpoints import client
from utaca.judging.rules import revision, tasks
from utaca.settings.schema import Endpoint


def ask(
    endpoint: Endpoint, requests: Sequence[client.Request], *, store: Path | str, description: str
) -> client.Answers:
    """Ask whoever fills the role every request, as :func:`utaca.endpoints.client.ask` does."""
    model = client.InProcess(tasks.complete, revision()) if endpoint.kind == "reference" else None
    return client.ask(endpoint, requests, store=store, description=description, model=model)
