"""One line on a whole run while it goes on: its finished jobs, their rate, and an estimate of the time left.

    Run quick: 41 of 97 jobs in 3 min 20 s (12.3 per min); about 5 min left.

Some jobs take a second and others hours, so the estimate weighs each job by its seconds. These are the seconds that the
job took in an earlier run of the same size (:func:`earlier_seconds`), or the mean of the jobs of its rule, earlier or
in this run. If no job of a rule has ever finished, its seconds are not known. The estimate leaves such jobs out, and
the line says so.
"""

import csv
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from snakemake.logging import LogEvent, logger
from snakemake.settings.enums import Quietness

from utaca.errors import UserError
from utaca.runs import record
from utaca.settings import schema

EVERY = 30.0
"""The least number of seconds between two lines."""
BENCHMARKS = "benchmarks"
"""The folder of a run in which Snakemake writes the seconds of each job."""
_TRIED = 5
"""The number of other runs, the newest first, among which one of the same size is looked for."""


class Job(NamedTuple):
    """A job: its ``rule``, and its file in the run's folder of benchmarks, as ``generate/test-blocks-0.tsv``.

    A job without a benchmark file (""), such as that of a target, has nothing to do.
    """

    rule: str
    benchmark: str


def rule_of(benchmark: str) -> str:
    """The rule of a benchmark file: its folder or, for a rule with one job, the file's own name (``corpus.tsv``)."""
    return Path(benchmark).parts[0].removesuffix(".tsv")


def seconds_in(folder: Path) -> dict[str, float]:
    """The seconds of each job that has a benchmark file in ``folder``, by the file's path in it.

    Files that are empty or cut off are left out; jobs that were killed leave such files.
    """
    seconds = {}
    for path in sorted(folder.rglob("*.tsv")):
        try:
            with path.open(encoding="utf-8", newline="") as file:
                row = next(csv.DictReader(file, delimiter="\t"))
            seconds[path.relative_to(folder).as_posix()] = float(row["s"])
        except (OSError, ValueError, KeyError, TypeError, StopIteration):
            continue
    return seconds


def earlier_seconds(settings: schema.Config, results: Path) -> dict[str, float]:
    """The seconds of jobs, by benchmark file, that are known before the run starts.

    They are those of the run itself, which earlier commands may have begun, and of the newest other run in ``results``
    whose scale and reader have the same names.
    """
    saved = [path for path in results.glob(f"*/{record.CONFIG}") if path.parent.name != settings.run]
    saved.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    others: dict[str, float] = {}
    for path in saved[:_TRIED]:
        try:
            config = record.read(path)
            is_alike = all(config[key]["name"] == getattr(settings, key).name for key in ("scale", "reader"))
        except (UserError, KeyError, TypeError):
            continue  # It may be of an earlier version.
        others = seconds_in(path.parent / BENCHMARKS) if is_alike else {}
        if others:
            break
    return others | seconds_in(results / settings.run / BENCHMARKS)


class TimeLeft:
    """What is known of a run's ``jobs`` while it goes on; :meth:`line` puts it in words.

    ``jobs`` are by Snakemake's number of the job.

    ``earlier`` are seconds of jobs by benchmark file. All times are seconds of one clock; the run starts at ``now``.
    """

    def __init__(self, run: str, jobs: Mapping[int, Job], earlier: Mapping[str, float], now: float) -> None:
        self._run = run
        self._jobs = {number: job for number, job in jobs.items() if job.benchmark}
        self._earlier = earlier
        self._begin = now
        self._started: dict[int, float] = {}  # when each running job started
        self._finished: set[int] = set()
        # The seconds of jobs of a rule: in earlier runs, and in this run.
        self._earlier_by_rule: dict[str, list[float]] = {}
        for benchmark, seconds in earlier.items():
            self._earlier_by_rule.setdefault(rule_of(benchmark), []).append(seconds)
        self._by_rule: dict[str, list[float]] = {}

    def start(self, numbers: Iterable[int], now: float) -> None:
        """Note that jobs start."""
        self._started.update(dict.fromkeys(numbers, now))

    def finish(self, number: int, now: float) -> None:
        """Note that a job has finished."""
        self._finished.add(number)
        started = self._started.pop(number, None)
        if number in self._jobs and started is not None:
            self._by_rule.setdefault(self._jobs[number].rule, []).append(now - started)

    def _seconds(self, job: Job) -> float | None:
        """The seconds that a job is expected to take; None if no job of its rule has ever finished."""
        if job.benchmark in self._earlier:
            return self._earlier[job.benchmark]
        known = self._earlier_by_rule.get(job.rule) or self._by_rule.get(job.rule)
        return fmean(known) if known else None

    def left(self, now: float) -> tuple[float | None, int]:
        """The estimated seconds left, and the number of rules that the estimate leaves out because none has finished.

        The seconds are None as long as no work is done. Work is measured in seconds of jobs. The work that was done
        since the start gives the rate at which the rest is done. So the estimate also holds if jobs run at the same
        time, or if this machine is faster than that of the earlier run.
        """
        done = 0.0
        left = 0.0
        unknown = set()
        for number, job in self._jobs.items():
            expected = self._seconds(job)
            if expected is None:
                unknown.add(job.rule)
            elif number in self._finished:
                done += expected
            else:
                # A running job has done a part of its work, by its time so far.
                part = min(expected, now - self._started.get(number, now))
                done += part
                left += expected - part
        seconds = (now - self._begin) * left / done if done > 0 else None
        return seconds, len(unknown)

    def line(self, done: int, total: int, now: float) -> str:
        """The line on the run after ``done`` of ``total`` jobs."""
        elapsed = now - self._begin
        start = f"Run {self._run}: {done} of {total} jobs in {in_words(elapsed)}"
        rate = f" ({60 * done / elapsed:.1f} per min)" if elapsed > 0 else ""
        seconds, n_unknown = self.left(now)
        if seconds is None:
            return f"{start}{rate}."
        minutes = round(seconds / 60)
        amount = in_words(60 * minutes) if minutes >= 60 else f"{max(1, minutes)} min"
        if not n_unknown:
            return f"{start}{rate}; about {amount} left."
        rules = f"{n_unknown} rule{'s' * (n_unknown > 1)}"
        if not minutes:
            return f"{start}{rate}; time left not known, as no run has timed {rules} yet."
        return f"{start}{rate}; about {amount} left, and the jobs of {rules} that no run has timed yet."


def in_words(seconds: float) -> str:
    """A duration as "45 s", "3 min 20 s" or "2 h 5 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def watch(settings: schema.Config, jobs: Iterable[Any], results: Path, clock: Callable[[], float] = time.time) -> None:
    """Have Snakemake log the line on the run of ``settings`` whenever a job ends, at most every :data:`EVERY` seconds.

    ``jobs`` are Snakemake's, all that the command runs. ``results`` is the folder with the folders of runs.
    """
    folder = results / settings.run / BENCHMARKS
    by_number = {}
    for job in jobs:
        benchmark = Path(job.benchmark).relative_to(folder).as_posix() if job.benchmark else ""
        by_number[job.jobid] = Job(job.rule.name, benchmark)
    state = TimeLeft(settings.run, by_number, earlier_seconds(settings, results), clock())
    last = clock()

    def see(log: logging.LogRecord) -> bool:
        """A filter of log records that keeps all of them."""
        nonlocal last
        event = getattr(log, "event", None)
        now = clock()
        if event == LogEvent.JOB_STARTED:
            state.start(getattr(log, "jobs", ()), now)
        elif event == LogEvent.JOB_FINISHED:
            state.finish(getattr(log, "job_id", -1), now)
        elif event == LogEvent.PROGRESS and now - last >= EVERY:
            done, total = log.__dict__["done"], log.__dict__["total"]
            if done < total:
                last = now
                # `--quiet progress` silences it, as it does Snakemake's own line.
                logger.info(state.line(done, total, now), extra={"quietness": Quietness.PROGRESS})
        return True

    logger.addFilter(see)
