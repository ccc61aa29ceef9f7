"""``model.generate(..., custom_generate="OWNER/utaca", trust_remote_code=True)``: decoding under block memory.

transformers runs this file from a repository of the Hub, or from a folder. It needs the package utaca.
"""

from typing import Any

import utaca

OPTIONS = ("budget", "policy", "trigger", "drafts", "document_tokens", "question_tokens", "memory", "documents")

_last: tuple[dict[str, Any], Any] | None = None
"""The options of the last call, and its loop, which keeps the documents that it read."""


def generate(model: Any, **arguments: Any) -> Any:
    """Generate as ``model.generate`` does; further arguments are those of ``utaca.custom_generate``."""
    global _last
    options = {name: arguments.pop(name) for name in OPTIONS if name in arguments}
    if _last is None or _last[0] != options:
        _last = (options, utaca.custom_generate(**options))
    # That of the class: a model from a repository with such a file has this function as its own ``generate``.
    return type(model).generate(model, custom_generate=_last[1], **arguments)
