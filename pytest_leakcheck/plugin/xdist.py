"""Give each process that runs tests a temporary folder: an xdist controller passes it to a worker."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_leakcheck.runner.processes.private_tmpdir import make_folder, remove_at_exit, shared_folder, variables_for

_FOLDER_KEY: Final = "leakcheck_folder"
_SHARED_KEY: Final = "leakcheck_shared"
# The session's temporary folder. The key is set only in a process that uses a temporary folder of its own instead.
SESSION_FOLDER: Final = pytest.StashKey[str]()


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process is an xdist worker or a subprocess of one."""
    return hasattr(config, "workerinput")


def is_loaded(config: pytest.Config) -> bool:
    """Return whether xdist is loaded; its name as a plugin depends on the way in which it was loaded."""
    return hasattr(config.hook, "pytest_xdist_setupnodes")


def is_distributed(config: pytest.Config) -> bool:
    """Return whether this process is a controller whose workers run the tests."""
    return is_loaded(config) and config.getoption("dist", "no") != "no" and not config.getoption("collectonly")


def use_own_folder(config: pytest.Config) -> None:
    """Make this process use a temporary folder of its own, which a worker gets from its controller, where possible."""
    given: dict[str, Any] = getattr(config, "workerinput", {})
    folder = None
    with contextlib.suppress(OSError):
        shared = shared_folder()
        if is_worker(config):
            folder = Path(given[_FOLDER_KEY]) if shared and shared == given.get(_SHARED_KEY) else None
        elif shared and (folder := make_folder(shared)) is not None:
            remove_at_exit(folder)
    if folder is None:
        return
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    for name, value in variables_for(folder).items():
        patch.setenv(name, value)
    # `tempfile` then reads the environment again.
    patch.setattr(tempfile, "tempdir", None)
    config.stash[SESSION_FOLDER] = shared


class Controller:
    """The hooks of an xdist controller; registered only with xdist, because without it, pytest does not know them."""

    def __init__(self, config: pytest.Config) -> None:
        self._folders: list[Path] = []
        # The controller removes the folders, because a worker that crashes could not remove its own.
        config.add_cleanup(self._remove_folders)

    @pytest.hookimpl
    def pytest_configure_node(self, node: Any) -> None:
        shared = shared_folder()
        # Only a worker that runs on this machine can use the folder.
        if shared and node.gateway.spec.popen and (folder := make_folder(shared)) is not None:
            self._folders.append(folder)
            node.workerinput |= {_FOLDER_KEY: str(folder), _SHARED_KEY: shared}

    def _remove_folders(self) -> None:
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
