"""The report page, and what a run took."""

import re
from html import unescape
from pathlib import Path

import factories
import numpy as np
import pandas as pd
import pytest
from browser import HOSTILE
from configs import decoding, point, reference_config
from factories import inputs

from utaca.errors import UserError
from utaca.records import trajectory_schema, write
from utaca.reporting import report
from utaca.reporting.registry import ENTRIES, TableEntry
from utaca.reporting.table import Content, ShownColumn, Table, save
from utaca.reporting.tables import example, resources
from utaca.settings import schema

WRITTEN = HOSTILE[0] + HOSTILE[2]


@pytest.fixture
def config() -> schema.Config:
    return reference_config(scale={"detector_seeds": 2})


def cells(html: str) -> list[str]:
    """Cells of the tables of HTML."""
    return [
        unescape(re.sub("<[^>]*>", "", cell))
        for cell in re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", html, re.DOTALL)
    ]


def attributes(html: str, name: str) -> list[str]:
    return [unescape(value) for value in re.findall(rf' {name}="([^"]*)"', html)]


REGISTRY = {
    name: TableEntry(name, title=title, theme=theme, files=[], caption="What it shows.", fill="Score them: `{again}`")
    for name, title, theme in (
        ("verdict", "Verdict", "generation"),
        ("test", "Test", "generation"),
        ("differences", "Differences", "generation"),
        ("curves", "Curves", "generation"),
        ("budget", "Budget over the steps", "generation"),
        ("margins", "Logit margins", "detection"),
        ("human", "Human", "judging"),
        ("never", "Never made", "methods"),
    )
}
SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'


def made(folder: Path) -> list[Path]:
    """Files of tables, one of which a hostile model filled and one says nothing, and of figures."""
    columns = [
        ShownColumn("Method | setting"),
        ShownColumn("CAS %", "Conceptual accuracy by the judge; failed judgements left out.", numeric=True),
        ShownColumn("Rest", "What is <left>.", numeric=True, folded=True),
    ]
    rows = [[WRITTEN, "12.3 [1.0, 20.0]", "7"], ["a\\b|c", "–", "7"]]
    run = "Run: reader tiny; 3 documents."
    caption = ["Caption.", WRITTEN]
    lead = [f"**UT-ACA loses.** {WRITTEN}", "And so on."]
    paper = [ShownColumn("Point"), ShownColumn("Scored"), ShownColumn("paper CAS %", paper=True)]
    contents = {
        "test": Content("Generation, test", columns, rows, caption=caption, run=run, notes=["Of the rest."]),
        "verdict": Content("Against", [ShownColumn("Point")], [["x"]], lead, ["C."]),
        "zebra": Content("Zebra", [ShownColumn("a"), ShownColumn("b")], [["1", "2"]], caption=["Stripes."]),
        "human": Content("Human", paper, [["all", "no human scores", "74.6"]], caption=["C."]),
    }
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(content.json(), "utf-8")
    (folder / "test.csv").write_text("x\n")
    for name in ("differences", "curves", "budget", "margins"):
        (folder / f"{name}.svg").write_text(SVG)
    return sorted(path for path in folder.iterdir() if path.is_file())


def about(folder: Path) -> dict[str, Path]:
    """The run's config and manifest, in the folder of the run."""
    (folder / "run.yaml").write_text(f"seed: 0 # {WRITTEN}\n")
    (folder / "manifest.json").write_text('{"commit": "abc123"}\n')
    return {"run": folder / "run.yaml", "manifest": folder / "manifest.json"}


def test_the_report_shows_every_table_and_figure_as_they_stand(tmp_path, config):
    folder = tmp_path / "quick-7"
    (folder / "tables").mkdir(parents=True)
    files = made(folder / "tables")
    links = {"Traces <1>": folder / "traces" / "a.html"}
    html = report.page(files, links, config, tmp_path / "tables", registry=REGISTRY, about=about(folder))
    assert html.isascii()
    of_test = html.partition('<h3 id="test">')[2].partition("<h3 ")[0]
    shown, _, folded = of_test.partition("<details")
    assert cells(shown) == ["Method | setting", "CAS %", WRITTEN, "12.3 [1.0, 20.0]", "a\\b|c", "–"]
    assert cells(folded) == [
        "Method | setting", "CAS %", "Rest", WRITTEN, "12.3 [1.0, 20.0]", "7", "a\\b|c", "–", "7",
    ]  # fmt: skip
    assert {name: told for told, name in re.findall(r'<th[^>]* title="([^"]*)"[^>]*>([^<]*)</th>', folded)} == {
        "CAS %": "Conceptual accuracy by the judge; failed judgements left out.", "Rest": "What is &lt;left&gt;."
    }  # fmt: skip
    ids = attributes(html, "id")
    assert ids == [
        "verdict", "differences", "curves", "paper", "test", "human", "theme-generation", "budget", "theme-detection",
        "margins", "theme-more", "zebra", "made",
    ]  # fmt: skip
    links_shown = attributes(html, "href")
    assert {link[1:] for link in links_shown if link.startswith("#")} <= set(ids)
    assert {link for link in links_shown if not link.startswith("#")} >= {
        "../quick-7/traces/a.html", "../quick-7/tables/test.csv", "../quick-7/run.yaml", "../quick-7/tables/curves.svg"
    }  # fmt: skip
    images = attributes(html, "src")
    assert len(images) == 4
    assert all(source.startswith("data:image/svg+xml;base64,") for source in images)
    for told in ("UT-ACA loses.", "run quick-7", "synthetic prose", "no language model", "abc123", "16 tokens of"):
        assert told in html
    assert f"--configfile {folder}/run.yaml" in html
    assert "reader tiny; 3 documents" not in html, "what the run is stands once"
    (empty,) = re.findall('<p class="empty" id="human">(.*?)</p>', html)
    assert empty.startswith("<strong>Human</strong>: nothing in this run. Score them: <code>snakemake ")
    assert f"--configfile {folder}/run.yaml</code>" in empty
    assert "no human scores" not in html, "an empty table is one line"
    assert html.index("UT-ACA loses") < html.index('id="differences"') < html.index("<dt>CAS") < html.index('"test"')
    with pytest.raises(UserError, match=r"none\.json does not exist"):
        report.page([tmp_path / "none.json"], {}, config, tmp_path)
    (zebra,) = (path for path in files if path.name == "zebra.json")
    config.scale.test.people, config.reader.path = "ours.jsonl", "data/readers/ours"
    assert "small model that ships" in html
    html = report.page([zebra], {}, config, tmp_path)
    assert "; those of the test split are of ours.jsonl." in html
    assert "small model that ships" not in html
    assert "no verdict" in html
    assert cells(html) == ["a", "b", "1", "2"]


def test_tables_and_figures_are_numbered_in_the_order_of_the_page(tmp_path, config):
    files = made(tmp_path)
    verdict = Content("Against", [ShownColumn("Point"), ShownColumn("Gain")], [["x", "1"]], ["Lead."], ["C."])
    (tmp_path / "verdict.json").write_text(verdict.json(), "utf-8")
    html = report.page(files, {}, config, tmp_path, registry=REGISTRY)
    numbers = re.findall(r"<strong>Figure (\d)\.</strong>|>Table (\d)\. ([\w ]+)", html)
    assert [(figure or f"{table} {title}") for figure, table, title in numbers] == [
        "1", "2", "1 The numbers behind the verdict", "2 Generation", "3", "4", "3 Zebra",
    ]  # fmt: skip


def test_the_best_value_is_bold_and_rows_of_the_paper_only_are_counted(tmp_path, config):
    columns = [
        ShownColumn("Detector"),
        ShownColumn("CAS %", numeric=True, best=[1]),
        ShownColumn("paper CAS %", numeric=True, paper=True),
    ]
    rows = [["first", "1.0", "2"], ["second", "9.0", "–"], ["third", "–", "3"], ["fourth", "–", "–"]]
    (tmp_path / "test.json").write_text(Content("Test", columns, rows, caption=["C."]).json(), "utf-8")
    html = report.page([tmp_path / "test.json"], {}, config, tmp_path, registry=REGISTRY)
    assert cells(html) == [
        "Detector",
        "CAS %",
        "paper CAS %",
        "first",
        "1.0",
        "2",
        "second",
        "9.0",
        "–",
        "fourth",
        "–",
        "–",
    ]
    assert re.findall(r"<td[^>]*><strong>(.*?)</strong>", html) == ["9.0"]
    assert "1 of the paper's rows was not run. Score them:" in html


def test_tables_that_the_run_does_not_make_have_their_command(tmp_path, config):
    left_out = {"Sweep <1>": "it needs points: `snakemake x`."}
    html = report.page(made(tmp_path), {}, config, tmp_path, registry=REGISTRY, left_out=left_out)
    assert "<strong>Sweep &lt;1&gt;</strong>: it needs points: <code>snakemake x</code>." in html
    assert "#left-out" in attributes(html, "href")
    assert "left-out" not in report.page(made(tmp_path), {}, config, tmp_path, registry=REGISTRY)


@pytest.fixture
def answered(tmp_path: Path) -> dict:
    """Three answers of a point. The second is nearest to the mean CAS, and the third expands nothing."""
    of = point("utaca", 4, "sub.2")
    config = reference_config(detectors={"utaca": schema.DetectorSettings()}, **decoding(test=[of]))
    pieces = (" The", WRITTEN, " Oslo", "")
    answers, scores, traces, labels = [], [], [], []
    for name, cas in (("d0", 1.0), ("d1", 0.5), ("d2", 0.6)):
        answers.append(factories.answer(name, of, question=f"Where,\n{WRITTEN}?", n_generated=4))
        scores.append(factories.score(name, of.label, "city", cas))
        for number, piece in enumerate(pieces):
            rolled = number == 2 and name != "d2"
            traces.append(factories.step(name, of.label, number, piece, 4 if rolled else 2, rolled_back=rolled))
            label = {"label": 0, "accepted_label": 0 if number == 1 else 1}
            tried = {"text": " Rome", "token": 1, "k": 1, "uncertain": rolled, "replaced": rolled, **label}
            about = {name: answers[-1][name] for name in ("split", "point", "budget", "policy", "detector", "seed")}
            shares = dict.fromkeys(("p_hallucinated", "p_correct", "p_unknown"), 0.3)
            said = {"document": name, "step": number, "source": "endpoint", "reason": ""}
            labels += [about | said | tried | shares] if number else []
    paths = factories.saved(tmp_path, answers, scores)
    write(tmp_path / "traces.parquet", "traces", traces)
    write(tmp_path / "labels.parquet", "trace_labels", labels)
    files = {"test_traces": [tmp_path / "traces.parquet"], "trace_labels": [tmp_path / "labels.parquet"]}
    return {"files": inputs(*paths) | files, "config": config}


def test_the_example_is_the_answer_nearest_to_the_mean(answered, tmp_path) -> None:
    files, config = answered["files"], answered["config"]
    frame = example.example(files, config)
    assert frame.attrs["lead"] == f"Question about document d1: Where, {WRITTEN}?", "d2 is nearer, but expands nothing"
    assert list(frame["k"]) == [2, 2, 4, 2]
    assert list(frame["first_token"]) == ["", "", " Rome", ""]
    assert list(frame["label"]) == ["", "hallucinated", "correct", "correct"]
    raw = pd.read_parquet(files["test_traces"][0]).query("document == 'd1'")
    assert list(frame["expanded"]) == list(raw["rolled_back"])
    assert "".join(frame["piece"]) == "".join(raw["text"])
    table = Table.of("example", frame, config)
    assert "(50 %) is nearest to the mean of its point (70 %)" in table.caption
    save(table, tmp_path / "tables")
    html = report.page([tmp_path / "tables" / "example.json"], {}, config, tmp_path, registry=ENTRIES)
    text = html.partition('<p class="tokens">')[2].partition("</p>")[0]
    shown = re.findall(r'<span class="token([^"]*)" style="--d:([\d.]+)" title="([^"]*)">(.*?)</span>', text)
    assert [(kind.strip(), float(share), unescape(piece)) for kind, share, _, piece in shown] == [
        ("", 0.5, " The"), ("hallucinated", 0.5, WRITTEN), ("twice", 1, " Oslo"),
    ]  # fmt: skip
    assert unescape(shown[2][2]) == "K=4, rejected: “Rome”"
    assert WRITTEN not in html
    assert 'id="example"' in html
    assert "Table 1" not in html, "it is shown as text"


def test_the_report_runs_nothing_and_asks_for_nothing(chromium, tmp_path, config):
    folder = tmp_path / "results"
    folder.mkdir()
    files = made(folder)
    html = report.page(files, {WRITTEN: folder / "a.html"}, config, folder, registry=REGISTRY, about=about(folder))
    (folder / "report.html").write_text(html, encoding="ascii")
    chromium.open(folder / "report.html")
    assert WRITTEN in chromium.text(".verdict p")
    assert chromium.run("[...document.images].every((image) => image.naturalWidth > 0)")
    for width in (1400, 600):
        chromium.view(width)
        assert chromium.run("document.documentElement.scrollWidth <= innerWidth")
    # A link to a table within a closed theme opens it.
    assert not chromium.run("document.querySelector('#budget').checkVisibility({contentVisibilityAuto: true})")
    chromium.run("location.hash = '#budget'")
    chromium.wait(lambda: chromium.run("document.querySelector('#theme-generation').open"))
    chromium.call("Emulation.setEmulatedMedia", media="print")
    assert chromium.run("document.querySelector('#margins').getBoundingClientRect().height > 0"), "all is printed"
    assert chromium.complaints == []
    assert all(address.startswith(("file:", "about:", "data:")) for address in chromium.requests)
    chromium.harmless("script")


# Resources

_HEADER = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"


def measurement(path: Path, seconds: float, rss: str, cpu: str) -> None:
    path.write_text(f"{_HEADER}{seconds}\t0:00:01\t{rss}\t1\t1\t1\t1\t1\t50\t{cpu}\n")


def test_resources_are_summed_by_stage(tmp_path, config, monkeypatch):
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "results" / config.run / "benchmarks"
    for folder in ("score", "table"):
        (root / folder).mkdir(parents=True)
    measurement(root / "score" / "a.tsv", 10.5, "1024", "9.5")
    measurement(root / "score" / "b.tsv", 20, "512", "15")
    measurement(root / "table" / "test.tsv", 0.2, "NA", "NA")
    measurement(root / "pad.tsv", 1.0, "NA", "NA")
    (root / "table" / "just_begun.tsv").touch()
    # Rows of each token's passes, under budgets 4, 3, 4 (rolled back), 3 and 2. Token agreement compares below 4. A
    # second budget of 3 is tried for the token under 2, and for the one that was then rolled back.
    rows = {"agreement": [1, 2, 2, 2, 2], "agreement.3": [1, 1, 3, 1, 2], "": [1, 1, 2, 1, 1]}
    made: dict[str, list] = {"answers": [], "traces": []}
    for trigger, of_tokens in rows.items():
        of = point("utaca", 4, "sub.1", trigger)
        for name, length in (("d0", 100), ("d1", 101)):
            made["answers"].append(factories.answer(name, of, n_context=length, n_generated=5, rollbacks=1))
            made["traces"] += [
                factories.step(name, of.label, number, rows=count) for number, count in enumerate(of_tokens)
            ]
    used = [{"item": str(number), "failure": None, "answers": []} for number in range(7)]
    made |= {"usage": used, "documents": [factories.long_document("d0", "x", {}, n_tokens=70)]}
    files = {key: [] for key in ("validation_answers", "validation_traces", "writer_usage", "labeller_usage")}
    names = dict(zip(made, ("test_answers", "test_traces", "judge_usage", "documents"), strict=True))
    for kind, rows in made.items():
        files[names[kind]] = [tmp_path / kind / "test.parquet"]
        write(files[names[kind]][0], kind, rows)
    files["trajectories"] = [tmp_path / "trajectories" / "test" / "0.parquet"]
    answered = {"d0": 3, "d0/missing": None, "d0/partial": 4}
    expanded = [{"document": name, "expanded_token": token} for name, token in answered.items()]
    write(files["trajectories"][0], "trajectories", expanded, schema=trajectory_schema(8, []))
    table = resources.resources(files, config)
    frame = table.set_index("stage")
    assert list(frame.index) == ["pad", "decode_trajectories", "generate", "score", "table", "all"]
    counted = frame[["tokens_read", "tokens_generated"]]
    assert counted.loc["decode_trajectories"].tolist() == [3 * 70, 3 + 2]
    assert counted.loc["generate"].tolist() == [100 + 101, 2 * (9 + 8 + 6)]
    score = frame.loc["score"]
    assert (score["n_jobs"], score["wall_s"], score["longest_s"], score["cpu_s"]) == (2, 30.5, 20, 24.5)
    assert (score["peak_gib"], score["n_requests"]) == (1, 7)
    assert np.isnan(frame.loc["decode_trajectories", "wall_s"])
    everything = frame.loc["all"]
    assert (everything["n_jobs"], everything["peak_gib"]) == (4, 1)
    assert everything["wall_s"] == pytest.approx(31.7)
    assert save(Table.of("resources", table, config), tmp_path)
    assert "| decode_trajectories | 0 | – |" in (tmp_path / "resources.md").read_text(encoding="utf-8")
