"""What an executor leaves behind is red by the marks that the incident's own cycles carry."""

from __future__ import annotations

import pytest

from projects import Project

pytestmark = pytest.mark.laboratory

CYCLES = """
    import pytest
    from leakcheck_incidents.rollout_executor.executor import WorkflowExecutor
    from leakcheck_incidents.rollout_executor.rollouts import Endless
    from leakcheck_incidents.rollout_executor.staleness import Limits
    from leakcheck_incidents.rollout_executor.tasks import TaskRunner

    FORGOTTEN = {forgotten!r}
    KEPT = []

    if FORGOTTEN == "the runner":
        TaskRunner.stop = lambda runner, timeout: KEPT.append(runner)

    @pytest.mark.fd_budget(0)
    @pytest.mark.thread_budget(0)
    @pytest.mark.task_budget(0)
    def test_cycle():
        executor = WorkflowExecutor(Limits(1, 1), lambda: 0)
        executor.initialize(1)
        endless = Endless()
        executor.submit(endless)
        endless.wait_for(1)
        if FORGOTTEN == "the shutdown":
            KEPT.append(executor)
        else:
            executor.shutdown()
"""


@pytest.mark.parametrize(("forgotten", "threads"), [("the runner", 1), ("the shutdown", 3)])
def test_what_is_left_is_a_leak(project: Project, forgotten: str, threads: int) -> None:
    project.write("test_it.py", CYCLES.format(forgotten=forgotten))
    ran = project.run()
    found = ran.findings[0]
    assert (found["resource"], found["verdict"], found["slope"]) == ("fd", "leak", 3), ran.text
    seen = {one["resource"]: one["slope"] for one in found["seen"]}
    assert round(seen["thread"]) == threads
    assert round(seen["task"]) == 1


def test_nothing_left_is_silent(project: Project) -> None:
    project.write("test_it.py", CYCLES.format(forgotten=""))
    ran = project.run()
    assert ran.verdicts[("test_cycle", "fd")] == "ok", ran.text
    assert ran.last_line == "1 passed", ran.text
