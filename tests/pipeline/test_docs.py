"""The pages that people read: commands, paths and figures on them hold; of links see ``test_site.py``."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import quote
import yaml
from configs import planned, run_files
from conftest import ROOT
from markdown_it import MarkdownIt
from markdown_it.token import Token
from snakemake.cli import get_argument_parser, parse_config
from typer.main import get_command

from utaca.app.main import TARGETS, app
from utaca.errors import UserError
from utaca.reporting.points import label_in_words
from utaca.settings import runs, schema
from utaca.settings.checks import identity, load
from utaca.settings.compose import compose

PAGES = [
    *quote.pages(ROOT),
    *sorted(ROOT.glob("config/*.md")),
    *sorted(ROOT.glob("data/**/README.md")),
    ROOT / "training" / "README.md",
]
PRESENT = [page for page in PAGES if page.name != "CHANGELOG.md"]
IDS = {"ids": lambda page: str(page.relative_to(ROOT))}


def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def links(page: Path) -> Iterator[str]:
    """Targets of links and images."""
    for token in tokens(page):
        for child in token.children or []:
            if target := child.attrGet("href") or child.attrGet("src"):
                yield str(target)


def test_every_page_is_in_the_index() -> None:
    index = {(ROOT / "docs" / link).resolve() for link in links(ROOT / "docs" / "README.md")}
    assert index >= {page for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"}


# Figures


@pytest.mark.parametrize("page", quote.pages(ROOT), **IDS)
def test_figures_are_those_of_the_saved_tables(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert quote.refill(text, ROOT / quote.SNAPSHOTS) == text, "python docs/quote.py refills it"
    # Of a line that a comment begins Markdown shows the rest as it stands.
    assert not re.search(r"^[^\S\n]*<!--.*-->.*\S", text, re.MULTILINE)


TABLE = "method,cas_pct,low,high\ninfllm,58.75,51.4,66.3\nutaca,63.9,,\n"


def page_of(folder: Path, text: str) -> Path:
    """A project with one page, and results as the run ``quick`` wrote them."""
    for path in ("docs", "results/quick/tables", "results/quick/figures"):
        (folder / path).mkdir(parents=True)
    (folder / "results/quick/tables/test.csv").write_text(TABLE)
    (folder / "results/quick/figures/curves.png").write_bytes(b"drawn")
    (folder / "results/quick/tables/verdict.md").write_text("## Title\n\n**It is so.**\n\n| a |\n| --- |\n")
    (folder / "results/quick/run.yaml").write_text("run: quick\n")
    (folder / "docs/page.md").write_text(text)
    return folder / "docs/page.md"


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


PLANS = ("evidence-public", "evidence-public-question")
"""Runs whose comparisons docs/plan.md stated before their documents were decoded."""


def planned_run(run: str, folder: str = "experiments") -> schema.Config:
    overrides = yaml.safe_load((ROOT / "config" / folder / f"{run}.yaml").read_text(encoding="utf-8"))
    return load(compose(overrides, ROOT))


def decisive(config: schema.Config) -> dict[str, Any]:
    """A config without transport and without points that are not decoded."""
    return identity(config) | {"points": {label: identity(point) for label, point in config.operating.items()}}


@pytest.mark.parametrize("run", PLANS)
def test_the_plan_is_that_of_its_run(run: str) -> None:
    text, config = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8"), planned_run(run)
    named = re.findall(r"^\| (primary|secondary) comparison \| `([^`]+)`", text, re.MULTILINE)
    assert named == [("primary", config.plan.primary), *(("secondary", one) for one in config.plan.secondary)]
    test, learnt = config.scale.test, planned_run("detectors-qwen25", "runs").scale
    budgets = [str(point.budget) for point in config.decoded("test") if point.method == "infllm"]
    assert f"{test.biographies} of the test split, {test.tokens[0]:,} to {test.tokens[1]:,} tokens" in text
    assert f"run's seed {config.seed}:" in text
    assert f"K = {', '.join(budgets)}," in text
    assert f"{config.scale.bootstrap:,} resamples" in text
    assert f"{learnt.train.biographies} people ({learnt.validation.biographies} for validation)" in text
    planned_points = [config.points[name] for one in config.plan.comparisons for name in one if name]
    assert {point.seeds for point in planned_points if point.detected} == {schema.ALL}
    assert config.scale.detector_seeds == 8


@pytest.mark.parametrize("run", PLANS)
def test_what_is_published_of_the_run_is_what_was_planned(run: str) -> None:
    saved = ROOT / quote.SNAPSHOTS / run
    if not saved.is_dir():
        pytest.skip(f"the planned run has not been saved: make snapshot RUN={run}")
    config = planned_run(run)
    made_with = load(runs.read(saved / "run.yaml"))
    # All that decides: what was made, by whom it was judged, and what was planned of it.
    assert decisive(made_with) == decisive(config)
    rows = pd.read_csv(saved / "verdict.csv").query("claim != 'exploratory'")
    # By the first seed's, which stands for all.
    labels = {point.name: point.label for point in reversed(config.operating.values())}
    comparisons = [[labels[name] for name in one if name] for one in config.plan.comparisons]
    names = [" over ".join(label_in_words(label, config) for label in one) for one in comparisons]
    claims = ["primary", *["secondary"] * len(config.plan.secondary)]
    assert dict(zip(rows["name"], rows["claim"], strict=True)) == dict(zip(names, claims, strict=True))
    assert set(rows.loc[rows["decoder"] == "utaca", "seeds"]) == {8}
    assert set(rows["n_documents"]) == {config.scale.test.biographies}


def test_a_run_is_saved_and_quoted(tmp_path: Path) -> None:
    page = page_of(tmp_path, BLOCK)
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


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("{table: quick/lost.csv, text: x}", "make snapshot RUN=quick"),
        ("{table: quick/test.csv, where: 'method == \"h2o\"', text: x}", "has no row"),
        ('{table: quick/test.csv, text: "{cas_pct}"}', "2 rows, not of one"),
        ("{table: quick/test.csv, where: cas >, text: x}", "cannot be looked up"),
        ("{table: quick/test.csv, where: 'method == \"utaca\"', text: '{cas}'}", "its columns are method"),
        ("{rows: 1}", "names no table and no paragraph"),
        ("{", "is no YAML"),
    ],
)
def test_what_cannot_be_quoted_is_a_sentence(tmp_path: Path, settings: str, said: str) -> None:
    (tmp_path / "quick").mkdir()
    (tmp_path / "quick/test.csv").write_text(TABLE)
    with pytest.raises(UserError, match=re.escape(said)):
        quote.refill(f"It is <!-- quote {settings} -->1<!-- /quote -->.", tmp_path)


@pytest.mark.parametrize(("run", "said"), [("other", "no page quotes the run other"), ("quick", "has no lost.csv")])
def test_a_run_that_cannot_be_saved_is_a_sentence(tmp_path: Path, run: str, said: str) -> None:
    page_of(tmp_path, "It is <!-- quote {table: quick/lost.csv, text: x} -->1<!-- /quote -->.")
    with pytest.raises(UserError, match=said):
        quote.save(run, tmp_path)


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


@pytest.mark.parametrize("page", PRESENT, **IDS)
def test_subcommands_and_their_options_are_there(page: Path) -> None:
    for words in typed(page):
        if words[:1] != ["utaca"] or words[1:2] == ["over"]:  # a comparison of methods
            continue
        command: Any = get_command(app)
        for word in words[1:]:
            if hasattr(command, "commands") and not word.startswith("-"):
                command = command.commands[word]
            elif word.startswith("--") and not command.context_settings.get("ignore_unknown_options"):
                assert word in {"--help", *(name for each in command.params for name in each.opts)}, words


def known(plan: Any) -> set[str]:
    """Files and targets of a run."""
    files = run_files(plan) | {f"{plan.OUT}/{name}" for name in ("run.yaml", "manifest.json", "tasks")}
    files |= {f"results/training/{name}" for name in ("tiny", "validation", "llmlingua_classifier")}
    return files | TARGETS.keys()


@pytest.mark.parametrize("page", PRESENT, **IDS)
def test_commands_are_planned(page: Path) -> None:
    sources = [ROOT / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk")]
    rules = {name for source in sources for name in re.findall(r"^rule (\w+):", source.read_text(), re.MULTILINE)}
    for words in typed(page):
        if words[:2] != ["snakemake", "--cores"]:
            continue
        command = get_argument_parser().parse_args(words[1:])
        files = [str(file) for file in command.configfile or []]
        if not all(file.startswith("config/") for file in files):
            continue  # of a run that a reader has made
        overrides: dict[str, Any] = {}
        for file in files:
            overrides |= yaml.safe_load((ROOT / file).read_text(encoding="utf-8"))
        plan = planned(ROOT, **overrides | parse_config(command.config))
        plan.check_targets(command.targets)
        assert set(command.targets) <= known(plan)
        assert set(command.forcerun or []) <= rules


@pytest.mark.parametrize("page", PRESENT, **IDS)
def test_configs_on_pages_compose(page: Path) -> None:
    for token in tokens(page):
        if token.type == "fence" and token.info == "yaml":
            compose(yaml.safe_load(token.content), ROOT)


def test_every_shipped_run_is_told_of() -> None:
    text = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    assert not [path.name for path in (ROOT / "config" / "runs").glob("*.yaml") if f"`{path.name}`" not in text]


MADE_BY_A_READER = "results/quick/tables/lengths.md"
"""The table that docs/extending.md adds."""
FILLED = {
    "run": "quick", "split": "test", "labeller": "reference", "judge": "reference", "variant": "utaca", "n": "0",
    "shard": "0", "reader": "tiny",
}  # fmt: skip


@pytest.mark.parametrize("page", PRESENT, **IDS)
def test_paths_follow_the_plan(page: Path) -> None:
    """Paths in words; those in commands belong to the commands' own runs."""
    plan = planned(ROOT)
    shared = {"results/answers.sqlite", "results/corpus/cache"}
    there = known(plan) | shared | {f"{plan.OUT}/{name}" for name in ("journal", "benchmarks")}
    folders = {str(parent) for path in there for parent in Path(path).parents}
    for token in tokens(page):
        for child in token.children or []:
            if child.type == "code_inline" and re.fullmatch(r"results/[^\s*…]+", child.content):
                if child.content == MADE_BY_A_READER:
                    continue
                path = child.content.rstrip("/").replace("NAME", "quick").format_map(FILLED)
                assert path in there | folders, child.content
