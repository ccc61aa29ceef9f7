"""The prose of all trainings, which is never the paper's articles: they are test material."""

import random

from training.settings import Settings
from utaca.biographies.corpora import folder
from utaca.biographies.corpora.embedded import articles
from utaca.biographies.corpora.topics import training_topics


def paragraphs(settings: Settings) -> list[str]:
    """Embedded prose over topics of its own and, where one is named, the settings' corpus, shuffled."""
    texts = articles(training_topics(), settings.seed + 1, crowded=True)
    if settings.corpus:
        texts = [*texts, *folder.articles(settings.corpus, "corpus")]
    found = [p.strip() for text in texts for p in text["text"].split("\n\n") if len(p.strip()) >= 80]
    random.Random(f"{settings.seed}:prose").shuffle(found)
    return found
