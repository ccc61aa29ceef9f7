"""The model in a role (writer, labeller or judge): either the rules, run in this process, or a server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from utaca.endpoints.chat import shape
from utaca.endpoints.client import Outcomes, Request, ask
from utaca.endpoints.store import digest, identity
from utaca.judging.rules import tasks
from utaca.records.progress import progress
from utaca.settings.checks import build
from utaca.settings.schema import EndpointSettings


@dataclass(frozen=True)
class Role:
    """An endpoint in its role, and the store of a server's answers; ``used`` collects rows of schema "usage"."""

    endpoint: EndpointSettings
    store: Path | str
    used: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, name: str, config: Mapping[str, Any]) -> Role:
        """Build the role ``name`` from a plain config."""
        return cls(build(EndpointSettings, config[name], name), config["answers"])

    def ask(self, requests: Sequence[Request], description: str) -> Outcomes:
        """Send all requests to the rules or the server; errors are those of :func:`utaca.endpoints.client.ask`."""
        if self.endpoint.kind == "reference":
            outcomes = self._by_rules(requests, description)
        else:
            outcomes = ask(self.endpoint, requests, store=self.store, description=description)
        self.used.extend(outcomes.used)
        return outcomes

    def _by_rules(self, requests: Sequence[Request], description: str) -> Outcomes:
        """Answer requests by the rules, in this process; answers are not stored.

        The numbers of tokens in ``used`` are those of words. A request whose answer fails its check is not asked
        again, because the rules would answer the same.
        """
        outcomes = Outcomes()
        with progress(total=len(requests), unit="request", desc=description) as bar:
            for request in requests:
                messages = request.messages
                answer = tasks.answer(request.task)
                value = request.answer.model_validate(answer)
                failure = "check" if request.check and request.check(value) else None
                if failure:
                    outcomes.failures[request.key] = failure
                else:
                    outcomes.values[request.key] = value
                # As for an answer of a server, so that usage looks the same.
                request_identity = identity(self.endpoint, messages, shape(request.answer), request.prompt.version)
                usage = {
                    "request": digest(request_identity),
                    "prompt_tokens": sum(len(message["content"].split()) for message in messages),
                    "completion_tokens": len(json.dumps(answer, ensure_ascii=False).split()),
                }
                outcomes.used.append({"item": request.key, "failure": failure, "answers": [usage]})
                bar.update()
        return outcomes
