"""A PostgreSQL server of the machine's own package, in a folder of its own, reached through a Unix socket."""

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

OWNER, GUARDED, PASSWORD = "owner", "guarded", "planted-password-0123456789"


class Postgres:
    """The server; ``make`` gives the URL of a new database."""

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
        """Start it, and wait until it answers."""
        # What a killed server wrote is in the system's hands; fsync is for what a test cannot do, cutting the power.
        options = f"-k {self.folder} -c listen_addresses= -c fsync=off"
        self._do("pg_ctl", "-D", str(self._data), "-l", str(self.folder / "log"), "-o", options, "-w", "start")

    def kill(self) -> None:
        """End all of its processes at once, which leaves the next start what a crash does."""
        self._do("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")

    def close(self) -> None:
        self.kill()
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
