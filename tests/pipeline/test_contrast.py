"""The colours of the HTML pages by WCAG 2.2: each text on each ground that it may have, light, dark and printed."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import pytest
from conftest import ROOT

from utaca.pages import style
from utaca.reporting.palette import MARKS

TEXT, MARK = 4.5, 3.0
"""Least contrast (AA) of text, criterion 1.4.3, and of what is no text but has to be seen, criterion 1.4.11."""
PAGES = {
    "server": "app/serving/page.html",
    "traces": "reporting/traces.html",
    "review": "judging/review.html",
    "report": "reporting/report.html",
}
DARK, PRINT = "(prefers-color-scheme: dark)", "print"

Color = tuple[float, float, float, float]
"""Red, green, blue and alpha, from 0 to 1."""


class Rule(NamedTuple):
    """A selector, the media condition around it ("" for none), and its declarations."""

    media: str
    selector: str
    declared: dict[str, str]


# WCAG


def luminance(color: Color) -> float:
    """Relative luminance of an opaque colour, as WCAG defines it for sRGB."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in color[:3]]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: Color, other: Color) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


# CSS


def rules(sheet: str, media: str = "") -> Iterator[Rule]:
    """The rules of a style sheet, with those inside of ``@media``; the other at-rules have no colours."""
    rest = re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL)
    while "{" in rest:
        selector, _, rest = rest.partition("{")
        depth, end = 1, 0
        while depth:
            depth += {"{": 1, "}": -1}.get(rest[end], 0)
            end += 1
        body, rest = rest[: end - 1], rest[end:]
        selector = " ".join(selector.split())
        if selector.startswith("@media"):
            yield from rules(body, selector.removeprefix("@media").strip())
        elif not selector.startswith("@"):
            pairs = (part.partition(":") for part in body.split(";") if ":" in part)
            declared = {name.strip(): value.strip() for name, _, value in pairs}
            for each in selector.split(","):
                yield Rule(media, each.strip(), declared)


def variables(sheet: Sequence[Rule], *media: str) -> dict[str, str]:
    """The custom properties of ``:root``, those under the media conditions on top."""
    roots = [
        rule for condition in ("", *media) for rule in sheet if (rule.media, rule.selector) == (condition, ":root")
    ]
    return {name: value for rule in roots for name, value in rule.declared.items() if name.startswith("--")}


def substituted(value: str, known: Mapping[str, str]) -> str:
    """A value with its variables' values in their place; a fallback counts where there is no such variable."""
    while found := re.search(r"var\((--[\w-]+)(?:,\s*([^()]*))?\)", value):
        value = value.replace(found[0], known[found[1]] if found[1] in known or found[2] is None else found[2], 1)
    return value


def number(text: str) -> float:
    """A share: a percentage, or a product of a number and a percentage."""
    product_, share = 1.0, text.strip().removeprefix("calc(").removesuffix(")")
    for factor in share.split("*"):
        product_ *= float(factor.strip().removesuffix("%")) / (100 if "%" in factor else 1)
    return product_


def color(value: str) -> Color:
    """A colour as CSS writes it; the forms that the pages use."""
    if value == "transparent":
        return (0.0, 0.0, 0.0, 0.0)
    if found := re.fullmatch(r"#([0-9a-f]{3}|[0-9a-f]{6})", value.lower()):
        digits = found[1] if len(found[1]) == 6 else "".join(2 * digit for digit in found[1])
        red, green, blue = (int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4))
        return (red, green, blue, 1.0)
    if found := re.fullmatch(r"color-mix\(in srgb, (#\w+) (.+), (#\w+|transparent)\)", value):
        first, second, share = color(found[1]), color(found[3]), number(found[2])
        alpha = first[3] * share + second[3] * (1 - share)
        mixed = [
            (a * first[3] * share + b * second[3] * (1 - share)) / alpha if alpha else 0.0
            for a, b in zip(first[:3], second[:3], strict=True)
        ]
        return (mixed[0], mixed[1], mixed[2], alpha)
    raise AssertionError(f"{value} is no colour that this test reads")


def over(top: Color, ground: Color) -> Color:
    """What is seen of a colour on an opaque one."""
    mixed = [a * top[3] + b * (1 - top[3]) for a, b in zip(top[:3], ground[:3], strict=True)]
    return (mixed[0], mixed[1], mixed[2], 1.0)


# Pages

NO_COLOR = {"inherit", "currentColor", "none", None}
SCRIPTED = {"--lost": ("0", "1"), "--d": ("0", "1"), "--share": ("0%", "100%")}
"""What a page's script sets, at its ends."""
TONES = ("--muted", "--wrong", "--unknown")
"""The variables that the trace page's script makes ``--tone``."""
WORDLESS = {
    ".meter",
    ".meter div",
    ".bars .track",
    ".budget::before",
    "#strip",
    "figure img",
    ".bars i",
    ".bars i.back",
}
"""Grounds that no text stands on."""
TOGETHER = {
    "server": [],
    "traces": [
        ((".chip.lost .name", ".chip .name"), ".chip.lost"),
        ((".piece",), ".shaded"),
        ((".gone",), ".shaded"),
        ((".token.blank .shaded", ".token.blank .piece"), ".shaded"),
        (("#where td > *",), "#where td"),
    ],
    "review": [((".token.blank",), f'.token[data-label="{label}"]') for label in (0, 2, "")],
    "report": [],
}
"""Texts on grounds of another rule: the text's selectors, of which the first with a colour counts, and the ground's."""


def sheet_of(page: str) -> list[Rule]:
    """The rules of a page, those that all pages share among them."""
    html = (ROOT / "src" / "utaca" / PAGES[page]).read_text(encoding="utf-8")
    own = html.partition("<style>")[2].partition("</style>")[0]
    shared = own.replace("@STYLE@", style()).replace("{{ style | safe }}", style())
    assert shared.count("prefers-color-scheme: dark") >= 1
    return list(rules(shared))


def themes(sheet: Sequence[Rule]) -> dict[str, dict[str, str]]:
    return {"light": variables(sheet), "dark": variables(sheet, DARK), "print": variables(sheet, PRINT)}


def grounds(value: str, known: Mapping[str, str]) -> Iterator[Color]:
    """The opaque colours that a background may have, at the ends of what scripts set, on the page and on a card."""
    names = [name for name in SCRIPTED if name in value]
    tones = TONES if "--tone" in value else ("--muted",)
    for tone, ends, ground in product(tones, product(*(SCRIPTED[name] for name in names)), ("--page", "--card")):
        settled = {**known, "--tone": known[tone], **dict(zip(names, ends, strict=True))}
        yield over(color(substituted(value, settled)), color(known[ground]))


def pairs(sheet: Sequence[Rule], page: str, theme: str) -> Iterator[tuple[str, str, str | None]]:
    """What names a pair, the text's colour, and the ground's; a ground of None is the page and a card."""
    others = {DARK, PRINT} - {{"dark": DARK, "print": PRINT}.get(theme)}
    shown = [rule for rule in sheet if rule.media not in others and rule.selector not in {":root", *WORDLESS}]
    of = {rule.selector: rule.declared for rule in shown}
    for rule in shown:
        text, ground = rule.declared.get("color"), rule.declared.get("background")
        text, ground = (None if value in NO_COLOR else value for value in (text, ground))
        if text or ground:
            yield rule.selector, text or "var(--text)", ground
    for texts, ground in TOGETHER[page]:
        colors = [of[text]["color"] for text in texts if "color" in of.get(text, {})]
        yield f"{texts[0]} on {ground}", next(iter(colors), "var(--text)"), of[ground]["background"]


@pytest.mark.parametrize("page", PAGES)
def test_text_can_be_read_on_every_ground(page: str) -> None:
    sheet = sheet_of(page)
    seen = set()
    faults = []
    for theme, known in themes(sheet).items():
        for name, text, ground in pairs(sheet, page, theme):
            for below in grounds(ground or "transparent", known):
                seen.add((theme, text, ground))
                ratio = contrast(color(substituted(text, known)), below)
                if ratio < TEXT:
                    faults.append(f"{theme}: {name}: {text} on {ground or 'the page or a card'} {ratio:.2f}")
    assert faults == []
    assert len(seen) > 15, "the style sheet was read"
    assert {theme for theme, _, _ in seen} == {"light", "dark", "print"}


@pytest.mark.parametrize("page", PAGES)
def test_what_has_the_focus_can_be_seen(page: str) -> None:
    sheet = sheet_of(page)
    outlines = {
        value.split(" ", 2)[2] for rule in sheet for name, value in rule.declared.items()
        if name == "outline" and value != "none"
    }  # fmt: skip
    assert "var(--accent)" in outlines
    for theme, known in themes(sheet).items():
        for outline, ground in product(outlines, ("--page", "--card")):
            assert contrast(color(substituted(outline, known)), color(known[ground])) >= MARK, (theme, outline)


def test_marks_of_methods_can_be_seen() -> None:
    known = themes(sheet_of("traces"))
    for family, mark in MARKS.items():
        for ground in ("#ffffff", *(known[theme][name] for theme in known for name in ("--page", "--card"))):
            assert contrast(color(mark.color), color(ground)) >= MARK, (family, ground)


# The measure


@pytest.mark.parametrize(
    ("one", "other", "ratio"),
    [("#000", "#fff", 21.0), ("#777777", "#ffffff", 4.48), ("#767676", "#fff", 4.54), ("#f00", "#ffffff", 4.0)],
)
def test_ratios_are_those_of_wcag(one: str, other: str, ratio: float) -> None:
    assert contrast(color(one), color(other)) == pytest.approx(ratio, abs=0.005)


def test_mixtures_are_those_of_css() -> None:
    half = color("color-mix(in srgb, #ff0000 50%, #0000ff)")
    assert half == (0.5, 0.0, 0.5, 1.0)
    glass = color("color-mix(in srgb, #ff0000 calc(0.5 * 50%), transparent)")
    assert glass == (1.0, 0.0, 0.0, 0.25)
    assert over(glass, color("#fff")) == (1.0, 0.75, 0.75, 1.0)


def test_a_faint_text_is_found() -> None:
    sheet = list(
        rules(":root { --a: #999; } @media (x) { p, q { color: var(--a); /* faint } */ } } b { color: #000; }")
    )
    assert [(rule.media, rule.selector) for rule in sheet] == [("", ":root"), ("(x)", "p"), ("(x)", "q"), ("", "b")]
    faint = color(substituted(sheet[1].declared["color"], variables(sheet)))
    assert contrast(faint, color("#fff")) < TEXT
