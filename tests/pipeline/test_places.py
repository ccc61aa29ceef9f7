"""Where the checkout and a run may lie: paths that a shell or Snakemake stumbles over, other working directories."""

import errno
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from commands import call, snakemake
from conftest import ROOT, copy_checkout

from utaca.errors import UserError
from utaca.runs import record as runs
from utaca.runs.compose import compose
from utaca.runs.places import check_paths

HARD = 'My Projects\' $1 & (a) "b"; c'


def test_an_environment_in_a_path_that_a_shell_would_split_runs_every_stage(tmp_path: Path) -> None:
    checkout = copy_checkout(tmp_path / HARD / "utaca")
    venv.create(checkout / ".venv", symlinks=True)
    (packages,) = (checkout / ".venv" / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    command = [".venv/bin/python", "-m", "snakemake", "--cores", "1", "biographies", "--config", "scale=smoke"]
    done = call(checkout, *command, PYTHONPATH="")
    assert done.returncode == 0, done.stdout
    assert (checkout / "results" / "smoke" / "biographies" / "test.parquet").is_file()


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
@pytest.mark.parametrize("name", ["a:b", "a{b}", 'a "b"', "a $b", "a `b`", "a\\b", "a\tb", "a\nb"])
def test_make_refuses_what_the_environment_cannot_stand_in_its_path(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for file in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / file, folder)
    done = subprocess.run(["make", "environment"], cwd=folder, text=True, capture_output=True)
    assert done.returncode
    assert "utaca cannot be installed here: move the checkout" in done.stderr
    assert not (folder / ".venv").exists()


def test_a_run_from_another_folder_takes_what_ships_from_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = snakemake(tmp_path, "-s", str(ROOT / "Snakefile"), "--cores", "1", "documents", "--config", "scale=smoke")
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "results" / "smoke" / "documents" / "test.parquet").is_file()
    again = snakemake(ROOT, "--directory", str(tmp_path), "-n", "--cores", "1", "documents", "--config", "scale=smoke")
    assert "Nothing to be done" in again.stdout
    monkeypatch.chdir(tmp_path)
    tiny = Path("data", "readers", "tiny")
    assert compose({}, ROOT)["reader"]["path"] == str(ROOT / tiny)
    # A folder's own copy goes before.
    tiny.parent.mkdir(parents=True)
    tiny.symlink_to(ROOT / tiny)
    assert compose({}, ROOT)["reader"]["path"] == str(tiny)
    # A corpus may be called by its name alone.
    Path("articles").mkdir()
    for path in ("articles", "data.JSONL", "other.Parquet"):
        assert compose({"corpus": path}, ROOT)["corpus"]["path"] == path


def test_a_name_that_snakemake_cannot_take_is_told_at_once(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has a brace in it"):
        check_paths([tmp_path / "a}" / "utaca"])
    prose = ("The mill stood by the river, and the children counted boats until the evening bell. " * 12 + "\n\n") * 40
    folder = tmp_path / 'a "b" $c'
    folder.mkdir()
    (folder / "it's (1).TXT").write_text(prose)
    command = ["-n", "--cores", "1", "corpus", "--config", "scale=smoke", f"corpus={folder}"]
    assert snakemake(checkout, *command).returncode == 0
    (folder / "J\udcfcrgen.md").touch()
    braced = copy_checkout(tmp_path / "a {b}" / "utaca")
    for place, name in ((checkout, r"J\udcfcrgen.md"), (braced, "a {b}")):
        done = snakemake(place, *command)
        assert done.returncode
        assert name in done.stdout
        assert done.stdout.strip().endswith("which Snakemake cannot take; rename it")


def test_a_folder_that_is_not_mounted_or_cannot_be_written_is_told(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["-s", str(checkout / "Snakefile"), "-n", "--cores", "1", "biographies", "--config", "scale=smoke"]
    (tmp_path / "results").mkdir()
    for name in ("logs", "results/smoke"):
        (tmp_path / name).symlink_to("/mnt/not/there")
        done = snakemake(tmp_path, *command)
        assert done.returncode
        assert f"Error: {name} is not a folder, or links to a disk that is not mounted; mount it" in done.stdout
        assert "Traceback" not in done.stdout
        (tmp_path / name).unlink()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match=r"run\.yaml cannot be written \(No space left on device\)"):
        runs.claim(compose({"scale": "smoke"}, ROOT), tmp_path, asked=True)
