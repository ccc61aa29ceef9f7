"""The files of a corpus that a user names; without heavy imports."""

import os
from pathlib import Path


def prose_files(path: str, left_out: dict[str, list[str]] | None = None) -> list[str]:
    """Paths of the files of a corpus; ``path`` is a file, or a folder of .txt and .md files; if neither: no paths.

    Links are followed; a file or folder that several links lead to is listed once. ``left_out`` receives the paths of
    all other files and folders, by the reason for which they are left out.
    """
    if not path or os.path.isfile(path):
        return [path] if path else []
    found = []
    seen = {os.path.realpath(path)}
    for folder, *both in os.walk(Path(path), followlinks=True):
        for names in both:
            reasons = {name: _kept_out(os.path.join(folder, name), seen) for name in sorted(names)}
            names[:] = [name for name, reason in reasons.items() if not reason]
            for name, reason in reasons.items():
                if reason and left_out is not None:
                    left_out.setdefault(reason, []).append(os.path.join(folder, name))
        found += [os.path.join(folder, name) for name in both[1]]
    return sorted(found)


UNREADABLE = "unreadable"
"""Reason for which a file is left out that this user may not read."""


def _kept_out(path: str, seen: set[str]) -> str:
    """Why a file or folder is left out of a corpus, "" if it is not; adds its real path to ``seen``."""
    name = os.path.basename(path)
    real = os.path.realpath(path)
    if name.startswith("."):
        return "hidden"
    if real in seen:
        return "linked twice"
    if not os.path.isfile(path) and not os.path.isdir(path):
        return "no file"
    seen.add(real)
    if os.path.isfile(path) and not name.lower().endswith((".txt", ".md")):
        return "neither .txt nor .md"
    return "" if os.access(path, os.R_OK if os.path.isfile(path) else os.R_OK | os.X_OK) else UNREADABLE
