"""The rules of the default run as a picture, from Snakemake's own graph of them.

``python docs/rule_graph.py`` writes ``docs/rule_graph.svg``. It needs no Graphviz.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = Path("docs") / "rule_graph.svg"

# Sizes in the picture's units, which are pixels at its own size.
_CHARACTER = 7.3
_HEIGHT = 26
_BETWEEN = 18
_ROW = 62
_MARGIN = 16
_SWEEPS = 24
"""How often the order within the rows is improved, downwards and upwards in turn."""

_STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;text-anchor:middle;fill:#1f2933}"
    "rect.rule{fill:#eaf2fb;stroke:#4a7db5}"
    "path{fill:none;stroke:#8a97a6;stroke-width:1.2}"
)

Graph = dict[str, set[str]]
"""The rules that need a rule's output, by rule."""


def graph(dot: str) -> Graph:
    """Read Snakemake's graph of rules (``--rulegraph dot``); raises ValueError if the text has no rules."""
    names = dict(re.findall(r'^\s*(\d+)\[label = "([^"]+)"', dot, re.MULTILINE))
    if not names:
        raise ValueError(f"Snakemake gave no graph: {dot}")
    rules: Graph = {name: set() for name in names.values()}
    for before, after in re.findall(r"^\s*(\d+) -> (\d+)", dot, re.MULTILINE):
        if before != after:
            rules[names[before]].add(names[after])
    return rules


def reduced(rules: Graph) -> Graph:
    """The graph without arrows that follow from others: from a to c, if arrows lead from a to b and from b to c."""

    @cache
    def reached(rule: str) -> set[str]:
        """The rules that need a rule's output, directly or by way of others."""
        return rules[rule].union(*(reached(after) for after in rules[rule]))

    return {
        rule: {after for after in afters if not any(after in reached(other) for other in afters)}
        for rule, afters in rules.items()
    }


@dataclass(frozen=True)
class _Stop:
    """A place in a row: a rule, or (``passing``) an arrow on its way from ``name`` to a rule further down."""

    name: str
    passing: str = ""

    @property
    def width(self) -> float:
        return 10 if self.passing else len(self.name) * _CHARACTER + 18


def _rows(rules: Graph) -> dict[str, int]:
    """The row of each rule, from 0 at the top; a rule is as far down as the rules that need it let it be."""
    heights: dict[str, int] = {}

    def height(rule: str) -> int:
        if rule not in heights:
            heights[rule] = 1 + max((height(after) for after in rules[rule]), default=-1)
        return heights[rule]

    last = max(map(height, rules))
    return {rule: last - height(rule) for rule in rules}


def _routes(rules: Graph, rows: Mapping[str, int]) -> list[list[_Stop]]:
    """The stops of every arrow, one in each row from its first rule to its last."""
    routes = []
    for rule in sorted(rules):
        for after in sorted(rules[rule]):
            between = [_Stop(rule, f"{after} {row}") for row in range(rows[rule] + 1, rows[after])]
            routes.append([_Stop(rule), *between, _Stop(after)])
    return routes


def _ordered(rules: Graph, rows: Mapping[str, int], routes: Sequence[Sequence[_Stop]]) -> list[list[_Stop]]:
    """The stops of each row, from left to right, so that few arrows cross."""
    layers: list[list[_Stop]] = [[] for _ in range(max(rows.values()) + 1)]
    for rule in sorted(rules):
        layers[rows[rule]].append(_Stop(rule))
    above: dict[_Stop, list[_Stop]] = {}
    below: dict[_Stop, list[_Stop]] = {}
    for route in routes:
        for number, stop in enumerate(route[1:-1], rows[route[0].name] + 1):
            layers[number].append(stop)
        for upper, lower in pairwise(route):
            below.setdefault(upper, []).append(lower)
            above.setdefault(lower, []).append(upper)
    for sweep in range(_SWEEPS):
        neighbours = below if sweep % 2 else above
        places = {stop: (n + 0.5) / len(layer) for layer in layers for n, stop in enumerate(layer)}
        for layer in reversed(layers) if sweep % 2 else layers:
            means = {}
            for stop in layer:
                near = [places[other] for other in neighbours.get(stop, [stop])]
                means[stop] = sum(near) / len(near)
            layer.sort(key=lambda stop: means[stop])
            places |= {stop: (n + 0.5) / len(layer) for n, stop in enumerate(layer)}
    return layers


def picture(rules: Graph) -> str:
    """The graph as an SVG file, from the first rules at the top to the report at the bottom."""
    rules = reduced(rules)
    rows = _rows(rules)
    routes = _routes(rules, rows)
    layers = _ordered(rules, rows, routes)
    widths = [sum(stop.width for stop in layer) + _BETWEEN * (len(layer) - 1) for layer in layers]
    width, height = max(widths) + 2 * _MARGIN, (len(layers) - 1) * _ROW + _HEIGHT + 2 * _MARGIN
    centres: dict[_Stop, tuple[float, float]] = {}
    for number, layer in enumerate(layers):
        left = (width - widths[number]) / 2
        for stop in layer:
            centres[stop] = (left + stop.width / 2, _MARGIN + number * _ROW + _HEIGHT / 2)
            left += stop.width + _BETWEEN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}"',
        f' width="{width:.0f}" height="{height:.0f}" role="img">',
        "<title>The rules of the default run</title>",
        f"<style>{_STYLE}</style>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" style="fill:#8a97a6;stroke:none"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="#ffffff"/>',
    ]
    lines += [f'<path d="{_curve([centres[stop] for stop in route])}" marker-end="url(#end)"/>' for route in routes]
    for stop, (x, y) in centres.items():
        if not stop.passing:
            corner = f'x="{x - stop.width / 2:.1f}" y="{y - _HEIGHT / 2:.1f}"'
            lines.append(f'<rect class="rule" {corner} width="{stop.width:.1f}" height="{_HEIGHT}" rx="5"/>')
            lines.append(f'<text x="{x:.1f}" y="{y + 4:.1f}">{escape(stop.name)}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """The path of an arrow through the middles of its stops, from below the first rule to above the last one."""
    (x, y), *_ = points
    path = [f"M{x:.1f} {y + _HEIGHT / 2:.1f}"]
    start = y + _HEIGHT / 2
    for number, (to_x, to_y) in enumerate(points[1:], 1):
        end = to_y - _HEIGHT / 2 - 1 if number == len(points) - 1 else to_y
        middle = (start + end) / 2
        path.append(f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {end:.1f}")
        x, start = to_x, end
    return "".join(path)


def made() -> str:
    """The picture as the workflow has it now."""
    command = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile"), "--cores", "1", "--rulegraph", "dot"]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*command, "--", "results/tables"], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"Snakemake gave no graph: {done.stdout}{done.stderr}")
    return picture(graph(done.stdout))


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python docs/rule_graph.py", description=__doc__).parse_args()
    (ROOT / PICTURE).write_text(made(), encoding="utf-8")
