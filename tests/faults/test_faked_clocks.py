"""A project that stops the clocks, or replaces `time.sleep`, for the whole session: the measurement has its own time."""

from __future__ import annotations

import pytest

from projects import Project

pytestmark = pytest.mark.laboratory

# The child process of an isolated test gets ample time to start, and then 1 s for each iteration.
IMPATIENT = """
    from dataclasses import replace
    from pytest_leakcheck.runner.processes import supervisor

    def run(start, folder, watch, run=supervisor.run):
        return run(replace(start, start_up=600.0, step=1.0), folder, watch)

    supervisor.run = run
"""
# Ten years ahead: what was left in the temporary folder a second ago then looks old.
FREEZEGUN = """
    import datetime
    from freezegun import freeze_time

    freeze_time(datetime.datetime.now() + datetime.timedelta(days=3650)).start()
"""
# As freezegun does, and all the rest of `time`: clocks stand still, `sleep` returns at once.
REPLACED = """
    import sys
    import time
    from types import BuiltinFunctionType

    def constant(value):
        return lambda *_: value

    FAKES = {time.sleep: constant(None), time.clock_gettime: constant(1.0), time.clock_gettime_ns: constant(1)}
    for clock in ("monotonic", "perf_counter", "process_time", "thread_time", "time"):
        for name in (clock, f"{clock}_ns"):
            FAKES[getattr(time, name)] = constant(getattr(time, name)())
    FAKES[time.time] = constant(time.time() + 3650 * 24 * 3600)
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            if isinstance(value, BuiltinFunctionType) and value in FAKES:
                setattr(module, name, FAKES[value])
"""


@pytest.mark.parametrize("fake", [FREEZEGUN, REPLACED], ids=["freezegun", "replaced"])
def test_faked_clocks_change_no_verdict(project: Project, fake: str) -> None:
    project.write("conftest.py", IMPATIENT + fake)
    project.copy("program_under_faked_clocks.py")
    # Another session of this user is running.
    (project.folder / "tmp/leakcheck-abcdefgh/t").mkdir(parents=True)
    ran = project.run(limit=120, TMPDIR=str(project.folder / "tmp"))
    verdicts = ran.verdicts
    # After the first 13 iterations it is clean; a machine under load may not get there in that time.
    assert verdicts.pop(("test_out_of_time", "fd")) in ("ok", "inconclusive")
    assert verdicts == {
        ("test_hangs", "fd"): "inconclusive",
        ("test_clean", "fd"): "ok",
        ("test_leaky", "fd"): "leak",
        ("test_leaks_memory", "heap"): "leak",
        ("test_ends_later", "thread"): "ok",
    }, ran.text
    assert ran.finding("test_hangs")["reason"].startswith("hung: no verdict after ")
    (stopped,) = (one["stopped"] for one in ran.recordings if one["test"].endswith("test_out_of_time"))
    assert stopped == "time"
    assert (project.folder / "tmp/leakcheck-abcdefgh").exists()
