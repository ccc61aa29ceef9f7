"""The digest of a script's modules after an edit: it changes with what the script runs, and with nothing else."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from conftest import ROOT

from utaca.runs.code_digest import closure, code

Make = Callable[[dict[str, str]], Path]
SCRIPT = "script.py"
FILES = {
    SCRIPT: "import json\nfrom utaca.one.a import f\nfrom utaca.two import c, NAME\n",
    "src/utaca/__init__.py": "",
    "src/utaca/aside.py": "",
    "src/utaca/base.py": "y = 1\n",
    "src/utaca/named.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import utaca.aside\n",
    "src/utaca/one/__init__.py": "from utaca.base import y\n",
    "src/utaca/one/a.py": "import utaca.one.b\ndef f():\n    from utaca.three import late\n",
    "src/utaca/one/b.py": 'NAME = "things/words.yaml"\n',
    "src/utaca/one/b.txt": "a prompt",
    "src/utaca/one/shared.txt": "words of the package",
    "src/utaca/one/unused.py": "import utaca.aside\n",
    "src/utaca/one/unused.txt": "another's prompt",
    "src/utaca/two/__init__.py": "NAME = 1\n",
    "src/utaca/two/c.py": "from utaca import named\n",
    "src/utaca/two/d.py": "",
    "src/utaca/three/__init__.py": "",
    "src/utaca/three/late.py": "",
    "data/things/words.yaml": "a: 1\n",
    "data/things/others.yaml": "a: 1\n",
}
"""A project: the script imports modules directly, through others, inside a function, and from a package by name."""

USED = {
    "src/utaca/__init__.py": "the package around all",
    "src/utaca/one/a.py": "imported by the script",
    "src/utaca/one/b.py": "imported by what that imports",
    "src/utaca/one/b.txt": "beside a module of its name",
    "src/utaca/one/shared.txt": "beside modules, of no module's name",
    "src/utaca/one/__init__.py": "the package around an imported module",
    "src/utaca/base.py": "imported by that package",
    "src/utaca/two/__init__.py": "has a name that the script imports",
    "src/utaca/two/c.py": "imported from its package by name",
    "src/utaca/named.py": "imported from the whole package by name",
    "src/utaca/three/late.py": "imported inside a function",
    "data/things/words.yaml": "named by a module",
}
"""What the script runs, and why."""
UNUSED = {
    "src/utaca/one/unused.py",
    "src/utaca/one/unused.txt",
    "src/utaca/two/d.py",
    "src/utaca/aside.py",
    "data/things/others.yaml",
}


@pytest.fixture
def project(tmp_path: Path) -> Make:
    """Makes the project of some files in a folder of its own, as another process would find it; returns the folder."""
    number = count()

    def make(files: dict[str, str]) -> Path:
        folder = tmp_path / str(next(number))
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return folder

    return make


def digest(folder: Path) -> str:
    return code(folder / SCRIPT, folder / "src")


def test_an_edit_of_what_a_script_runs_is_another_digest(project: Make) -> None:
    before = digest(project(FILES))
    assert digest(project(FILES)) == before, "wherever the project lies"
    for name, why in USED.items():
        assert digest(project(FILES | {name: FILES[name] + "\n"})) != before, why
    for name in UNUSED:
        assert digest(project(FILES | {name: FILES[name] + "\n"})) == before, name
    # Snakemake itself sees that a script was edited.
    assert digest(project(FILES | {SCRIPT: FILES[SCRIPT] + "\n"})) == before
    assert USED.keys() | UNUSED | {SCRIPT, "src/utaca/three/__init__.py"} == FILES.keys()


def test_a_module_counts_once_it_is_imported_and_under_its_name(project: Make) -> None:
    before = digest(project(FILES))
    imported = FILES | {"src/utaca/base.py": "import utaca.aside\n"}
    assert digest(project(imported | {"src/utaca/aside.py": "z = 1\n"})) != digest(project(imported))
    moved = {name.replace("late", "later"): text.replace("late", "later") for name, text in FILES.items()}
    assert digest(project(moved)) != before
    without = {name: text for name, text in FILES.items() if name != "src/utaca/one/unused.py"}
    # What no module has the name of is the package's own.
    assert digest(project(without)) != before


@pytest.mark.parametrize(
    ("script", "used", "unused"),
    [
        ("pad", "utaca/biographies/padding.py", "utaca/judging/cas.py"),
        ("score", "utaca/judging/cas.txt", "utaca/judging/writer.txt"),
        ("score", "utaca/endpoints/client.py", "utaca/memory/branch.py"),
        ("train_detector", "utaca/detection/training/losses.py", "utaca/reporting/render.py"),
        ("generate", "utaca/memory/attention.py", "utaca/judging/labels.py"),
        ("write_biographies", "utaca/judging/rules/phrases.txt", "utaca/decoding/loop.py"),
    ],
)
def test_scripts_of_the_workflow_know_their_modules(script: str, used: str, unused: str) -> None:
    paths = {
        str(Path(path).relative_to(ROOT / "src"))
        for path in closure(ROOT / "workflow" / "scripts" / f"{script}.py", ROOT / "src")
        if Path(path).is_relative_to(ROOT / "src")
    }
    assert used in paths
    assert unused not in paths
