"""Topics of the padding prose: the paper's articles, and others for the tiny reader's training text.

An entry is ``Title`` or ``Title|phrase``, the phrase being how the title stands inside a sentence; without one
it is the title in lower case.
"""

from __future__ import annotations

import re

_PAPER: dict[str, tuple[str, ...]] = {
    "arts": (
        "Architecture", "Art", "Baroque|the Baroque", "Cinema", "Classical music", "Impressionism|Impressionism",
        "Jazz",
        "Literature", "Modernism", "Mona Lisa|the Mona Lisa", "Painting", "Photography", "Poetry", "Rock music",
        "Sculpture", "The Starry Night|The Starry Night", "Theatre",
    ),
    "geography": (
        "Africa|Africa", "Amazon River|the Amazon River", "Amazon rainforest|the Amazon rainforest",
        "Antarctica|Antarctica", "Atlantic Ocean|the Atlantic Ocean", "Australia (continent)|the Australian continent",
        "Earth|the Earth", "Europe|Europe", "Great Barrier Reef|the Great Barrier Reef", "Nile|the Nile",
        "Ocean|the ocean",
        "Pacific Ocean|the Pacific Ocean", "Sahara|the Sahara", "South America|South America", "Volcano|the volcano",
    ),
    "history": (
        "French Revolution|the French Revolution", "Maya civilization|the Maya civilization",
        "Roman Empire|the Roman Empire", "Age of Enlightenment|the Age of Enlightenment",
        "American Civil War|the American Civil War", "Ancient Egypt|Ancient Egypt", "Ancient Greece|Ancient Greece",
        "British Empire|the British Empire", "Ottoman Empire|the Ottoman Empire", "World War II|World War II",
    ),
    "science": (
        "Geometry", "Mathematics", "Number|the number", "Vaccine|the vaccine", "Bacteria", "Biology",
        "Black hole|the black hole", "Cell (biology)|the cell", "Climate change", "DNA|DNA", "Evolution",
        "General relativity", "Quantum mechanics", "Thermodynamics", "Virus|the virus", "Light", "Medicine",
        "Psychology", "Algorithm|the algorithm",
    ),
    "society": (
        "Sport", "Communism", "Culture", "Democracy", "Epistemology", "Human rights", "Law", "Logic", "Metaphysics",
        "Philosophy", "Republic|the republic", "Socialism", "Agriculture", "Calendar|the calendar", "Food",
        "Olympics|the Olympics",
    ),
    "technology": (
        "Artificial intelligence", "Blockchain", "Cryptography", "Engineering",
        "Internal combustion engine|the internal combustion engine", "Internet|the Internet", "Nanotechnology",
        "Robotics",
        "Semiconductor|the semiconductor", "Software", "Steam engine|the steam engine", "Technology",
        "Telecommunication",
    ),
}  # fmt: skip

_TRAINING: dict[str, tuple[str, ...]] = {
    "arts": (
        "Opera", "Ballet", "Ceramics", "Calligraphy", "Folk music", "Tapestry", "The novel|the novel", "Printmaking",
        "Choral music", "Stained glass", "Puppetry", "Furniture making", "Typography", "Mosaic", "Watercolour",
    ),
    "geography": (
        "Danube|the Danube", "Himalayas|the Himalayas", "Arctic|the Arctic", "Mediterranean Sea|the Mediterranean Sea",
        "Savanna|the savanna", "Glacier|the glacier", "River delta|the river delta", "Asia|Asia",
        "Caucasus|the Caucasus",
        "Gobi Desert|the Gobi Desert", "Fjord|the fjord", "Lake Baikal|Lake Baikal", "Wetland|the wetland",
    ),
    "history": (
        "Hanseatic League|the Hanseatic League", "Silk Road|the Silk Road", "Bronze Age|the Bronze Age",
        "Mongol Empire|the Mongol Empire", "Industrial Revolution|the Industrial Revolution",
        "Crusades|the Crusades", "Inca Empire|the Inca Empire", "Phoenicia|Phoenicia",
        "Congress of Vienna|the Congress of Vienna", "Thirty Years' War|the Thirty Years' War", "Feudalism",
        "Edo period|the Edo period", "Persian Empire|the Persian Empire",
    ),
    "science": (
        "Astronomy", "Botany", "Geology", "Genetics", "Magnetism", "Organic chemistry", "Oceanography", "Statistics",
        "Topology", "Immunology", "Meteorology", "Optics", "Neuroscience", "Palaeontology", "Entomology",
        "Crystallography",
    ),
    "society": (
        "Education", "Journalism", "Taxation", "Urban planning", "Ethics", "Public health",
        "Trade union|the trade union",
        "Migration", "Banking", "Cooking", "Chess", "Athletics", "Museum|the museum",
        "Public library|the public library",
    ),
    "technology": (
        "Printing press|the printing press", "Railway|the railway", "Bicycle|the bicycle", "Telescope|the telescope",
        "Aviation", "Electric motor|the electric motor", "Bridge|the bridge", "Radio", "Database|the database",
        "Clock|the clock",
        "Metallurgy", "Refrigeration", "Operating system|the operating system", "Wind power",
    ),
}  # fmt: skip

_ENTRIES = {
    entry.partition("|")[0]: (domain, entry.partition("|")[2])
    for table in (_PAPER, _TRAINING)
    for domain, entries in table.items()
    for entry in entries
}

DOMAINS: tuple[str, ...] = tuple(_PAPER)

PAPER_ARTICLES: tuple[str, ...] = tuple(e.partition("|")[0] for entries in _PAPER.values() for e in entries)
"""Titles of the 90 Wikipedia articles that the paper pads its test documents with (its table of source articles)."""

TRAINING_TOPICS: tuple[str, ...] = tuple(e.partition("|")[0] for entries in _TRAINING.values() for e in entries)
"""Topics of the tiny reader's training text, none of them among :data:`PAPER_ARTICLES`."""


def domain_of(topic: str) -> str | None:
    """The domain of a known topic, one of :data:`DOMAINS`, else None."""
    return _ENTRIES[topic][0] if topic in _ENTRIES else None


def phrase_of(topic: str) -> str:
    """How ``topic`` stands inside a sentence."""
    phrase = _ENTRIES.get(topic, ("", ""))[1]
    if phrase:
        return phrase
    bare = re.sub(r"\s*\([^)]*\)$", "", topic)
    return bare[:1].lower() + bare[1:] if topic in _ENTRIES else bare
