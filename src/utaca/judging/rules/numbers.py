"""Read the numbers in texts: digits with separators, number words, Roman numerals."""

import re

from text_to_num import alpha2digit

_DOZEN = re.compile(r"\b(half\s+)?(?:a\s+)?dozen\b", re.IGNORECASE)
_OH = re.compile(r"[\s-](?:oh|o)[\s-](?=\w)", re.IGNORECASE)
# Years said in pairs, as text2num writes them: nineteen eighty-five, nineteen oh five.
_PAIR = re.compile(r"\b(1\d|20) (?:(\d\d)|(0) (\d))\b")
_ROMAN = re.compile(r"(?=[IVXLC])(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_ROMAN_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
_NUMBER = re.compile(
    r"(?<![\w.,])(?P<sign>[-−]?)(?:(?P<grouped>\d{1,3}(?:[,.' \u2019]\d{3})+)|(?P<plain>\d+))(?P<rest>[.,]\d+)?"
    r"(?P<scale>\s?[kK]\b)?(?![\w])"
)


def in_digits(text: str) -> str:
    """A text with its English number words as digits; ordinals keep their suffix ("third" becomes "3rd")."""
    plain = _DOZEN.sub(lambda dozen: "six" if dozen[1] else "twelve", _OH.sub(" zero ", text))
    digits = alpha2digit(plain, "en", 0)
    # Pairs are joined only if there were number words: "19 85" in a text without any are two numbers.
    return text if digits == text else _PAIR.sub(r"\1\2\3\4", digits)


def numbers(text: str) -> list[float]:
    """The numbers in a text, in order; both 1,200 and 1.200 are twelve hundred.

    A text that is only a Roman numeral is that number.
    """
    roman = _ROMAN.fullmatch(text.strip(" ."))
    if roman:
        return [_roman_value(roman[0])]
    signed = re.sub(r"\bminus (?=\d)", "-", in_digits(text))
    return [_value(match) for match in _NUMBER.finditer(signed)]


def _roman_value(letters: str) -> int:
    """The number that Roman numerals stand for: a letter before a larger one is subtracted."""
    values = [_ROMAN_VALUES[letter] for letter in letters]
    total = 0
    for value, following in zip(values, [*values[1:], 0], strict=True):
        total += -value if value < following else value
    return total


def _value(number: re.Match[str]) -> float:
    """The value of a match of :data:`_NUMBER`."""
    whole = number["plain"] or re.sub(r"\D", "", number["grouped"])
    fraction = (number["rest"] or "").replace(",", ".")
    value = float(whole + fraction)
    if number["sign"]:
        value = -value
    if number["scale"]:
        value *= 1000
    return value
