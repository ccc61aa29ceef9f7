"""HTML pages that are one file and need no network, filled from a template and a style sheet that all pages share.

What a page shows, text of models and endpoints included, stands in the page as JSON, in a block that browsers do not
execute. The page's script shows it only as text. The page's security policy allows this one script, by its hash, and
nothing else.
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
    """Fill the template ``name`` of ``package`` with ``content`` and return the page's HTML.

    The HTML is pure ASCII, and the same for the same content. A template has ``@STYLE@`` in its style sheet, where the
    shared style goes, ``@HASH@`` in its security policy, for the digest of its last script, and ``@DATA@`` in its data
    block, where ``content`` goes as JSON.
    """
    block = json.dumps(content, separators=(",", ":"))
    # As escapes, so that no text of the content can end the block or begin a comment.
    for character in "<>&":
        block = block.replace(character, f"\\u{ord(character):04x}")
    template = (files(package) / name).read_text(encoding="ascii").replace("@STYLE@", style(), 1)
    script = template.rpartition("<script>")[2].partition("</script>")[0]
    policy = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return template.replace("@HASH@", policy, 1).replace("@DATA@", block, 1)
