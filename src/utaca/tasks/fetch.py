"""Fetch the official files of the tasks; each is checked before it is moved to its final path."""

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from http.client import HTTPException
from pathlib import Path
from typing import ClassVar, Protocol
from urllib.request import urlopen

from utaca.data_files import DataFile, read, sha256
from utaca.errors import UserError
from utaca.tasks.ragtruth import Responses, Sources
from utaca.tasks.registry import TASKS
from utaca.tasks.ruler import QA1, QA2
from utaca.tasks.ruler_tasks import ESSAYS

_PATIENCE = 60
"""Seconds without a byte after which a download fails."""


@dataclass(frozen=True)
class Source:
    """A ``file`` that is downloaded: a URL or, with a ``dataset``, a path in that data set of the Hugging Face hub.

    ``revision`` is the data set's. A file whose ``sha256`` is given must have this digest, and one whose ``blob`` is
    given must be the file that git calls so.
    """

    file: str
    dataset: str = ""
    revision: str = ""
    sha256: str = ""
    blob: str = ""

    @property
    def address(self) -> str:
        """The file's URL."""
        if not self.dataset:
            return self.file
        return f"https://huggingface.co/datasets/{self.dataset}/resolve/{self.revision}/{self.file}"


class Layout(Protocol):
    """What knows an official file, as a :class:`~utaca.tasks.task.Task` does: its path, layout and number of rows.

    ``unit`` is what is counted, usually rows.
    """

    files: ClassVar[Mapping[str, str]]
    rows: ClassVar[int]
    unit: ClassVar[str]

    def is_official(self, files: Mapping[str, Path]) -> bool:
        """Whether the file, given by name, has as many rows; raises :class:`UserError` for another layout."""
        ...


@dataclass(frozen=True)
class Official:
    """The official file of a task, which knows the file's layout and number of rows.

    If the ``source`` is an archive, ``member`` is the file's name in it. With a ``*`` it stands for several members,
    whose texts are joined, in the order of their names, to the "text" of a JSON file.
    """

    task: type[Layout]
    source: Source
    member: str = ""

    def path(self, folder: Path) -> Path:
        """Where the file lies if the benchmarks' files are in ``folder``."""
        (path,) = self.task.files.values()
        return folder / path

    @property
    def size(self) -> str:
        """What the official file has, as "103 rows"."""
        return f"{self.task.rows:,} {self.task.unit}"

    def check(self, path: Path, place: str = "") -> None:
        """Raise :class:`UserError` if the file at ``path`` has another layout or number of rows than the official one.

        The message calls the file ``place``; without it, by its path.
        """
        (name,) = self.task.files
        try:
            if not self.task().is_official({name: path}):
                raise UserError(f"{path} does not have the {self.size} of the official file")
        except UserError as error:
            # A file just downloaded is at a scratch path, which means nothing to the user.
            raise UserError(str(error).replace(str(path), place or str(path))) from error


class _SquadTraining(QA1):
    """SQuAD 2.0's training set: table 2 of its paper has 130,319 questions, 43,498 unanswerable, of 442 articles."""

    files: ClassVar[Mapping[str, str]] = {"questions": "RULER/train-v2.0.json"}
    rows = 86_821
    articles = 442


class _HotpotTraining(QA2):
    """HotpotQA's training set: version 1.1 has 90,447 of the 90,564 questions of its paper, as the hub counts them."""

    files: ClassVar[Mapping[str, str]] = {"questions": "RULER/hotpot_train_v1.1.json"}
    rows = 90_447


class _Essays(TASKS["niah_single_2"]):
    """RULER's essays, those that come from a repository; others come from web pages, whose text changes."""

    files: ClassVar[Mapping[str, str]] = {"essays": ESSAYS["essays"]}
    rows = 111_876
    unit = "words"


class _Sentences(TASKS["niah_single_2"]):
    """NLTK's rules of sentences. RULER reads those for English."""

    files: ClassVar[Mapping[str, str]] = {"sentences": ESSAYS["sentences"]}
    rows = 4
    unit = "files for English"


class _EnglishWords(TASKS["cwe"]):
    """RULER's list of English words."""

    rows = 8_564_991
    unit = "bytes"


class _File(DataFile):
    """An entry of ``data/benchmarks.yaml``, as in :class:`Official`."""

    source: Source
    member: str = ""


class Files(DataFile):
    """The files of ``data/benchmarks.yaml``."""

    files: dict[str, _File]


_TASKS: dict[str, type[Layout]] = {
    **TASKS,
    "qa_1-calibration": _SquadTraining,
    "qa_2-calibration": _HotpotTraining,
    "ruler_essays": _Essays,
    "ruler_sentences": _Sentences,
    "ruler_words": _EnglishWords,
    "ragtruth-responses": Responses,
    "ragtruth-sources": Sources,
}
OFFICIAL = {
    name: Official(_TASKS[name], file.source, file.member)
    for name, file in read("benchmarks.yaml", Files).files.items()
}
"""Official files by the name of the task, of the set of ``tasks=paper`` that detectors learn from, or of a file that
several of RULER's tasks read."""


@dataclass(frozen=True)
class Outcome:
    """What became of one file, at ``path`` with the official ``size`` (:attr:`Official.size`).

    ``fault`` says why it is not there or not the official one; if that is empty, ``sha256`` is the file's digest.
    ``now``: the file was fetched, and not there before.
    """

    path: Path
    size: str
    sha256: str = ""
    now: bool = False
    fault: str = ""


def fetch(names: Iterable[str], folder: Path, official: Mapping[str, Official] = OFFICIAL) -> Iterator[Outcome]:
    """Fetch the ``official`` files of these names into ``folder``, and yield the outcome for each.

    A file appears only when it is complete and checked. An existing file is checked and never replaced. If one file
    fails, the others are still fetched. Raises :class:`UserError` for an unknown name, and if the folder cannot be
    written to.
    """
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in official:
            raise UserError(f"there is no benchmark file {name!r}; choose one of {', '.join(official)}")
    # Files that come from one source, such as one archive, are fetched at once.
    missing: dict[Source, list[Official]] = {}
    for name in names:
        file = official[name]
        path = file.path(folder)
        if not path.exists():
            missing.setdefault(file.source, []).append(file)
            continue
        try:
            file.check(path)
            yield Outcome(path, file.size, sha256(path))
        except UserError as error:
            yield Outcome(path, file.size, fault=f"{error}; move {path} away to have the official file fetched")
    for source, files in missing.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            scratch = tempfile.mkdtemp(prefix=".fetched-", dir=folder)
        except OSError as error:
            raise UserError(
                f"{folder} cannot be written to ({error.strerror}); name another folder with --folder"
            ) from error
        try:
            yield from _fetched(source, files, folder, Path(scratch))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _fetched(source: Source, files: Iterable[Official], folder: Path, scratch: Path) -> Iterator[Outcome]:
    """Download one source, move its ``files`` to their paths in ``folder``, and yield the outcome for each of them.

    ``scratch`` is an empty folder on the same disk.
    """
    fault = ""  # why the download failed, which all of its files then have as their fault
    downloaded = scratch / "download"
    try:
        if source.dataset:
            downloaded = _from_hub(source, scratch)
        else:
            _download(source.address, downloaded)
        if source.sha256:
            digest = sha256(downloaded)
            if digest != source.sha256:
                fault = f"{source.address} has SHA-256 {digest}, not {source.sha256}: it was changed or is damaged"
        if source.blob and _blob(downloaded) != source.blob:
            fault = f"{source.address} is not git's file {source.blob}: it was changed or is damaged"
    except (OSError, HTTPException, ValueError) as error:
        fault = f"{source.address} cannot be fetched ({_reason(error)})"
    for file in files:
        path = file.path(folder)
        part = f"its member {file.member}" if file.member else "the file"
        by_hand = f"copy {part} to {path} yourself"
        try:
            if fault:
                raise UserError(fault)
            ready = downloaded
            place = source.address
            if file.member:
                ready = _unpacked(source, downloaded, file.member, scratch)
                place = f"{file.member} in {source.address}"
            file.check(ready, place)
            digest = sha256(ready)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(ready, path)
        except UserError as error:
            yield Outcome(path, file.size, fault=f"{error}; {by_hand}")
        except OSError as error:
            yield Outcome(path, file.size, fault=f"{path} cannot be written ({error.strerror}); {by_hand}")
        else:
            yield Outcome(path, file.size, digest, now=True)


def _blob(path: Path) -> str:
    """Git's name of a file's content, as 40 hex digits."""
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _from_hub(source: Source, scratch: Path) -> Path:
    """Download a file of a data set of the hub into ``scratch``, and return its path.

    Raises :class:`OSError` if that fails.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, HTTPError, RevisionResolutionError, XetDownloadError

    try:
        path = hf_hub_download(
            source.dataset, source.file, repo_type="dataset", revision=source.revision, local_dir=scratch
        )
        return Path(path)
    except (HTTPError, EntryNotFoundError, RevisionResolutionError, XetDownloadError) as error:
        raise OSError(_reason(error)) from error


def _download(address: str, path: Path) -> None:
    """Download a file to ``path``; raises :class:`OSError` if the connection breaks."""
    with urlopen(address, timeout=_PATIENCE) as answer, path.open("wb") as file:
        shutil.copyfileobj(answer, file, 1 << 20)
        expected = answer.headers["Content-Length"]
        size = file.tell()
    if expected is not None and int(expected) != size:
        raise OSError(f"the connection broke after {size:,} of {int(expected):,} bytes")


def _unpacked(source: Source, archive: Path, member: str, scratch: Path) -> Path:
    """Unpack a member of a source's ZIP ``archive``, or join several, into ``scratch``, and return the file's path.

    Raises :class:`UserError` if the archive is broken or has no such member.
    """
    # The member unpacked before was moved away, or failed its check and may be overwritten.
    path = scratch / "member"
    try:
        with zipfile.ZipFile(archive) as packed, path.open("wb") as file:
            if "*" in member:
                names = sorted(name for name in packed.namelist() if fnmatchcase(name, member))
                joined = "".join(packed.read(name).decode("utf-8") for name in names)
                file.write(json.dumps({"text": joined}).encode())
            else:
                with packed.open(member) as content:
                    shutil.copyfileobj(content, file, 1 << 20)
    except (zipfile.BadZipFile, KeyError, EOFError, UnicodeDecodeError) as error:  # KeyError: no such member
        raise UserError(f"{source.address} is incomplete or has no file {member}") from error
    return path


def _reason(error: BaseException) -> str:
    """The first line of the message of an error's root cause, because the hub's own message is about its cache."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    return reason.strip(" .")
