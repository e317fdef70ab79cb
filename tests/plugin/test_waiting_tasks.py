"""Tasks that nothing ends: counted, with the line that creates them and the line at which they wait."""

from __future__ import annotations

from projects import Project, line_of

HUB = """
    import asyncio
    import pytest

    LEAKY = True

    class Hub:
        loop = asyncio.new_event_loop()
        changed = None

    async def next_change():
        await Hub.changed  # of test_watchers AWAIT

    async def watch():
        await next_change()

    async def step():
        Hub.changed = Hub.changed or asyncio.get_running_loop().create_future()
        watching = []
        for _ in range(42):
            watching.append(asyncio.ensure_future(watch()))  # of test_watchers LEAK
        await asyncio.sleep(0)
        for task in watching:
            if not LEAKY:
                task.cancel()

    @pytest.mark.task_budget(0)
    @pytest.mark.leakcheck(iterations=22, resources=["task"])
    def test_watchers():
        Hub.loop.run_until_complete(step())
"""


def test_the_waiters_of_one_future_are_counted_and_named_with_the_await_that_holds_them(project: Project) -> None:
    path = project.write("test_it.py", HUB)
    leaky = project.run()
    found = leaky.finding("test_watchers", "task")
    assert (found["verdict"], found["site"]["line"]) == ("leak", line_of("test_watchers LEAK", path.read_text()))
    assert found["owner"]["name"].startswith("Hub.changed")
    awaits = line_of("test_watchers AWAIT", path.read_text())
    where = f"waiting in next_change(), test_it.py:{awaits}"
    assert found["held"] == [{"what": "task of watch()", "count": 924, "note": where}]
    assert f"924 × task of watch() from 22 iterations, {where}" in leaky.one_line
    path.write_text(path.read_text().replace("LEAKY = True", "LEAKY = False"))
    assert project.run().last_line == "1 passed"
