"""The paper's Wikipedia articles, from the MediaWiki API."""

import hashlib
import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
from typing_extensions import TypedDict

from utaca.biographies.corpora.text import article
from utaca.biographies.corpora.topics import paper_articles
from utaca.errors import UserError
from utaca.records.progress import progress
from utaca.records.tables import atomic_path
from utaca.records.texts import Filled, checked, read_json

API = "https://en.wikipedia.org/w/api.php"
LICENCE = "CC BY-SA 4.0"
USER_AGENT = "utaca (research pipeline)"
"""How the pipeline names itself to the MediaWiki API."""
INTERVAL_S = 1.0
"""Seconds before each request."""

_TIMEOUT_S = 30.0
_ATTEMPTS = 4
_LONGEST_WAIT_S = 60.0
_QUERY = {
    "action": "query", "format": "json", "formatversion": "2", "redirects": "1", "prop": "extracts|revisions",
    "explaintext": "1", "exsectionformat": "wiki", "rvprop": "ids",
}  # fmt: skip
_HEADING = re.compile(r"(=+)\s*(.*?)\s*\1\s*$")
_BACK_MATTER = {
    "see also", "notes", "references", "citations", "sources", "bibliography", "further reading", "external links",
    "footnotes", "works cited", "gallery", "notes and references", "references and notes", "general sources",
}  # fmt: skip


_REMEDY = "remove it to fetch the article again"


class Article(TypedDict):
    """A row of schema ``corpus``, as a file keeps it."""

    title: Filled
    text: Filled
    url: str
    licence: str
    revision: str
    source: str
    synthetic: bool


def articles(cache: Path, *, titles: Sequence[str] = paper_articles(), api: str = API) -> list[dict[str, Any]]:
    """Fetch Wikipedia articles as rows of schema ``corpus``, in the order of ``titles``; redirects are followed.

    Each article is stored with its revision in a file under ``cache`` and never fetched again, so that later runs read
    the same text. Raises :class:`UserError` if the API cannot be used, or has no article of a title.
    """
    rows = []
    for title in progress(titles, total=len(titles), unit="article", desc="Wikipedia"):
        plain_title = re.sub(r"[^A-Za-z0-9]+", "_", title)
        digest = hashlib.sha256(title.encode()).hexdigest()[:8]
        path = cache / f"{plain_title}-{digest}.json"
        if not path.exists():
            row = _fetched(api, title)
            with atomic_path(path) as scratch:
                scratch.write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
        rows.append(checked(Article, read_json(path, _REMEDY), str(path), _REMEDY))
    return rows


def _fetched(api: str, title: str) -> dict[str, Any]:
    """Fetch the article of a title, as a row of schema ``corpus``; raises :class:`UserError` if it has no text."""
    answer = _answer(api, title)
    advice = "choose corpus=folder or corpus=embedded"
    try:
        page = answer["query"]["pages"][0]
        if page.get("missing") or page.get("invalid"):
            raise UserError(f"Wikipedia has no article {title!r} at {api}; {advice}")
        name = page["title"]
        prose = _prose(page["extract"])
        revision = str(page["revisions"][0]["revid"])
    except (KeyError, IndexError, TypeError):
        raise UserError(f"the MediaWiki API at {api} returned no text for {title!r}; {advice}") from None
    url = httpx2.URL(f"{api.removesuffix('api.php')}index.php", params={"title": name, "oldid": revision})
    row = article("wikipedia", name, prose, str(url), LICENCE, revision)
    if not row["text"]:
        raise UserError(f"the Wikipedia article {name!r} has no usable prose; {advice}")
    return row


def _answer(api: str, title: str) -> Any:
    """Ask the API for a title and return its JSON answer; requests to a busy or failing server are repeated.

    Raises :class:`UserError` if the API gives no such answer.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        time.sleep(INTERVAL_S)
        try:
            response = httpx2.get(
                api,
                params=_QUERY | {"titles": title},
                headers={"User-Agent": USER_AGENT},
                timeout=_TIMEOUT_S,
                follow_redirects=True,
            )
            response.raise_for_status()
            return response.json()
        except httpx2.HTTPStatusError as error:
            status = error.response.status_code
            reason = f"HTTP {status}"
            if status not in (429, 500, 502, 503, 504) or attempt == _ATTEMPTS:
                break
            retry_after = error.response.headers.get("Retry-After", "")
            # The header may hold a date in place of seconds, or be missing: then the wait doubles with each attempt.
            wait = float(retry_after) if retry_after.isdigit() else INTERVAL_S * 2**attempt
            time.sleep(min(wait, _LONGEST_WAIT_S))
        except (httpx2.HTTPError, ValueError) as error:
            reason = str(error) or type(error).__name__
            if isinstance(error, ValueError):
                reason = "its answer is not JSON"
            break
    raise UserError(
        f"the MediaWiki API at {api} cannot be used ({reason}); choose corpus=folder with corpus.path, or "
        "corpus=embedded"
    )


def _prose(extract: str) -> str:
    """The paragraphs of an article's extract, without headings, formulas and back matter (notes, references)."""
    # Extracts have a paragraph in each line. A formula is in short broken lines, which are dropped later, and in a line
    # of TeX with \displaystyle.
    kept: list[str] = []
    skipped_level = 0  # of the heading of the back matter that is being skipped; 0: none
    for line in extract.split("\n"):
        heading = _HEADING.match(line)
        if heading:
            level = len(heading[1])
            # A heading below that of the back matter belongs to it.
            if not skipped_level or level <= skipped_level:
                skipped_level = level if heading[2].casefold() in _BACK_MATTER else 0
        elif not skipped_level and "\\displaystyle" not in line:
            kept.append(line)
    return "\n\n".join(kept)
