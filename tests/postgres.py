"""A PostgreSQL server of the machine's own package, in a folder of its own, reached through a Unix socket."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

OWNER, GUARDED, PASSWORD = "owner", "guarded", "planted-password-0123456789"


class Postgres:
    """The server; ``make`` gives the URL of a new database, ``kill`` is a kill -9."""

    def __init__(self) -> None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
        if not found:
            pytest.skip("no PostgreSQL server under /usr/lib/postgresql (Debian: apt-get install postgresql)")
        if importlib.util.find_spec("psycopg") is None:
            pytest.skip("the driver psycopg is not installed (extra postgres)")
        self._bin = found[-1].parent
        # It refuses root, and another user must reach the folder.
        self._user: dict[str, object] = {}
        if os.geteuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            entry = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            self._user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        self.folder = Path(tempfile.mkdtemp(prefix="utaca-pg-", dir="/tmp"))
        if self._user:
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
        self._data, self._made = self.folder / "data", 0
        options = ["-A", "trust", "-U", OWNER, "-E", "UTF8", "--no-locale", "-N"]
        self._do("initdb", "-D", str(self._data), *options)
        access = self._data / "pg_hba.conf"
        access.write_text(f"local all {GUARDED} scram-sha-256\n" + access.read_text())
        self.start()
        self.say(f"CREATE ROLE {GUARDED} LOGIN SUPERUSER PASSWORD '{PASSWORD}'")

    def _do(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [self._bin / program, *arguments], cwd=self.folder, capture_output=True, text=True, **self._user
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self) -> None:
        """Start it, again until what was killed has let go, and wait until it answers."""
        # What a killed server wrote is in the system's hands; fsync is for what a test cannot do, cutting the power.
        options = ["-c", "listen_addresses=", "-c", "fsync=off"]
        command = [self._bin / "postgres", "-D", self._data, "-k", self.folder, *options]
        deadline = time.monotonic() + 30
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, **self._user)
            while subprocess.run([self._bin / "pg_isready", "-q", "-h", self.folder]).returncode:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.05)
                if self._process.poll() is not None:
                    self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, **self._user)

    def kill(self) -> None:
        # A process that serves a connection outlives its parent by a moment, in which it would still answer.
        parent = self._process.pid
        serving = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
        self._process.kill()
        assert self._process.wait() == -signal.SIGKILL
        for pid in serving:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(map(_runs, serving)):
            time.sleep(0.01)

    def close(self) -> None:
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()
        shutil.rmtree(self.folder)

    def say(self, statement: str, name: str = "postgres") -> str:
        """What ``psql`` prints for a statement."""
        return self._do("psql", "-h", str(self.folder), "-U", OWNER, "-d", name, "-Atc", statement).strip()

    def make(self, options: str = "") -> str:
        self._made += 1
        self.say(f"CREATE DATABASE utaca{self._made} {options}")
        return self.url(f"utaca{self._made}")

    def url(self, name: str, user: str = OWNER) -> str:
        return f"postgresql://{user}@/{name}?host={self.folder}"


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
