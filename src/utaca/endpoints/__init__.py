"""OpenAI-compatible endpoints: one client with an answer store, and the check before a run."""

from utaca.endpoints.chat import check
from utaca.endpoints.client import Outcomes, Request, Usage, ask

__all__ = ["Outcomes", "Request", "Usage", "ask", "check"]
