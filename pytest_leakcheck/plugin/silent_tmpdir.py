"""Give silent runs a private temporary folder; put pytest's into it if it was in the shared one.

So `disk` counts what a test leaves, and nothing that other processes do, while ``tmp_path`` still
lies below the temporary folder. The run that is logged has the folders of a plain session, where
pytest keeps the last ones.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_leakcheck.probes.folders import PYTEST_NAME, MadeBeside
from pytest_leakcheck.runner.processes.private_tmpdir import private_tmpdir, shared_folder


class SilentTmpdir:
    """The folders of a process; the state of pytest's factory is kept between silent runs."""

    def __init__(self, config: pytest.Config, folder: Path, shared: str) -> None:
        """Take the folder for the private one, and the temporary folder of a plain session."""
        self._config, self.folder, self._shared = config, folder, shared
        self.beside = MadeBeside(shared)
        config.add_cleanup(self.beside.close)
        self._numbers: dict[str, int] = {}

    @contextlib.contextmanager
    def in_use(self, *, apart: bool) -> Iterator[None]:
        """Use the folders; do nothing if they are in use, or tests chose a temporary folder.

        If these runs are to find nothing of others (`apart`), a base that the project has chosen
        gets a folder for them.
        """
        if shared_folder() != self._shared:
            yield
            return
        moves = self._is_shared(self._base_of_session())
        chosen = getattr(self._factory, "_basetemp", "")
        with (
            private_tmpdir(self.folder) as private,
            self._moved(private / PYTEST_NAME if moves else Path(chosen, "leakcheck"))
            if moves or (apart and chosen)
            else contextlib.nullcontext(),
        ):
            yield

    @property
    def _factory(self) -> Any:
        # None under `-p no:tmpdir`. This object may be older than it.
        return getattr(self._config, "_tmp_path_factory", None)

    def _base_of_session(self) -> str:
        """Return the base folder of ``tmp_path``, or where pytest would make it."""
        made = getattr(self._factory, "_basetemp", None) or getattr(
            self._factory, "_given_basetemp", None
        )
        return str(made or os.environ.get("PYTEST_DEBUG_TEMPROOT") or self._shared)

    def _is_shared(self, folder: str) -> bool:
        return self._factory is not None and Path(os.path.realpath(folder)).is_relative_to(
            os.path.realpath(self._shared)
        )

    @contextlib.contextmanager
    def _moved(self, base: Path) -> Iterator[None]:
        factory = self._factory
        # As pytest does: a test compares it with other resolved paths.
        base = Path(os.path.realpath(base))
        base.mkdir(mode=0o700, exist_ok=True)
        before = factory._basetemp, getattr(factory, "_next_number", {})
        factory._basetemp, factory._next_number = base, self._numbers
        try:
            yield
        finally:
            factory._basetemp, factory._next_number = before


_KEY: Final[pytest.StashKey[SilentTmpdir]] = pytest.StashKey()


def prepare(config: pytest.Config, folder: Path, shared: str) -> None:
    """Let silent runs of this process use a temporary folder in `folder`."""
    config.stash[_KEY] = SilentTmpdir(config, folder, shared)


def move(config: pytest.Config, folder: Path, *, forks: bool) -> None:
    """Use another folder than `prepare` got, if called; a process that `forks` shares nothing."""
    if tmpdir := config.stash.get(_KEY, None):
        tmpdir.folder = folder
        tmpdir.beside.made.move(shared=not forks)


def silent_tmpdir(
    config: pytest.Config, *, apart: bool = False
) -> contextlib.AbstractContextManager[None]:
    """Return the context in which this process uses it; without `prepare`, nothing changes."""
    tmpdir = config.stash.get(_KEY, None)
    return tmpdir.in_use(apart=apart) if tmpdir else contextlib.nullcontext()
