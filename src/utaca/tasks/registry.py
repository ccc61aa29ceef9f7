"""Every task by its name, and the paths of its files."""

from pathlib import Path

from utaca.errors import UserError
from utaca.settings.schema import TaskSetSettings
from utaca.tasks.biographies import Biographies
from utaca.tasks.meetings import Meetings
from utaca.tasks.rows import SHIPPED
from utaca.tasks.ruler import QA1, QA2
from utaca.tasks.ruler_tasks import OFFICIAL
from utaca.tasks.task import Task

TASKS: dict[str, type[Task]] = {
    **SHIPPED,
    QA1.name: QA1,
    QA2.name: QA2,
    Meetings.name: Meetings,
    Biographies.name: Biographies,
    **OFFICIAL,
}


def task_of(settings: TaskSetSettings) -> Task:
    """The task of a set whose settings these are. Raises :class:`UserError` if no task has the name that they give."""
    if settings.task not in TASKS:
        raise UserError(f"there is no task {settings.task!r}; choose one of {', '.join(TASKS)}")
    return TASKS[settings.task]()


def paths_of(settings: TaskSetSettings, folder: str) -> dict[str, Path]:
    """The path of each file of a set, by the file's name.

    These are the task's files, with the set's own paths in place of the task's, and the files of the set's ``pool``,
    whose names are their paths. Relative paths are below ``folder``. Raises :class:`UserError` if the task is unknown,
    or if the set names a file that the task does not have.
    """
    task = task_of(settings)
    unknown = sorted(settings.files.keys() - task.files.keys())
    if unknown:
        raise UserError(f"task {task.name} has no file {unknown[0]!r}; its files are {', '.join(task.files)}")
    named = {**task.files, **settings.files, **{path: path for path in settings.pool}}
    return {name: Path(folder, path) for name, path in named.items()}


def files_of(settings: TaskSetSettings, folder: str) -> dict[str, Path]:
    """The paths of a set's files (:func:`paths_of`), of the task's spare ones only those that exist.

    Raises :class:`UserError` also if another file does not exist.
    """
    spare = task_of(settings).spare
    paths = {}
    for name, path in paths_of(settings, folder).items():
        if path.is_file():
            paths[name] = path
        elif name not in spare:
            raise UserError(
                f"{path}, file {name!r} of task {settings.task}, does not exist; run utaca fetch-tasks to download the "
                "official files (docs/benchmarks.md)"
            )
    return paths
