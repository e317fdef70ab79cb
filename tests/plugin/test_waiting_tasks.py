"""Tasks that nothing ends: counted, with the line that creates them and the line at which they wait."""

from __future__ import annotations

from projects import Project, line_of


def test_the_waiters_of_one_future_are_counted_and_named_with_the_await_that_holds_them(project: Project) -> None:
    path = project.copy("arms_of_waiting_tasks.py")
    leaky = project.run()
    found = leaky.finding("test_watchers", "task")
    assert (found["verdict"], found["site"]["line"]) == ("leak", line_of("test_watchers LEAK", path.read_text()))
    assert found["owner"]["name"].startswith("Hub.changed")
    awaits = line_of("test_watchers AWAIT", path.read_text())
    where = f"waiting in next_change(), test_it.py:{awaits}"
    assert found["held"] == [{"what": "task of watch()", "count": 264, "note": where}]
    assert f"264 × task of watch() from 22 iterations, {where}" in leaky.one_line
    project.copy("arms_of_waiting_tasks.py", LEAKY=False)
    assert project.run().last_line == "1 passed"
