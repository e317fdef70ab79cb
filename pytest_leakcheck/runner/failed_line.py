"""Find the line at which a resource ran out, from the error that ended the last iteration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pytest_leakcheck.attribution.call_paths import is_harness, is_own
from pytest_leakcheck.attribution.tracing.source_code import function_at
from pytest_leakcheck.judge.exhaustion import causes
from pytest_leakcheck.model.culprit import Culprit, Site

_TRACEBACK_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def name_failed_line(resource: str, error: BaseException) -> Culprit | None:
    """Return what is known of the cause if a resource ran out before a verdict; None if not even the line is."""
    site = failed_at(error)
    unresolved = {"owner": "the test did not continue after the failure"}
    return Culprit(resource, ran_out=site, unresolved=unresolved) if site is not None else None


def failed_at(error: BaseException) -> Site | None:
    """Return the innermost line of the program's own code that failed; for a worker's error, the worker's line."""
    # The traceback of a worker arrives as text: File "/a/b.py", line 12, in function.
    # It has the name of the function without that of its class, which the source tells.
    from_text: list[Site] = []
    for file, line, function in _TRACEBACK_FRAME.findall(str(error)):
        qualified = function_at(file, int(line))
        from_text.append(Site(file, int(line), qualified if qualified.endswith(f".{function}") else function))
    raised: list[Site] = []
    for cause in causes(error):
        trace = cause.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            raised.append(Site(code.co_filename, trace.tb_lineno, code.co_qualname))
            trace = trace.tb_next
    for path in (from_text, raised):
        # Extension modules compiled from Python may carry a relative path of the machine that built them.
        own = [one for one in path if Path(one.file).is_absolute() and is_own(one.file) and not is_harness(one.file)]
        if own:
            return own[-1]
    return None
