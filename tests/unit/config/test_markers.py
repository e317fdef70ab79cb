from __future__ import annotations

from typing import Any

import pytest

from pytest_leakcheck.config.budget import Budget
from pytest_leakcheck.config.plan import MOST_SECONDS, Effort, Plan, plan_unmarked, read_marks, valid_form
from pytest_leakcheck.config.settings import Settings, resolve
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.culprit import Fault, Site
from pytest_leakcheck.model.resources import RESOURCES
from pytest_leakcheck.plugin import MARKERS

MARK = pytest.mark
OF_RAY = ("ray_actor", "ray_placement_group", "ray_ref", "ray_object", "ray_worker")
COUNT = "Valid: fd_budget(0, *, per_iteration=0, peak=0, over=N, unclosed='fail', reason='')"
BYTES = "Valid: rss_budget(\"1 MiB\", *, per_iteration=0, peak=\"1 MiB\", over=N, unclosed='fail', reason='')"
EFFORT = "Valid: leakcheck(iterations=, warmup=, max_time=, min_time=, isolate=, resources=, failures=)"


def given(source: str = "", **values: Any) -> Settings:
    return resolve({}, {}, "").changed(values, source)


def read(*decorators: pytest.MarkDecorator, settings: Settings | None = None) -> Plan | None:
    return read_marks("test_a.py::test_b", [one.mark for one in decorators], settings or given())


def planned(*decorators: pytest.MarkDecorator, settings: Settings | None = None) -> Plan:
    plan = read(*decorators, settings=settings)
    assert plan is not None
    return plan


def test_a_test_without_marks_of_ours_gets_no_plan() -> None:
    assert read() is None
    assert read(MARK.xfail, MARK.parametrize("a", [1])) is None


def test_a_budget_alone_is_all_that_is_judged() -> None:
    plan = planned(MARK.fd_budget(0))
    assert plan == Plan("test_a.py::test_b", (Budget("fd", 0),), Effort())


def test_leakcheck_judges_all_by_default_and_keeps_explicit_budgets() -> None:
    plan = planned(MARK.leakcheck, MARK.heap_budget("1 MiB"))
    assert [(budget.resource, budget.level, budget.explicit) for budget in plan.budgets] == [
        ("process", None, False),
        *((name, None, False) for name in ("fd", "thread", "shm", "disk", "task", *OF_RAY, "plasma")),
        ("heap", 2**20, True),
        *((name, None, False) for name in ("object", "block", "arrow", "vram", "mmap", "rss")),
    ]


def test_leakcheck_with_resources_judges_those() -> None:
    plan = planned(MARK.leakcheck(resources=["rss", "fd"]))
    assert plan.budgets == (Budget("fd"), Budget("rss"))


def test_leakcheck_judges_the_resources_of_the_settings_where_it_names_none() -> None:
    countable = given(resources=("countable",))
    names = [budget.resource for budget in planned(MARK.leakcheck, settings=countable).budgets]
    assert names == ["process", "fd", "thread", "shm", "disk", "task", *OF_RAY]
    assert planned(MARK.leakcheck(resources=["rss"]), settings=countable).budgets == (Budget("rss"),)
    assert planned(MARK.leakcheck, settings=given(resources=("memory", "fd"))).budgets[0].resource == "fd"


def test_the_closest_mark_decides_whether_a_test_is_left_out() -> None:
    left_out = MARK.leakcheck(False, reason="keeps a log")
    assert read(left_out, MARK.leakcheck) is None
    assert read(left_out, MARK.fd_budget(0)) is None
    assert planned(MARK.fd_budget(0), left_out).budgets == (Budget("fd", 0),)
    # 0 is no False: it is a level at the wrong mark.
    with pytest.raises(InputError):
        read(MARK.leakcheck(0))


def test_a_test_without_a_mark_is_screened_unless_the_effort_is_set() -> None:
    plan = plan_unmarked("t", given(resources=("countable",)))
    assert (plan.screen, plan.effort.warmup, [budget.explicit for budget in plan.budgets]) == (True, 1, [False] * 11)
    for settings in (given(iterations=50), given(warmup=5), given(ceiling="fd=256")):
        assert not plan_unmarked("t", settings).screen
    assert plan_unmarked("t", given(warmup=5)).effort.warmup == 5


def test_the_closest_mark_of_a_name_wins_whole() -> None:
    plan = planned(MARK.thread_budget(2), MARK.fd_budget(1), MARK.fd_budget("many"))
    assert plan.budgets == (Budget("fd", 1), Budget("thread", 2))
    plan = planned(MARK.leakcheck(iterations=5), MARK.leakcheck(iterations=9, warmup=9))
    assert (plan.effort.iterations, plan.effort.warmup) == (5, 3)


def test_the_command_line_beats_the_mark_and_the_mark_beats_the_file() -> None:
    mark = MARK.leakcheck(iterations=5, warmup=1, max_time=2)
    settings = given("pyproject.toml", warmup=10, max_time=9.0, run=77).changed({"iterations": 50}, "command line")
    assert planned(mark, settings=settings).effort == Effort(iterations=50, warmup=1, max_time=2.0, run_length=77)
    assert planned(MARK.fd_budget(0), settings=settings).effort == Effort(50, 10, 9.0, 77)


def test_slow_iterations_extend_the_default_time_of_an_explicit_budget_of_memory() -> None:
    assert planned(MARK.heap_budget("1 MiB")).effort.longest == MOST_SECONDS
    assert planned(MARK.leakcheck(warmup=5), MARK.rss_budget("1 MiB")).effort.longest == MOST_SECONDS
    for marks in ([MARK.leakcheck], [MARK.fd_budget(0)], [MARK.leakcheck(max_time=30), MARK.heap_budget("1 MiB")]):
        assert planned(*marks).effort.longest == 0
    assert plan_unmarked("t", given()).effort.longest == 0
    for source in ("command line", "pyproject.toml"):
        assert planned(MARK.heap_budget("1 MiB"), settings=given(source, max_time=30.0)).effort.longest == 0


WRONG = [
    (MARK.fd_budget("many"), f"fd_budget(\"many\"): 'many' is not a number: write 0 or 3. {COUNT}"),
    (MARK.fd_budget(1, 2), f"fd_budget(1, 2): takes one level, 2 arguments were given. {COUNT}"),
    (MARK.fd_budget(-1), f"fd_budget(-1): -1 is negative: a budget is 0 or more. {COUNT}"),
    (
        MARK.rss_budget("5 parsecs"),
        "rss_budget(\"5 parsecs\"): '5 parsecs' is not a size: write bytes as 65536 or '64 KiB' (B, KiB, MiB, GiB, TiB). "
        + BYTES,
    ),
    (
        MARK.fd_budget(0, unclose="warn"),
        "fd_budget(0, unclose=\"warn\"): has no keyword 'unclose': valid keywords are per_iteration, peak, over, unclosed, reason. "
        "Did you mean 'unclosed'? " + COUNT,
    ),
    (
        MARK.fd_budget(over=100),
        "fd_budget(over=100): over=100 needs a level to compare with: write fd_budget(LEVEL, over=100). " + COUNT,
    ),
    (
        MARK.fd_budget(0, over=0),
        f"fd_budget(0, over=0): over=0 is not a positive whole number: write over=10_000. {COUNT}",
    ),
    (
        MARK.fd_budget(0, over=True),
        f"fd_budget(0, over=True): over=True is not a positive whole number: write over=10_000. {COUNT}",
    ),
    (
        MARK.fd_budget(0, unclosed="maybe"),
        "fd_budget(0, unclosed=\"maybe\"): unclosed='maybe' is not one of 'fail', 'warn', 'allow'. " + COUNT,
    ),
    (MARK.fd_budget(0, reason=3), f"fd_budget(0, reason=3): reason=3 is not a string. {COUNT}"),
    (
        MARK.fd_budget(0, per_iteration=-2),
        f"fd_budget(0, per_iteration=-2): per_iteration: -2 is negative: a budget is 0 or more. {COUNT}",
    ),
    (
        MARK.leakcheck(failures="os.open"),
        "leakcheck(failures=\"os.open\"): failures='os.open' is not a list of names: write True for the default list, or "
        f"names such as os.open or shop.client. {EFFORT}",
    ),
    (
        MARK.leakcheck(failures=["os..open"]),
        "leakcheck(failures=[\"os..open\"]): 'os..open' is not the name of a function or module: write True for the default "
        f"list, or names such as os.open or shop.client. {EFFORT}",
    ),
    (
        MARK.leakcheck(iterations=0),
        f"leakcheck(iterations=0): iterations=0 is not a positive whole number. {EFFORT}",
    ),
    (
        MARK.leakcheck(iterations=True),
        f"leakcheck(iterations=True): iterations=True: must be a whole number from 0 to 100,000. {EFFORT}",
    ),
    (MARK.leakcheck(warmup=0), f"leakcheck(warmup=0): warmup=0: must be a whole number from 1 to 100,000. {EFFORT}"),
    (
        MARK.leakcheck(max_time=float("nan")),
        f"leakcheck(max_time=nan): max_time=nan: must be a number of seconds above 0. {EFFORT}",
    ),
    (
        MARK.leakcheck(isolate="yes"),
        f"leakcheck(isolate=\"yes\"): isolate='yes': must be True or False. {EFFORT}",
    ),
    (MARK.leakcheck(5), f"leakcheck(5): takes keyword arguments only, or False to leave the test out. {EFFORT}"),
    (
        MARK.leakcheck(resources=["fdd"]),
        "leakcheck(resources=[\"fdd\"]): resources=['fdd'] is not a list of resources: fd, thread, process, shm, disk, "
        f"task, {', '.join(OF_RAY)}, plasma, heap, object, block, arrow, vram, mmap, rss, reference. {EFFORT}",
    ),
    (
        MARK.leakcheck(iteration=5),
        f"leakcheck(iteration=5): has no keyword 'iteration'. Did you mean 'iterations'? {EFFORT}",
    ),
    (
        MARK.leakcheck(False, why="x"),
        'leakcheck(False, why="x"): has only a reason. Valid: leakcheck(False, reason="...")',
    ),
]


@pytest.mark.parametrize(("mark", "message"), WRONG, ids=[row[1].partition(": ")[0] for row in WRONG])
def test_a_wrong_mark_is_shown_with_what_is_wrong_and_the_valid_form(mark: Any, message: str) -> None:
    with pytest.raises(InputError) as raised:
        read(mark)
    assert str(raised.value) == message


def test_each_mark_has_a_line_of_help_that_starts_with_its_valid_form() -> None:
    """The plugin spells them out, so that a plain run imports nothing for them."""
    *budgets, scaling, ceiling, leakcheck = MARKERS
    assert ceiling.startswith("leakcheck_ceiling(fd=256, rss='1 GiB', vram='2 GiB'): pytest-leakcheck: ")
    assert scaling.startswith(
        "scaling_budget(axis, sizes, *, engine=None, reason='', rss='O(1)', ...): pytest-leakcheck: "
    )
    assert budgets == [
        f"{valid_form(f'{name}_budget')}: pytest-leakcheck: bound the {resource.plural} that this test retains."
        for name, resource in RESOURCES.items()
    ]
    assert leakcheck.startswith(
        "leakcheck(iterations=0, warmup=3, max_time=30, min_time=3, isolate=False, resources=(), failures=False): "
        "pytest-leakcheck: "
    )


def test_failures_are_names_and_the_command_line_overrides_the_mark() -> None:
    assert planned(MARK.leakcheck(failures=True)).failures == ("all",)
    assert planned(MARK.leakcheck(failures=["os.open", "shop"])).failures == ("os.open", "shop")
    assert planned(MARK.leakcheck).failures == ()
    of_file = given("pytest.ini", failures=("os.read",))
    assert planned(MARK.leakcheck, settings=of_file).failures == ("os.read",)
    assert planned(MARK.fd_budget(0), settings=of_file).failures == ("os.read",)
    assert plan_unmarked("test_a.py::test_b", of_file).failures == ("os.read",)
    assert planned(MARK.leakcheck(failures=False), settings=of_file).failures == ()
    typed = given("command line", failures=("os.read",))
    assert planned(MARK.leakcheck(failures=["os.open"]), settings=typed).failures == ("os.read",)


def test_a_failing_path_is_screened_without_peaks() -> None:
    plan = planned(MARK.rss_budget("1 MiB", peak="2 MiB"), MARK.leakcheck(iterations=50, failures=True))
    fault = Fault("os.open", Site("shop.py", 3, "read"), 1)
    path = plan.failing_at(fault, 7.0)
    assert (path.fault, path.failures, path.screen) == (fault, (), True)
    assert {budget.peak for budget in path.budgets} == {None}
    assert (path.effort.iterations, path.effort.warmup, path.effort.max_time, path.effort.longest) == (0, 1, 7.0, 0.0)


def test_tests_without_a_mark_share_their_budgets() -> None:
    """Budgets of their own would make each collection of garbage in the first pass slower, 13 objects per test."""
    one, other = plan_unmarked("one", given()).budgets, plan_unmarked("other", given()).budgets
    assert [*map(id, one)] == [*map(id, other)]
    assert len(one) > 5
