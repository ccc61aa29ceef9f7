"""The paper's Wikipedia articles, from the MediaWiki API."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from utaca.biographies.corpora.text import paragraphs
from utaca.biographies.corpora.topics import paper_articles
from utaca.errors import UserError
from utaca.records.progress import progress
from utaca.records.tables import atomic_path

API = "https://en.wikipedia.org/w/api.php"
LICENCE = "CC BY-SA 4.0"

_TIMEOUT_S = 30.0
_ATTEMPTS = 4
_LONGEST_WAIT_S = 60.0
USER_AGENT = "utaca (research pipeline)"
"""How the pipeline names itself to the MediaWiki API."""
INTERVAL_S = 1.0
"""Seconds from one request to the next."""
_HEADING = re.compile(r"(=+)\s*(.*?)\s*\1\s*$")
_BACK_MATTER = {
    "see also", "notes", "references", "citations", "sources", "bibliography", "further reading", "external links",
    "footnotes", "works cited", "gallery", "notes and references", "references and notes", "general sources",
}  # fmt: skip


def articles(cache: Path, *, titles: Sequence[str] = paper_articles(), api: str = API) -> list[dict[str, Any]]:
    """Rows of schema ``corpus``, one a title in the given order; redirects are followed, revisions recorded.

    A fetched article is kept under ``cache``, one file a title, and is never asked for again, so that later runs see
    the same revisions. Raises :class:`UserError` if the API cannot be reached or has no such article.
    """
    client = _Client(api)
    rows = []
    for title in progress(titles, total=len(titles), unit="article", description="Wikipedia"):
        path = cache / f"{re.sub(r'[^A-Za-z0-9]+', '_', title)}-{hashlib.sha256(title.encode()).hexdigest()[:8]}.json"
        if path.exists():
            rows.append(_cached(path))
            continue
        row = client.article(title)
        with atomic_path(path) as scratch:
            scratch.write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
        rows.append(row)
    return rows


def _cached(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{path} is damaged; remove it to fetch the article again") from None


class _Client:
    def __init__(self, api: str) -> None:
        self.api = api
        self.next_request = 0.0

    def article(self, title: str) -> dict[str, Any]:
        answer = self._get(
            {
                "action": "query",
                "format": "json",
                "formatversion": "2",
                "redirects": "1",
                "prop": "extracts|revisions",
                "explaintext": "1",
                "exsectionformat": "wiki",
                "rvprop": "ids",
                "titles": title,
            }
        )
        try:
            page = answer["query"]["pages"][0]
            if page.get("missing") or page.get("invalid"):
                raise UserError(
                    f"Wikipedia has no article {title!r} at {self.api}; choose corpus=folder or corpus=embedded"
                )
            name, extract, revision = page["title"], page["extract"], str(page["revisions"][0]["revid"])
        except (KeyError, IndexError, TypeError):
            raise UserError(
                f"the MediaWiki API at {self.api} gave no text of {title!r}; choose corpus=folder or corpus=embedded"
            ) from None
        text = _prose(extract)
        if not text:
            raise UserError(
                f"the Wikipedia article {name!r} has no usable prose; choose corpus=folder or corpus=embedded"
            )
        query = urllib.parse.urlencode({"title": name, "oldid": revision})
        return {
            "title": name,
            "text": text,
            "url": f"{self.api.removesuffix('api.php')}index.php?{query}",
            "licence": LICENCE,
            "revision": revision,
            "source": "wikipedia",
            "synthetic": False,
        }

    def _get(self, parameters: dict[str, str]) -> dict[str, Any]:
        request = urllib.request.Request(
            f"{self.api}?{urllib.parse.urlencode(parameters)}", headers={"User-Agent": USER_AGENT}
        )
        for attempt in range(1, _ATTEMPTS + 1):
            time.sleep(max(0.0, self.next_request - time.monotonic()))
            self.next_request = time.monotonic() + INTERVAL_S
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                    return json.load(response)
            except urllib.error.HTTPError as error:
                reason = f"HTTP {error.code}"
                error.close()
                if error.code not in (429, 500, 502, 503, 504) or attempt == _ATTEMPTS:
                    break
                retry_after = error.headers.get("Retry-After", "")
                wait = float(retry_after) if retry_after.isdigit() else INTERVAL_S * 2**attempt
                self.next_request = time.monotonic() + min(wait, _LONGEST_WAIT_S)
            except (OSError, http.client.HTTPException) as error:
                reason = str(getattr(error, "reason", error) or type(error).__name__)
                break
            except ValueError:
                reason = "its answer is not JSON"
                break
        raise UserError(
            f"the MediaWiki API at {self.api} cannot be used ({reason}); choose corpus=folder with corpus.path, "
            "or corpus=embedded"
        )


def _prose(extract: str) -> str:
    # Extracts put one paragraph on a line; formulas come as broken lines with a \displaystyle twin.
    kept: list[str] = []
    skipped = 0
    for line in extract.split("\n"):
        heading = _HEADING.match(line)
        if heading:
            level = len(heading[1])
            if not skipped or level <= skipped:
                skipped = level if heading[2].casefold() in _BACK_MATTER else 0
        elif not skipped and "\\displaystyle" not in line:
            kept.append(line)
    return "\n\n".join(paragraphs("\n\n".join(kept)))
