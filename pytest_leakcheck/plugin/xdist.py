"""What passes between an xdist controller and its workers, beside the findings that ride on test reports."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_leakcheck.runner.processes.private_tmpdir import make_folder, move_into, shared_folder

_ENCODING: Final = "leakcheck_encoding"
_FOLDER: Final = "leakcheck_folder"
_SHARED: Final = "leakcheck_shared"
# In a worker that has a temporary folder of its own: the one that it has left.
_LEFT: Final = pytest.StashKey[str]()


def is_worker(config: pytest.Config) -> bool:
    """Whether this process runs tests for a controller elsewhere."""
    return hasattr(config, "workerinput")


def told_encoding(config: pytest.Config) -> str | None:
    """In a worker, the encoding of the controller's terminal; None where none was told."""
    given: dict[str, Any] = getattr(config, "workerinput", {})
    return given.get(_ENCODING)


def use_own_folder(config: pytest.Config) -> None:
    """In a worker: put temporary files into the folder that the controller has made for it.

    Other workers put theirs elsewhere. Where the program has chosen a folder itself, it keeps that.
    """
    given: dict[str, Any] = getattr(config, "workerinput", {})
    if _FOLDER in given and shared_folder() == given[_SHARED]:
        move_into(Path(given[_FOLDER]))
        config.stash[_LEFT] = given[_SHARED]


def shared_folder_of(config: pytest.Config) -> str | None:
    """The temporary folder of the whole session; None where that is the one of this process."""
    return config.stash.get(_LEFT, None)


class Controller:
    """Registered on a controller only, since xdist's hooks are unknown without it."""

    def __init__(self, config: pytest.Config) -> None:
        self._folders: list[Path] = []
        # Here and not in the worker: one that crashes leaves its folder, too.
        config.add_cleanup(self._remove_folders)

    @pytest.hookimpl
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_ENCODING] = getattr(node.config.get_terminal_writer()._file, "encoding", None)
        shared = shared_folder()
        # A worker elsewhere has other folders.
        if shared and node.gateway.spec.popen and (folder := make_folder(shared)) is not None:
            self._folders.append(folder)
            node.workerinput |= {_FOLDER: str(folder), _SHARED: shared}

    def _remove_folders(self) -> None:
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
