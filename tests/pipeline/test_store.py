"""The answer store in both of its databases: what was kept stays kept, once, whoever is killed."""

import itertools
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands import typed
from postgres import GUARDED, PASSWORD, Postgres
from sqlalchemy import create_engine, make_url, text

from utaca.endpoints import store as stores
from utaca.endpoints.store import AnswerStore, check, digest, identity
from utaca.errors import UserError
from utaca.settings.checks import is_database
from utaca.settings.schema import EndpointSettings

SHAPE = {"title": "Colour"}
FORK = multiprocessing.get_context("fork")
both = pytest.mark.parametrize("place", ["sqlite", "postgresql"], indirect=True)


def key(question: str, model: str = "m", version: str = "a-1") -> str:
    endpoint = EndpointSettings(name="fake", model=model, base_url="http://fake/v1")
    return identity(endpoint, [{"role": "user", "content": question}], SHAPE, version)


# What is kept


@both
def test_an_answer_comes_back_as_it_was(place: str) -> None:
    answer = {"n": 1, "text": "naïve 例 \x00 \\u0000 \n'\"", "deep": [None, 1.5, True]}
    with AnswerStore(place) as store:
        assert store.get(digest(key("\x00?"))) is None
        store.put(key("\x00?"), "m", answer, (3, 2**53 - 1), 0.1)
        assert store.put(key("\x00?"), "m", {"n": 2}, (3, 1), 0.1) == answer
    with AnswerStore(place) as store:
        assert store.get(digest(key("\x00?"))) == answer, "the first one stays"
        (row,) = store.export()
        assert row["messages"] == [{"role": "user", "content": "\x00?"}]
        assert (row["completion_tokens"], row["seconds"]) == (2**53 - 1, 0.1)
        assert (row["version"], row["schema"]["title"]) == ("a-1", "Colour")


# Processes that are killed


def fill(place: str, told: str, name: int) -> None:
    """Keep 100 answers in an order of its own, the first writer without end; write down each kept, and whose it is."""
    with AnswerStore(place) as store, open(told, "ab", buffering=0) as file:
        for number in random.Random(name).sample(range(100), 100) if name else itertools.count():
            store.put(key(str(number)), "m", {"n": number, "by": name}, (1, 1), 0.1)
            kept = store.get(digest(key(str(number))))
            file.write(f"{number} {kept and kept['by']}\n".encode())


def told(folder: Path, name: object = "*") -> list[tuple[int, int]]:
    """What writers were told, (number, whose answer) each; a last line may be cut."""
    lines = [line for file in folder.glob(f"{name}.told") for line in file.read_text().split("\n")[:-1]]
    return [(int(number), int(by)) for number, by in map(str.split, lines)]


def kept(store: AnswerStore) -> list[tuple[int, int]]:
    return [(row["answer"]["n"], row["answer"]["by"]) for row in store.export()]


@both
def test_a_writer_of_eight_is_killed_and_the_server_under_them(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    writers = [FORK.Process(target=fill, args=(place, str(tmp_path / f"{name}.told"), name)) for name in range(8)]
    for writer in writers:
        writer.start()
    deadline = time.monotonic() + 30
    while min(len(told(tmp_path, name)) for name in range(8)) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    writers[0].kill()
    if is_database(place):
        # Writers stand still meanwhile, so that they are in the middle however long the server takes to end.
        for writer in writers[1:]:
            with suppress(ProcessLookupError):  # it has ended
                os.kill(writer.pid, signal.SIGSTOP)
        request.getfixturevalue("postgres").kill()
        before, alive = set(told(tmp_path)), [writer for writer in writers[1:] if writer.is_alive()]
        request.getfixturevalue("postgres").start()
        for writer in alive:
            os.kill(writer.pid, signal.SIGCONT)
        assert alive, "in the middle"
    else:
        before = set(told(tmp_path))
    with AnswerStore(place) as store:
        assert before <= set(kept(store))
        for writer in writers:
            writer.join()
        assert [writer.exitcode for writer in writers] == [-signal.SIGKILL] + [0] * 7, "they waited for it"
        assert len(told(tmp_path, "[1-7]")) == 700
        rows = kept(store)
        assert len(rows) == len({number for number, _ in rows}), "once, and the same for all"
        assert set(told(tmp_path)) <= set(rows)
        assert {number for number, _ in rows} >= set(range(100))


# What is no store


@both
def test_a_table_of_another_program_is_refused(place: str) -> None:
    url = place.replace("postgresql:", "postgresql+psycopg:") if is_database(place) else f"sqlite:///{place}"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE answers (question TEXT, answer TEXT)"))
    with pytest.raises(UserError, match=r"has a table answers that another program or"):
        AnswerStore(place)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT question, answer FROM answers")).all() == []
    engine.dispose()


# Network file systems

MOUNTS = {
    "/": "ext4",
    "far": "nfs4",
    "far/near": "xfs",
    "a b": "fuse.sshfs",
    "hidden": "cifs",
    "./hidden": "tmpfs",
}


def test_a_file_on_a_network_filesystem_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [SimpleNamespace(mountpoint=str(tmp_path.resolve() / at), fstype=kind) for at, kind in MOUNTS.items()]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: mounts)
    (tmp_path / "link").symlink_to(tmp_path / "far")
    fault = r"a\.sqlite lies on a network file system \((nfs4|fuse.sshfs), mounted at .*local disk, or to a PostgreSQL"
    for opening in (AnswerStore, check):
        for folder in ("far", "a b", "link/results"):
            with pytest.raises(UserError, match=fault):
                opening(str(tmp_path / folder / "a.sqlite"))
    assert not (tmp_path / "far").exists(), "nothing was made"
    for folder in ("far/near", "hidden", "farther", "."):
        AnswerStore(tmp_path / folder / "a.sqlite").__exit__()


# URLs and passwords

SECRET = "pl4nted"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ada:{SECRET}@db1/utaca",
        f"postgresql://ada@db1/utaca?password={SECRET}",
        f"postgresql://ada@db1/utaca?scram_client_key={SECRET}",
        f"postgresql://ada:[{SECRET}@db1/utaca",
        f"postgresql:/ada:{SECRET}@db1/utaca",
        f"mysql://ada:{SECRET}@db1/utaca",
    ],
)
def test_a_url_with_a_password_is_refused_and_not_quoted(url: str) -> None:
    for refuse in (is_database, AnswerStore, check):
        with pytest.raises(UserError, match=r"^answers must be .*PGPASSWORD or into ~/\.pgpass$") as refused:
            refuse(url)
        assert SECRET not in str(refused.value)
        assert not refused.value.__context__, "a traceback would show it"
    assert SECRET not in typed("answers", "list", "--store", url).output


def test_files_and_databases_are_told_apart() -> None:
    files = ("results/answers.sqlite", "/a:b/c", "answers:old.sqlite", "C:\\answers.sqlite")
    databases = (
        "postgresql+psycopg://a%40b@db1:5433/uta%20ca?sslmode=require&sslkey=/home/ada/key.pem",
        "postgresql:///utaca?host=/run/postgresql",
        "postgresql://ada@[::1]:5432/utaca",
    )
    assert [is_database(place) for place in (*files, *databases)] == [False] * 4 + [True] * 3


def test_a_password_comes_from_the_environment_alone(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = postgres.url(make_url(postgres.make()).database, GUARDED)
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    for password in ("", PASSWORD + "x"):
        if password:
            monkeypatch.setenv("PGPASSWORD", password)
        with pytest.raises(UserError, match=r"password.*; put the password into .*PGPASSWORD or into ~/\.pgpass$") as e:
            check(place)
        assert PASSWORD not in str(e.value)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with AnswerStore(place) as store:
        store.put(key("a"), "m", {"n": 1}, (1, 1), 0.1)
    shown = "".join(typed("answers", name, "--store", place).output for name in ("list", "export"))
    assert '"n": 1' in shown
    assert PASSWORD not in shown


# What a run is told before it starts


def test_faults_of_a_place_are_named_and_a_check_makes_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert check(str(tmp_path / "results" / "a.sqlite")).endswith("a.sqlite, to be made")
    assert list(tmp_path.iterdir()) == []
    file = tmp_path / "a.sqlite"
    file.write_text("no database, but long enough to be taken for one" * 100)
    for opening, place, fault in (
        (AnswerStore, file, r"a\.sqlite cannot be used as the answer store \(file is not a database\)"),
        (AnswerStore, file / "b.sqlite", r"cannot be used as the answer store"),
        (check, file / "b.sqlite", r"b\.sqlite cannot be made, because the folder .*a\.sqlite cannot be written"),
        (check, "postgresql://ada@db1/utaca", r"needs the driver psycopg .*pip install 'utaca\[postgres\]'$"),
    ):
        with pytest.raises(UserError, match=fault):
            opening(str(place))


def test_faults_of_a_server_are_one_sentence_each(postgres: Postgres) -> None:
    closed = postgres.make()
    name = make_url(closed).database
    postgres.say("CREATE ROLE guest LOGIN")
    postgres.say("REVOKE CREATE ON SCHEMA public FROM PUBLIC", name)
    guest = postgres.url(name, "guest")
    for place, fault in {
        "postgresql://ada@127.0.0.1:9/utaca": r"Connection refused.*; start the server, or correct the URL$",
        postgres.url("none"): r'database "none" does not exist.*createdb none',
        postgres.url("postgres", "nobody"): r'role "nobody" does not exist.*createuser',
        postgres.make("ENCODING 'LATIN1' TEMPLATE template0"): r"has the encoding LATIN1, .*createdb --encoding=UTF8",
        guest: r"permission denied for schema public.*GRANT",
    }.items():
        with pytest.raises(UserError, match=fault) as refused:
            check(place)
        assert "\n" not in str(refused.value)
    check(closed)
    postgres.say("GRANT SELECT, INSERT ON answers TO guest", name)
    check(guest)


def test_a_server_that_stays_away_is_named(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    place = postgres.make()
    with AnswerStore(place) as store:
        store.put(key("a"), "m", {"n": 1}, (1, 1), 0.1)
        postgres.kill()
        monkeypatch.setattr(stores, "PATIENCE_SECONDS", 0.2)
        try:
            for use in (partial(store.get, digest(key("a"))), lambda: list(store.export())):
                with pytest.raises(UserError, match=r"^postgresql://.* can no longer be used .*so far are kept$"):
                    use()
        finally:
            postgres.start()
        assert store.get(digest(key("a"))) == {"n": 1}


# The command line


def run(place: str, *arguments: str) -> str:
    return typed("answers", *arguments, "--store", place).stdout


@both
def test_answers_are_listed_exported_and_pruned(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of last year and three of today, of two models and of two versions of a prompt."""
    with AnswerStore(place) as store:
        with monkeypatch.context() as patch:
            patch.setattr(stores.time, "gmtime", lambda: time.struct_time((2025, 1, 1, 0, 0, 0, 2, 1, 0)))
            store.put(key("9?", "old"), "old", {"n": 9}, (9, 9), 1.5)
        for version, tokens in (("a-1", 10), ("a-2", 20), ("a-2", 30)):
            store.put(key(f"{tokens}?", "m", version), "m", {"n": tokens}, (tokens, 1), 0.5)
    rows = [line.split() for line in run(place, "list").splitlines()[1:]]
    assert [row[:7] for row in rows] == [
        ["m", "a-1", "Colour", "1", "10", "1", "0.5"],
        ["m", "a-2", "Colour", "2", "50", "2", "1.0"],
        ["old", "a-1", "Colour", "1", "9", "9", "1.5"],
    ]
    exported = [json.loads(line) for line in run(place, "export").splitlines()]
    assert [(row["messages"][0]["content"], row["answer"]["n"]) for row in exported] == [
        ("9?", 9), ("10?", 10), ("20?", 20), ("30?", 30),
    ]  # fmt: skip
    assert exported[3]["sampling"]["max_tokens"] == 2048
    assert len(run(place, "export", "--model", "old").splitlines()) == 1
    for dry in (["--dry-run"], []):
        output = run(place, "prune", "--before", "2025-06-01", *dry)
        assert output == f"1 answers {'would be ' if dry else ''}removed from {place}\n"
    before = ["--before", "2025-02-01T00:00+02:00"]
    assert run(place, "prune", "--model", "m", *before).startswith("0 answers removed")
    assert run(place, "prune", "--model", "m").startswith("3 answers removed")
    assert run(place, "export") == ""
    assert run(place, "list") == f"no answers in {place}\n"


def test_command_line_mistakes_are_one_sentence(store: Path) -> None:
    AnswerStore(store).__exit__()
    for arguments, fault in (
        (["prune"], "nothing says which answers to prune"),
        (["prune", "--before", "yesterday"], "'yesterday' is not a date such as 2026-01-31"),
        (["prune", "--before", "0001-01-01T00:00+14:00"], "is not a date such as 2026-01-31"),
        (["list", "--store", "none.sqlite"], "none.sqlite does not exist"),
        (["list", "--store", __file__], "cannot be used as the answer store"),
    ):
        done = typed("answers", *arguments, *([] if "--store" in arguments else ["--store", str(store)]))
        assert done.exit_code == 2
        assert fault in " ".join(done.stderr.split())
