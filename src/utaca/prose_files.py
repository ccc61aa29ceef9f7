"""The files of a corpus that a user names; without heavy imports."""

import os
from pathlib import Path


def prose_files(path: str, left_out: dict[str, list[str]] | None = None) -> list[str]:
    """List the files of a corpus: ``path`` itself if it is a file; of a folder, all .txt and .md files in it, sorted.

    The list is empty if ``path`` is empty or leads nowhere. Sub-folders and links are followed; a file or folder that
    several links lead to is listed once. ``left_out`` receives the paths of all other files and folders, by the reason
    for which they are left out.
    """
    if not path:
        return []
    if os.path.isfile(path):
        return [path]
    found = []
    seen = {os.path.realpath(path)}
    for folder, subfolders, files in os.walk(Path(path), followlinks=True):
        for names in (subfolders, files):
            kept = []
            for name in sorted(names):
                reason = _kept_out(os.path.join(folder, name), seen)
                if not reason:
                    kept.append(name)
                elif left_out is not None:
                    left_out.setdefault(reason, []).append(os.path.join(folder, name))
            names[:] = kept  # os.walk enters only those sub-folders that are left in its list.
        found += [os.path.join(folder, name) for name in files]
    return sorted(found)


UNREADABLE = "unreadable"
"""Reason for which a file is left out that this user may not read."""


def _kept_out(path: str, seen: set[str]) -> str:
    """Why a file or folder is left out of a corpus, "" if it is not; adds its real path to ``seen``."""
    name = os.path.basename(path)
    real = os.path.realpath(path)
    is_file = os.path.isfile(path)
    if name.startswith("."):
        return "hidden"
    if real in seen:
        return "linked twice"
    if not is_file and not os.path.isdir(path):
        return "neither file nor folder"
    seen.add(real)
    if is_file and not name.lower().endswith((".txt", ".md")):
        return "neither .txt nor .md"
    # To list a folder takes both rights.
    needed = os.R_OK if is_file else os.R_OK | os.X_OK
    return "" if os.access(path, needed) else UNREADABLE
