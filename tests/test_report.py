"""The report page, the budget over the steps, and what a run took."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from browser import CHROMIUM, Browser
from configs import reference_config

from utaca.errors import UserError
from utaca.records import SCHEMAS, write
from utaca.reporting import budget, render, report, resources, spread, statistics, tables
from utaca.settings import schema
from utaca.settings.compose import command

HOSTILE = '<script>window.ran = 1</script><img src=x onerror="window.ran = 2">'


@pytest.fixture
def config() -> schema.Config:
    size = schema.SplitSize(biographies=3, tokens=[10, 20], budgets=[1, 2])
    return reference_config(
        scale=schema.Scale(
            name="smoke", train=size, validation=size, test=size, detector_steps=1, detector_seeds=2, bootstrap=200
        )
    )


class Reading(HTMLParser):
    """Cells of the tables by the id of the heading above, ids, links to them, image sources."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.images: list[str] = []
        self.cells: dict[str, list[str]] = {}
        self._cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.append(given["id"])
        if tag == "a":
            self.links.append(given["href"])
        if tag == "img":
            self.images.append(given["src"])
        if tag in ("td", "th"):
            self._cell = True
            self.cells.setdefault(self.ids[-1], []).append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        if self._cell:
            self.cells[self.ids[-1]][-1] += data


def made(folder: Path) -> list[Path]:
    """Files of three tables, one of which a hostile model filled, and of two figures."""
    header, rows = ["Method | setting", "CAS %"], [[HOSTILE, "12.3 [1.0, 20.0]"], ["a\\b|c", "–"]]
    (folder / "test.md").write_text(render.markdown("Generation, test", f"Caption. {HOSTILE}", header, rows), "utf-8")
    (folder / "test.csv").write_text("x\n")
    (folder / "zebra.md").write_text(render.markdown("Zebra", "Stripes.", ["a"], [["1"]]), "utf-8")
    (folder / "detection.md").write_text(render.markdown("Detection", "Of tokens.", ["a"], [["1"]]), "utf-8")
    for name in ("pareto", "detection_curve"):
        (folder / f"{name}.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>')
    return sorted(path for path in folder.iterdir())


def test_the_report_shows_every_table_and_figure_as_they_stand(tmp_path, config):
    files = made(tmp_path)
    html = report.page(files, {"Traces <1>": tmp_path / "traces" / "a.html"}, "snakemake -- x", config, tmp_path)
    assert html.isascii()
    seen = Reading(html)
    assert seen.cells["test"] == ["Method | setting", "CAS %", HOSTILE, "12.3 [1.0, 20.0]", "a\\b|c", "–"]
    assert [name for name in seen.ids if not name.startswith("section-")] == [
        "run", "pages", "test", "pareto", "detection", "detection_curve", "zebra",
    ]  # fmt: skip
    assert "traces/a.html" in seen.links
    assert {link[1:] for link in seen.links if link.startswith("#")} == set(seen.ids)
    assert {link for link in seen.links if not link.startswith("#")} >= {path.name for path in files}
    assert len(seen.images) == 2
    assert all(source.startswith("data:image/svg+xml;base64,") for source in seen.images)
    for told in ("snakemake -- x", "synthetic prose", "no language model", "3 documents of 10-20 tokens", "torch "):
        assert told in html
    elsewhere = Reading(report.page(files, {}, "", config, tmp_path.parent))
    assert f"{tmp_path.name}/test.csv" in elsewhere.links
    with pytest.raises(UserError, match=r"none\.md does not exist"):
        report.page([tmp_path / "none.md"], {}, "", config, tmp_path)


def test_the_report_runs_nothing_and_asks_for_nothing(tmp_path, config):
    if CHROMIUM is None:
        pytest.skip("no Chromium; on Debian: apt-get install chromium")
    folder = tmp_path / "results"
    folder.mkdir()
    html = report.page(made(folder), {HOSTILE: folder / "a.html"}, HOSTILE, config, folder)
    (folder / "report.html").write_text(html, encoding="ascii")
    with Browser(tmp_path / "browser") as browser:
        browser.open(folder / "report.html")
        assert HOSTILE in browser.run("document.querySelector('dd code').textContent")
        assert browser.run("window.ran === undefined && !document.querySelector('script')")
        assert browser.run("[...document.images].every((image) => image.naturalWidth > 0)")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        assert browser.complaints == []
        assert all(address.startswith(("file:", "about:", "data:")) for address in browser.requests)


def test_the_command_keeps_addresses_at_home():
    overrides = {"scale": "paper", "judge": {"use": "gpt_oss_120b", "base_url": "http://gpu7:8000/v1"}, "seed": 3}
    typed = command(overrides, "results/report.html")
    assert "gpu7" not in typed
    assert typed.startswith('snakemake --cores all --config scale=paper \'judge={"use": "gpt_oss_120b"}\' seed=3 -- ')
    assert command({}, "x") == "snakemake --cores all -- x"


# Budget over the steps


def trace(document: str, point: str, step: int, k: int, rolled_back: bool = False) -> dict:
    return {"document": document, "point": point, "step": step, "k": k, "rolled_back": rolled_back}


def test_budget_is_the_mean_over_the_documents_that_reach_a_step(tmp_path, config):
    lengths = {"d0": 4, "d1": 3, "d2": 2, "d3": 1}
    k = {(d, s): 1 + (7 * i + 3 * s) % 5 for i, (d, n) in enumerate(lengths.items()) for s in range(n)}
    rows = [trace(d, "utaca-K9", s, value, s == 1 and d != "d2") for (d, s), value in k.items()]
    rows += [trace(d, "infllm-K8", s, 8) for d, s in k]
    write(tmp_path / "traces.parquet", "traces", rows)
    frame = budget.budget([tmp_path / "traces.parquet"], config)
    assert set(frame["point"]) == {"utaca-K9"}
    assert list(frame["step"]) == [0, 1, 2]  # d0 alone reaches the last
    assert list(frame["n_documents"]) == [4, 3, 2]
    for row in frame.to_dict("records"):
        values = [k[d, row["step"]] for d, n in lengths.items() if n > row["step"]]
        assert row["k"] == pytest.approx(np.mean(values))
        assert row["k_low"] <= row["k"] <= row["k_high"]
        assert min(values) <= row["k_low"]
        assert row["k_high"] <= max(values)
    counts = statistics.resamples(4, 200, 0, "budget").astype(int)
    first = [np.mean(np.repeat([k[d, 0] for d in lengths], count)) for count in counts]
    assert tuple(frame.loc[0, ["k_low", "k_high"]]) == pytest.approx(tuple(np.percentile(first, [2.5, 97.5])))
    assert list(frame["rolled_back_pct"]) == pytest.approx([0, 200 / 3, 0])

    paths = budget.draw(frame, tmp_path, config)
    before = [path.read_bytes() for path in paths]
    assert [path.suffix for path in paths] == [".csv", ".png", ".svg"]
    assert len(pd.read_csv(paths[0])) == 3
    budget.draw(frame, tmp_path, config)
    assert [path.read_bytes() for path in paths] == before


def test_a_suite_of_fixed_budgets_has_an_empty_figure(tmp_path, config):
    write(tmp_path / "traces.parquet", "traces", [trace("d0", "infllm-K8", 0, 8)])
    frame = budget.budget([tmp_path / "traces.parquet"], config)
    assert frame.empty
    assert all(path.stat().st_size for path in budget.draw(frame, tmp_path, config))


# Detectors


def test_detectors_are_drawn_from_their_table(tmp_path):
    rows = [
        {"detector": name, "run": seeds > 0, "seeds": seeds}
        | {f"{metric}{part}": 50.0 for metric in spread.METRICS for part in ("", "_sd", "_low", "_high")}
        for name, seeds in (("Logit Margin", 1), ("Evidential", 0), ("UT-ACA", 8))
    ]
    table = tmp_path / "detection.csv"
    pd.DataFrame(rows).to_csv(table, index=False)
    paths = spread.spread(table, tmp_path)
    before = [path.read_bytes() for path in paths]
    assert [path.name for path in paths] == ["detectors.png", "detectors.svg"]
    assert [path.read_bytes() for path in spread.spread(table, tmp_path)] == before
    pd.DataFrame(rows[1:2]).to_csv(table, index=False)
    with pytest.raises(UserError, match="no detector that ran"):
        spread.spread(table, tmp_path)


# Resources

_HEADER = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"


def measurement(path: Path, seconds: float, rss: str, cpu: str) -> None:
    path.write_text(f"{_HEADER}{seconds}\t0:00:01\t{rss}\t1\t1\t1\t1\t1\t50\t{cpu}\n")


def test_resources_are_summed_by_stage(tmp_path, config):
    measurement(tmp_path / "a.tsv", 10.5, "1024", "9.5")
    measurement(tmp_path / "b.tsv", 20, "512", "15")
    measurement(tmp_path / "t.tsv", 0.2, "NA", "NA")
    (tmp_path / "a.log").write_text(
        "INFO utaca.endpoints.client: scores: 192 requests to endpoint reference (model m): 100 from the store, 92 "
        "answers sent for, 0 asked again\n"
        "INFO utaca.endpoints.client: scores: 8 requests to endpoint reference (model m): 1 from the store, 7 answers "
        "sent for, 0 asked again\n"
    )
    jobs = [
        ["pad", str(tmp_path / "none.tsv"), str(tmp_path / "none.log")],
        ["table_test", str(tmp_path / "t.tsv"), str(tmp_path / "none.log")],
        ["figure_budget", str(tmp_path / "t.tsv"), str(tmp_path / "none.log")],
        ["score_test", str(tmp_path / "a.tsv"), str(tmp_path / "a.log")],
        ["score_test", str(tmp_path / "b.tsv"), str(tmp_path / "none.log")],
    ]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    table = resources.resources(tmp_path / "jobs.json", {"pad": (1000, 20)}, config)
    frame = table.frame.set_index("stage")
    assert list(frame.index) == ["pad", "score_test", "tables and figures", "all"]
    score = frame.loc["score_test"]
    assert (score["n_jobs"], score["wall_s"], score["longest_s"], score["cpu_s"]) == (2, 30.5, 20, 24.5)
    assert (score["peak_gib"], score["n_requests"], score["n_stored"]) == (1, 200, 101)
    assert (frame.loc["pad", "n_jobs"], frame.loc["pad", "n_measured"]) == (1, 0)
    assert np.isnan(frame.loc["pad", "wall_s"])
    everything = frame.loc["all"]
    assert (everything["n_jobs"], everything["n_measured"], everything["peak_gib"]) == (5, 4, 1)
    assert everything["wall_s"] == pytest.approx(30.9)
    assert (everything["tokens_read"], everything["tokens_generated"]) == (1000, 20)
    assert tables.save(table, tmp_path)
    assert re.search(r"\| pad \| 1 \| 0 \| – \|", (tmp_path / "resources.md").read_text(encoding="utf-8"))
    with pytest.raises(UserError, match=r"jobs2\.json does not exist"):
        resources.resources(tmp_path / "jobs2.json", {}, config)


def test_tokens_of_a_suite_are_read_once_a_document(tmp_path):
    common = {
        "suite": "test", "method": "utaca", "budget": 4, "policy": "sub.1", "question": "?", "text": "",
        "finish": "eos", "selected": 1.0, "attended": 1.0, "selected_with_tentative": 1.0,
        "attended_with_tentative": 1.0, "prefill_seconds": 0.0, "decode_seconds": 0.0, "peak_bytes": 1,
    }  # fmt: skip
    for shard, documents in enumerate((["d0", "d1"], ["d2"])):
        for point in ("a", "b"):
            rows = [
                common
                | {"document": d, "point": point, "detector": point, "n_context": 100 + shard, "n_generated": 10}
                | {"rollbacks": 3}
                for d in documents
            ]
            # A point of two suites is decoded once.
            for suite in ("test", "again"):
                path = tmp_path / f"{suite}-{point}-{shard}.parquet"
                write(path, "answers", [row | {"suite": suite} for row in rows])
    assert resources.answered(sorted(tmp_path.glob("*.parquet")), []) == (100 + 100 + 101, 6 * 13)


def test_passes_that_were_not_accepted_are_counted(tmp_path):
    # Budgets of the tokens: the oracle compares below 4, rolling back where the token differs; a detector does not.
    tokens = [(4, False), (3, False), (4, True), (3, False), (2, False)]
    answer = dict.fromkeys(SCHEMAS["answers"].names) | {"document": "d0", "budget": 4, "policy": "sub.1"}
    answer |= {"n_context": 100, "n_generated": 5, "rollbacks": 1}
    answers, traces = [], []
    for point in ("oracle", "utaca"):
        for suite in ("test", "again"):
            answers.append(answer | {"suite": suite, "point": point, "method": point})
            for step, (k, back) in enumerate(tokens):
                row = dict.fromkeys(SCHEMAS["traces"].names) | {"document": "d0", "point": point, "step": step}
                traces.append(row | {"k": k, "rolled_back": back})
    replay = dict.fromkeys(SCHEMAS["replays"].names) | {"n_generated": 7, "rollbacks": 2}
    for kind, rows in (("answers", answers), ("traces", traces), ("replays", [replay, replay])):
        write(tmp_path / kind, kind, rows)
    paths = [[tmp_path / kind] for kind in ("answers", "traces", "replays")]
    oracle, utaca, replays = 5 + 1 + 3, 5 + 1, 2 * (7 + 2)
    assert resources.answered(*paths) == (100, oracle + utaca + replays)
    assert resources.answered(*paths[:2]) == (100, oracle + utaca)
