"""Simulate another system for the code of this package, in each Python that imports this as it starts.

The package alone sees the system that SIMULATED_SYSTEM names ("darwin" or "win32"): another standard library, no /proc,
no /dev/shm, another C library. Tests, pytest and psutil run on the real system. Not simulated: paths with backslashes,
that Windows removes no open file, what psutil reads there, and how long that takes.
"""

from __future__ import annotations

import builtins
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

SYSTEM: Final = os.environ.get("SIMULATED_SYSTEM", "")
_WINDOWS: Final = SYSTEM == "win32"
_HIDDEN: Final = ("/proc", "/dev/shm", "/sys")
_PACKAGE: Final = "pytest_leakcheck"
# What opens files for another module.
# Python 3.13 has `pathlib` in parts.
_BETWEEN: Final = frozenset({"pathlib", "pathlib._abc", "pathlib._local", "genericpath", "posixpath", "glob"})
# glibc's own functions, which the package looks up.
_OF_GLIBC: Final = frozenset({"mallinfo2", "malloc_trim", "timer_create", "prctl", "pthread_getattr_default_np"})


class _Substitute(ModuleType):
    """A module without some of its names, and with other values of some; all else is that of the real one."""

    def __init__(self, real: ModuleType, absent: Iterable[str] = (), **changed: Any) -> None:
        vars(self).update(_real=real, _absent=frozenset(absent), **changed)

    def __getattr__(self, name: str) -> Any:
        if name in self._absent:
            raise AttributeError(f"module {self._real.__name__!r} has no attribute {name!r} (simulated {SYSTEM})")
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._real, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._real, name)


def _is_hidden(path: object) -> bool:
    text = os.fspath(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
    text = os.fsdecode(text)
    return any(text == one or text.startswith(f"{one}/") for one in _HIDDEN)


def _refuse_hidden(path: object) -> None:
    if _is_hidden(path):
        raise FileNotFoundError(2, "No such file or directory", path)


def _refuse_package(path: object) -> None:
    """Raise an error if the package asks for a hidden path, directly or through what opens files for others."""
    if not _is_hidden(path):
        return
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") in _BETWEEN:
        frame = frame.f_back
    if str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        _refuse_hidden(path)


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir"):
        _refuse_package(args[0])


def _does_path_exist(path: Path, *, follow_symlinks: bool = True) -> bool:
    # From Python 3.14 on, the original does not call `Path.stat`.
    try:
        _refuse_package(path)
        os.stat(path, follow_symlinks=follow_symlinks)  # noqa: PTH116 - this is `Path.exists`
    except OSError:
        return False
    return True


def _stat_of_path(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
    _refuse_package(path)
    return os.stat(path, follow_symlinks=follow_symlinks)  # noqa: PTH116 - this is `Path.stat`


def _seeing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a path that raises no audit event, such as `os.stat`, for which hidden paths do not exist."""

    def call(path: Any, *args: Any, **options: Any) -> Any:
        _refuse_hidden(path)
        return function(path, *args, **options)

    return call


def _testing(function: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda path: not _is_hidden(path) and function(path)


def _open(path: Any, flags: int, *args: Any, **options: Any) -> int:
    _refuse_hidden(path)
    if _WINDOWS and Path(path).is_dir():
        # The C library there opens no folder.
        raise PermissionError(13, "Permission denied", path)
    return os.open(path, flags, *args, **options)


class _Library:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        if name in _OF_GLIBC:
            raise AttributeError(f"dlsym: symbol not found: {name} (simulated {SYSTEM})")
        return getattr(self._library, name)


def _loading(load: type[ctypes.CDLL]) -> Callable[..., _Library]:
    def open_library(name: str | None, *args: Any, **options: Any) -> _Library:
        if _WINDOWS and name is None:
            raise TypeError("LoadLibrary() argument 1 must be str, not None")
        return _Library(load(name, *args, **options))

    return open_library


def _map(fileno: int, length: int, *args: Any, **options: Any) -> Any:
    import mmap

    if _WINDOWS and ("flags" in options or "prot" in options):
        raise TypeError(f"mmap() got an unexpected keyword argument (simulated {SYSTEM})")
    return mmap.mmap(fileno, length, *args, **options)


def _substitutes() -> dict[str, ModuleType | None]:
    """Return, by name, what the package gets instead of a module; None if there is no such module."""
    import faulthandler
    import mmap
    import select
    import socket
    import time

    import psutil

    no_os, no_signals = {"pidfd_open", "waitid"}, {"pidfd_send_signal", "SIGRTMIN", "SIGRTMAX"}
    found: dict[str, ModuleType | None] = {}
    if _WINDOWS:
        no_os |= {"fork", "register_at_fork", "killpg", "setsid", "getuid", "geteuid", "fchown", "fchmod"}
        no_os |= {"pread", "statvfs", "sysconf", "P_ALL", "P_PID", "WEXITED", "WNOHANG", "WNOWAIT"}
        no_os |= {one for one in dir(os) if one.startswith("O_")}
        no_os -= {"O_RDONLY", "O_WRONLY", "O_RDWR", "O_APPEND", "O_CREAT", "O_EXCL", "O_TRUNC"}
        no_signals |= {one for one in dir(signal) if one.startswith(("SIG", "sig", "ITIMER", "pthread"))}
        no_signals |= {"alarm", "pause", "setitimer", "getitimer"}
        no_signals -= {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN", "signal"}
        found |= dict.fromkeys(("fcntl", "resource", "termios"))
        clocks = {one for one in dir(time) if one.startswith(("CLOCK_", "clock_"))}
        found["time"] = _Substitute(time, clocks)
        found["faulthandler"] = _Substitute(faulthandler, ("register", "unregister"))
        found["select"] = _Substitute(select, ("poll", "epoll"))
        found["socket"] = _Substitute(socket, ("AF_UNIX",))
        flags = {one for one in dir(mmap) if one.startswith(("MAP_", "PROT_", "MADV_"))}
        found["mmap"] = _Substitute(mmap, flags, mmap=_map)
        psutil.Process.num_handles = psutil.Process.num_fds  # type: ignore[attr-defined]
        del psutil.Process.num_fds
    del psutil.Process.rlimit
    paths: dict[str, Any] = {
        name: _testing(getattr(os.path, name)) for name in ("exists", "lexists", "isdir", "isfile", "islink")
    }
    calls = {name: _seeing(getattr(os, name)) for name in ("stat", "lstat", "readlink", "access", "listdir", "scandir")}
    found["os.path"] = _Substitute(os.path, **paths)
    found["os"] = _Substitute(os, no_os, open=_open, path=found["os.path"], **calls)
    found["signal"] = _Substitute(signal, no_signals)
    found["sys"] = _Substitute(sys, ("abiflags",) if _WINDOWS else (), platform=SYSTEM)
    found["ctypes"] = _Substitute(ctypes, CDLL=_loading(ctypes.CDLL), PyDLL=_loading(ctypes.PyDLL))
    limits = {one for one in dir(psutil) if one.startswith("RLIM")}
    found["psutil"] = _Substitute(psutil, limits)
    return found


def _begin() -> None:
    substitutes, real = _substitutes(), builtins.__import__

    def import_module(name: str, *given: Any, **named: Any) -> ModuleType:
        # The globals of the importing module, the names that it wants, and the level.
        whose, wanted = (given[0] if given else named.get("globals")), (given[2:3] or [named.get("fromlist")])[0]
        if name in substitutes and str((whose or {}).get("__name__")).partition(".")[0] == _PACKAGE:
            found = substitutes[name]
            if found is None:
                raise ModuleNotFoundError(f"No module named {name!r} (simulated {SYSTEM})", name=name)
            return found if wanted or "." not in name else substitutes[name.partition(".")[0]] or found
        return real(name, *given, **named)

    builtins.__import__ = import_module
    # It raises no audit event.
    setattr(Path, "stat", _stat_of_path)  # noqa: B010 - mypy refuses to assign a method
    setattr(Path, "exists", _does_path_exist)  # noqa: B010 - likewise
    sys.addaudithook(_audit)


if SYSTEM:
    _begin()
