"""HTML pages that are one file and need no network: a template, what it shows, and a style that all pages share.

Everything that a model or an endpoint wrote reaches a page as JSON in a block that browsers do not execute, and the
script of the page shows it as text alone; the page's security policy allows that one script, by its hash, and nothing
else.
"""

import base64
import hashlib
import json
from importlib.resources import files
from typing import Any


def style() -> str:
    """The style sheet that pages share: colours in light and dark, controls."""
    return (files("utaca") / "pages.css").read_text(encoding="ascii").rstrip()


def fill(package: str, name: str, content: Any) -> str:
    """The template ``name`` of ``package`` with ``content`` as the JSON of its data block.

    Pure ASCII, and the same for the same content. A template has ``@STYLE@`` in its style sheet, ``@HASH@`` in its
    security policy and ``@DATA@`` in its data block; its script is the last one.
    """
    block = json.dumps(content, separators=(",", ":"))
    for character in "<>&":
        block = block.replace(character, f"\\u{ord(character):04x}")
    template = (files(package) / name).read_text(encoding="ascii").replace("@STYLE@", style(), 1)
    script = template.rpartition("<script>")[2].partition("</script>")[0]
    policy = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return template.replace("@HASH@", policy, 1).replace("@DATA@", block, 1)
