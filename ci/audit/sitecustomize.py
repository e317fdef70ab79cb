"""Note what the plugin writes, removes, binds, starts and unpickles, by audit events: a JSON line each in ``AUDIT_TO``.

Python imports it in each process whose ``PYTHONPATH`` has this folder. Only what a line of `pytest_leakcheck` does counts,
directly or through the standard library.
"""

import json
import os
import sys
import threading
from types import FrameType
from typing import Any

_TO = os.environ.get("AUDIT_TO", "")
# `pathlib` is not imported in each Python process.
_STANDARD = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120
_PATHS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate", "shutil.rmtree"}
_OTHERS = {"socket.bind", "subprocess.Popen", "os.posix_spawn", "os.system", "os.exec", "pickle.find_class"}
_BUSY = threading.local()


def _is_ours() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name == "_get_default_tempdir":
            # `tempfile` tries a folder with a file that it removes.
            return False
        file = frame.f_code.co_filename
        standard = file.startswith("<") or (file.startswith(_STANDARD) and "site-packages" not in file)
        if not standard:
            return f"{os.sep}pytest_leakcheck{os.sep}" in file
        frame = frame.f_back
    return False


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if not (writes or event in _PATHS or event in _OTHERS) or getattr(_BUSY, "now", False) or not _is_ours():
        return
    _BUSY.now = True
    try:
        # Those of `shutil.rmtree` name entries of a folder that it has an event of its own for.
        if event in ("os.remove", "os.rmdir") and arguments[1] != -1:
            return
        paths = arguments[: 2 if event in ("os.rename", "os.symlink", "os.link") else 1]
        if event in _OTHERS:
            what = [repr(one)[:200] for one in arguments[:2]]
        else:
            what = [os.path.abspath(os.fsdecode(one)) for one in paths if not isinstance(one, int)]  # noqa: PTH100
        descriptor = os.open(_TO, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, (json.dumps([event, *what]) + "\n").encode())
        os.close(descriptor)
    except (OSError, TypeError, ValueError):
        pass
    finally:
        _BUSY.now = False


if _TO:
    sys.addaudithook(_note)
