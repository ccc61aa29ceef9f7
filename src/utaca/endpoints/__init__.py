"""OpenAI-compatible endpoints: one client with an answer store, and the check before a run."""

from utaca.endpoints.client import Outcomes, Request, Usage, ask
from utaca.endpoints.server import check

__all__ = ["Outcomes", "Request", "Usage", "ask", "check"]
