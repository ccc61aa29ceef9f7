"""Padding prose: embedded, the user's files, or the paper's Wikipedia articles."""

from pathlib import Path
from typing import Any

from utaca.biographies.corpora import embedded, folder, wikipedia
from utaca.biographies.corpora.topics import paper_articles
from utaca.settings import schema


def load(settings: schema.CorpusSettings, seed: int, cache: Path) -> list[dict[str, Any]]:
    """Load the corpus that the settings name, as rows of schema ``corpus``.

    ``seed`` affects only the embedded prose; ``cache`` is the folder of fetched articles. Raises :class:`UserError` if
    the source cannot be used.
    """
    if settings.source == "embedded":
        return embedded.articles(paper_articles(), seed)
    if settings.source == "folder":
        return folder.articles(settings.path)
    return wikipedia.articles(cache)
