"""The pages that people read: commands, paths and figures on them hold; of links see ``test_site.py``."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import quote
import rule_graph
import yaml
from configs import planned, run_files
from conftest import ROOT
from markdown_it import MarkdownIt
from markdown_it.token import Token
from snakemake.cli import get_argument_parser, parse_config
from typer.main import get_command

from utaca.app.main import TARGETS, app
from utaca.decoding import policies
from utaca.errors import UserError
from utaca.reporting import paper, registry
from utaca.reporting.paper_tables import listed
from utaca.reporting.results import label_in_words
from utaca.runs import record as runs
from utaca.runs.compose import compose
from utaca.settings import schema
from utaca.settings.checks import identity, load
from workflow.reporting import Reporting
from workflow.targets import Targets

PAGES = [
    *quote.pages(ROOT),
    *sorted(ROOT.glob("config/*.md")),
    *sorted(ROOT.glob("data/**/README.md")),
    ROOT / "training" / "README.md",
]
PRESENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
PLAN = ROOT / "docs" / "plan.md"
IDS = {"ids": lambda page: str(page.relative_to(ROOT))}


def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


# Figures


@pytest.mark.parametrize("page", quote.pages(ROOT), **IDS)
def test_figures_are_those_of_the_saved_tables(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert quote.refill(text, ROOT / quote.SNAPSHOTS) == text, "python docs/quote.py refills it"
    # Of a line that a comment begins Markdown shows the rest as it stands.
    assert not re.search(r"^[^\S\n]*<!--.*-->.*\S", text, re.MULTILINE)


TABLE = "method,cas_pct,low,high\ninfllm,58.75,51.4,66.3\nutaca,63.9,,\n"

BLOCK = """Before.

<!-- quote
table: quick/test.csv
columns:
  Method: "{method}"
  CAS %: "{cas_pct:.1f} [{low:.1f}, {high:.1f}]"
-->
stale
<!-- /quote -->

It has <!-- quote {table: quick/test.csv, where: 'method == "utaca"', text: "{cas_pct:.0f}"} -->1<!-- /quote --> points.
![Curves](snapshots/quick/curves.png)

<!-- quote {paragraph: quick/verdict.md} -->
<!-- /quote -->
"""


def test_a_run_is_saved_and_quoted(tmp_path: Path) -> None:
    page, results = tmp_path / "docs" / "page.md", tmp_path / "results" / "quick"
    for folder in (page.parent, results / "tables", results / "figures"):
        folder.mkdir(parents=True)
    (results / "tables" / "test.csv").write_text(TABLE)
    (results / "figures" / "curves.png").write_bytes(b"drawn")
    (results / "tables" / "verdict.md").write_text("## Title\n\n**It is so.**\n\n| a |\n| --- |\n")
    (results / "run.yaml").write_text("run: quick\n")
    page.write_text(BLOCK)
    quote.main(["--save", "quick"], tmp_path)
    saved = tmp_path / quote.SNAPSHOTS / "quick"
    assert {path.name for path in saved.iterdir()} == {"test.csv", "verdict.md", "curves.png", "run.yaml"}
    text = page.read_text()
    assert "| Method | CAS % |\n| --- | ---: |\n| infllm | 58.8 [51.4, 66.3] |\n| utaca | 63.9 |\n" in text
    assert re.search(r"It has <!--.*?-->64<!-- /quote --> points\.", text)
    assert "\n\n**It is so.**\n\n<!-- /quote -->\n" in text
    assert "stale" not in text
    (saved / "test.csv").write_text(TABLE.replace("58.75", "60.00"))
    quote.main([], tmp_path)
    assert "60.0 [51.4, 66.3]" in page.read_text()
    with pytest.raises(UserError, match="no page quotes the run other"):
        quote.save("other", tmp_path)
    page.write_text("It is <!-- quote {table: quick/lost.csv, text: x} -->1<!-- /quote -->.")
    with pytest.raises(UserError, match=r"has no lost\.csv"):
        quote.save("quick", tmp_path)


def test_pages_say_which_gpus_have_run(tmp_path: Path) -> None:
    sentence, table = "<!-- quote {gpu: sentence} -->?<!-- /quote -->", "<!-- quote {gpu: table} -->?<!-- /quote -->"
    assert "**No GPU has run this code yet.**" in quote.refill(sentence, tmp_path)
    assert "there are no figures" in quote.refill(table, tmp_path)
    bar = {"bar": "a token", "wanted": "<= 9 ms", "measured": "8 ms", "met": "yes"}
    (tmp_path / quote.GPUS).mkdir()
    for name in ("H100", "H200"):
        run = {"machine": {"card": f"NVIDIA {name}"}, "started": "2026-12-01T10:00:00+00:00", "bars": [bar]}
        run |= {"small": False, "parts": {"card": {"status": "done"}}}
        (tmp_path / quote.GPUS / f"{name}.json").write_text(json.dumps(run))
    assert "run on one NVIDIA H100 (2026-12-01) and on one NVIDIA H200 (2026-12-01)." in quote.refill(
        sentence, tmp_path
    )
    assert "| NVIDIA H200 | a token | <= 9 ms | 8 ms | yes |" in quote.refill(table, tmp_path)
    other = tmp_path / quote.GPUS / "other.json"
    for report in ("{broken", "[]", "null", "{}"):
        other.write_text(report)
        with pytest.raises(UserError, match=r"other\.json is not a report of bench/gpu\.py"):
            quote.refill(sentence, tmp_path)
    for change in ({"small": True}, {"machine": {"card": ""}}, {"parts": {"card": {"status": "failed"}}}):
        other.write_text(json.dumps(run | change))
        with pytest.raises(UserError, match="measured no GPU"):
            quote.refill(sentence, tmp_path)


def test_pages_list_the_papers_tables(tmp_path: Path) -> None:
    text = quote.refill("<!-- quote {paper: tables} -->?<!-- /quote -->", tmp_path)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(listed())
    assert lines[4].startswith("| Long-context test set | `test`, `methods` | UT-ACA and InfLLM: default run")
    assert all(line.count(" | ") == 3 for line in lines), "a text with a bar would be two cells"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("{table: quick/lost.csv, text: x}", "make snapshot RUN=quick"),
        ("{table: quick/test.csv, where: 'method == \"h2o\"', text: x}", "has no row"),
        ('{table: quick/test.csv, text: "{cas_pct}"}', "2 rows, not of one"),
        ("{table: quick/test.csv, where: cas >, text: x}", "cannot be looked up"),
        ("{table: quick/test.csv, only: {method: [h2o]}, text: x}", "column method has no h2o"),
        ("{table: quick/test.csv, only: {sitting: [K=0]}, text: x}", "has no column sitting"),
        ("{table: quick/test.csv, where: 'method == \"utaca\"', text: '{cas}'}", "its columns are method"),
        ("{rows: 1}", "names no table and no paragraph"),
        ("{paper: figures}", "of paper, tables can be quoted"),
        ("{", "is not YAML"),
    ],
)
def test_what_cannot_be_quoted_is_a_sentence(tmp_path: Path, settings: str, said: str) -> None:
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick/test.csv").write_text(TABLE)
    with pytest.raises(UserError, match=re.escape(said)):
        quote.refill(f"It is <!-- quote {settings} -->1<!-- /quote -->.", tmp_path)


def test_the_papers_means_imply_how_often_it_expands() -> None:
    """By answers whose every n-th token is expanded, and by the recalls of its table of detection."""
    page = " ".join((ROOT / "docs" / "paper.md").read_text(encoding="utf-8").split())
    (bullet,) = re.findall(r"\* \*\*How often UT-ACA expands\.\*\*(.*?) \* \*\*", page)
    written = [float(one) for one in re.findall(r"([\d.]+)th\b", bullet)]
    points = [
        (k_max, policies.parse(policy), figures["mtokens"] / 16)
        for reader in (paper.LLAMA, paper.QWEN)
        for (method, k_max, policy), figures in paper.tables().test[reader].items()
        if method == "utaca"
    ]
    blocks = re.search(r"a mean of ([\d., and]+) blocks", bullet)
    assert [f"{mean:.1f}" for _, _, mean in points[:4]] == re.findall(r"\d+\.\d", blocks[1])
    for (k_max, policy, mean), n in zip(points, written, strict=True):
        seldom, often = round(n) + 1, round(n) - 1
        # Means over whole cycles, the first fall from K_max aside; they are linear in 1 / n.
        below, above = (
            sum(policies.path(policy, k_max, every, 201 * every)[every:]) / (200 * every) for every in (seldom, often)
        )
        assert below < mean < above
        part = (mean - below) / (above - below)
        assert n == pytest.approx(1 / (part / often + (1 - part) / seldom), abs=0.051)
    ours = paper.tables().detection["utaca"]
    share = (ours["recall_p_pct"] - ours["macc_pct"]) / (ours["recall_p_pct"] - ours["recall_n_pct"])
    distrusted = share * ours["recall_n_pct"] + (1 - share) * (100 - ours["recall_p_pct"])
    assert f"distrusts {distrusted:.1f} % of the tokens, although only {100 * share:.1f} % are uncertain" in bullet


# Commands and paths


def typed(page: Path) -> Iterator[list[str]]:
    """Command lines of a page, in words and without the variables that they set."""
    for token in tokens(page):
        code = [token.content] if token.type == "fence" and not token.info else []
        code += [child.content for child in token.children or [] if child.type == "code_inline"]
        for text in code:
            pending = ""
            for line in text.replace("\\\n", " ").splitlines():
                pending += f"{line}\n"
                try:
                    words = shlex.split(pending, comments=True)
                except ValueError:  # a quotation that goes on
                    continue
                pending = ""
                yield [word for n, word in enumerate(words) if n or not re.match(r"[A-Z_]+=", word)]


def check_options(words: list[str]) -> None:
    """Whether ``utaca`` has the subcommand and its options."""
    command: Any = get_command(app)
    for word in words:
        if hasattr(command, "commands") and not word.startswith("-"):
            command = command.commands[word]
        elif word.startswith("--") and not command.context_settings.get("ignore_unknown_options"):
            assert word in {"--help", *(name for each in command.params for name in each.opts)}, words


def check_targets(words: list[str]) -> None:
    """Whether Snakemake plans what a command asks for."""
    command = get_argument_parser().parse_args(words)
    files = [str(file) for file in command.configfile or []]
    if not all(file.startswith("config/") for file in files):
        return  # of a run that a reader has made
    overrides: dict[str, Any] = {}
    for file in files:
        overrides |= yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
    reporting = Reporting(planned(ROOT, **overrides | parse_config(command.config)))
    Targets(reporting).check(command.targets)
    trained = {f"results/training/{name}" for name in ("tiny", "validation", "llmlingua_classifier")}
    assert set(command.targets) <= run_files(reporting) | TARGETS.keys() | trained


def check_snakemake(words: list[str]) -> None:
    """Whether Snakemake understands a command; of trainings, whether their workflow has the targets."""
    command = get_argument_parser().parse_args(words)
    if str(command.snakefile) == "training/Snakefile":
        rules = re.findall(r"^rule (\w+):", (ROOT / "training" / "Snakefile").read_text("utf-8"), re.MULTILINE)
        assert set(command.targets) <= {*rules}, words


def check_script(words: list[str]) -> None:
    """Whether a script of the project is there and has the options."""
    script = (ROOT / words[0]).read_text(encoding="utf-8")
    assert [word for word in words if word.startswith("--") and f'"{word}"' not in script] == [], words


def check_make(words: list[str]) -> None:
    """Whether the Makefile has the targets."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    asked = [word for word in words if "=" not in word and word != "..."]
    assert set(asked) <= {*targets}, words


def check_extras(words: list[str]) -> None:
    """Whether the package has the extras that pip is asked for."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for word in words:
        if match := re.fullmatch(r"(?:utaca|\.)\[([\w,]+)\]", word):
            assert set(match[1].split(",")) <= extras.keys(), words


OWN = {"add_method.md", "add_signal.md"}
"""Pages whose runs need the file that the page adds: ``test_extending.py`` has their commands."""


@pytest.mark.parametrize("page", PRESENT, **IDS)
def test_commands_and_configs_are_understood(page: Path) -> None:
    for words in typed(page):
        program, *rest = words or [""]
        if program == "utaca" and rest[:1] != ["over"]:  # a comparison of methods
            check_options(rest)
        elif program == "snakemake" and rest[:1] == ["--cores"] and page.name not in OWN:
            check_targets(rest)
        elif program == "snakemake":
            check_snakemake(rest)
        elif program == "python" and rest[:1] and rest[0].endswith(".py"):
            check_script(rest)
        elif program == "make":
            check_make(rest)
        elif program.endswith("pip"):
            check_extras(rest)
    for token in tokens(page):
        if token.type == "fence" and token.info == "yaml":
            content = yaml.safe_load(token.content)
            if token.content.startswith("# data/"):  # lines of a file of words
                assert (ROOT / token.content.splitlines()[0].removeprefix("# ")).is_file()
            elif any("theme" in entry for entry in content.values() if isinstance(entry, dict)):
                assert registry.declared(content, page.name)  # a table
            else:
                compose(content, ROOT)


def test_the_picture_shows_the_rules_of_the_default_run(tmp_path: Path) -> None:
    picture = (ROOT / rule_graph.PICTURE).read_text(encoding="utf-8")
    assert rule_graph.made() == picture, "python docs/rule_graph.py draws it again"
    assert ">train_detector</text>" in picture


def test_arrows_that_follow_from_others_are_left_out() -> None:
    dot = 'digraph {\n\t0[label = "c"];\n\t1[label = "b"];\n\t2[label = "a"];\n\t1 -> 0\n\t2 -> 1\n\t2 -> 0\n}'
    rules = rule_graph.graph(dot)
    assert rules == {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert rule_graph.reduced(rules) == {"a": {"b"}, "b": {"c"}, "c": set()}
    with pytest.raises(ValueError, match="Snakemake gave no graph: nothing"):
        rule_graph.graph("nothing")


# The plan


def decisive(config: schema.Config) -> dict[str, Any]:
    """A config without transport, without points that are not decoded, and without what is measured besides."""
    about = identity(config) | {"points": {label: identity(point) for label, point in config.operating.items()}}
    about["scale"] = {key: value for key, value in about["scale"].items() if key not in ("replays", "timed")}
    return about


@pytest.mark.parametrize("run", ["evidence-public", "evidence-public-question"])
def test_what_is_published_is_what_was_planned(run: str) -> None:
    """Of the runs whose comparisons docs/plan.md stated before their documents were decoded."""
    overrides = yaml.safe_load((ROOT / "config" / "experiments" / f"{run}.yaml").read_text(encoding="utf-8"))
    config = load(compose(overrides, ROOT))
    stated = re.findall(r"^\| (primary|secondary) comparison \| `([^`]+)`", PLAN.read_text("utf-8"), re.MULTILINE)
    assert stated == [("primary", config.plan.primary), *(("secondary", one) for one in config.plan.secondary)]
    saved = ROOT / quote.SNAPSHOTS / run
    if not saved.is_dir():
        pytest.skip(f"the planned run has not been saved: make snapshot RUN={run}")
    # All that decides: what was made, by whom it was judged, and what was planned of it.
    assert decisive(load(runs.read(saved / "run.yaml"))) == decisive(config)
    rows = pd.read_csv(saved / "verdict.csv").query("claim != 'exploratory'")
    # By the first seed's, which stands for all.
    labels = {point.name: point.label for point in reversed(config.operating.values())}
    comparisons = [[labels[name] for name in one if name] for one in config.plan.comparisons]
    names = [" over ".join(label_in_words(label, config) for label in one) for one in comparisons]
    claims = [claim for claim, _ in stated]
    assert dict(zip(rows["name"], rows["claim"], strict=True)) == dict(zip(names, claims, strict=True))
    assert set(rows.loc[rows["decoder"] == "utaca", "seeds"]) == {8}
    assert set(rows["n_documents"]) == {config.scale.test.biographies}
