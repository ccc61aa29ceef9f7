"""Numbers in texts: digits with separators, English number words, Roman numerals."""

from __future__ import annotations

import re

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_ORDINALS = {
    "first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
    "tenth": 10, "eleventh": 11, "twelfth": 12, "thirteenth": 13, "fourteenth": 14, "fifteenth": 15, "sixteenth": 16,
    "seventeenth": 17, "eighteenth": 18, "nineteenth": 19, "twentieth": 20, "thirtieth": 30,
}  # fmt: skip
_VALUES = {word: value for value, word in enumerate(_ONES)} | {word: 10 * i for i, word in enumerate(_TENS, 2)}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
_WORD = "|".join(sorted([*_VALUES, *_SCALES, *_ORDINALS], key=len, reverse=True))
_RUN = re.compile(rf"\b(?:{_WORD})(?:(?:[\s-]+|\s+and\s+)(?:{_WORD}))*\b", re.IGNORECASE)
_ROMAN = re.compile(r"(?=[IVXLC])(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_NUMBER = re.compile(
    r"(?<![\w.,])(?P<sign>[-−]?)(?:(?P<grouped>\d{1,3}(?:[,.' \u2019]\d{3})+)|(?P<plain>\d+))(?P<rest>[.,]\d+)?"
    r"(?P<scale>\s?[kK]\b)?(?![\w])"
)


def in_digits(text: str) -> str:
    """A text with its English number words as digits; ordinals keep a suffix that marks them."""

    def digits(run: re.Match[str]) -> str:
        total, current, ordinal = 0, 0, False
        for word in re.findall(r"[a-z]+", run[0].lower()):
            if word in _SCALES:
                current = max(current, 1) * _SCALES[word]
                if word != "hundred":
                    total, current = total + current, 0
            elif word in _ORDINALS:
                current, ordinal = current + _ORDINALS[word], True
            else:
                current += _VALUES.get(word, 0)
        return f"{total + current}{'th' if ordinal else ''}"

    return _RUN.sub(digits, text)


def numbers(text: str) -> list[float]:
    """The numbers of a text in order; both 1,200 and 1.200 are twelve hundred."""
    if _ROMAN.fullmatch(text.strip(" .")):
        return [_roman(text.strip(" ."))]
    found = []
    for match in _NUMBER.finditer(in_digits(text)):
        whole = match["plain"] or re.sub(r"\D", "", match["grouped"])
        value = float(whole + (match["rest"] or "").replace(",", "."))
        found.append((-value if match["sign"] else value) * (1000 if match["scale"] else 1))
    return found


def _roman(text: str) -> int:
    values = [{"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}[letter] for letter in text]
    return sum(-a if a < b else a for a, b in zip(values, [*values[1:], 0], strict=True))
