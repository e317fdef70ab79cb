from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_leakcheck.config.budget import Budget, default_budget, parse_budget
from pytest_leakcheck.model import InputError
from pytest_leakcheck.model.resources import RESOURCES, find_resource

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)
NAMES = st.sampled_from(sorted(RESOURCES))


def test_nothing_given_bounds_growth_only() -> None:
    assert parse_budget("fd", (), {}) == Budget("fd", None, 0.0, None, "fail", "", explicit=True)


def test_every_part_is_read() -> None:
    given_keywords = {"per_iteration": "4 KiB", "over": 10_000, "unclosed": "warn", "reason": "kept by the codec"}
    budget = parse_budget("heap", ("8 MiB",), given_keywords)
    assert budget == Budget("heap", 8 * 2**20, 4096.0, 10_000, "warn", "kept by the codec")


def test_a_level_alone_is_read_in_the_unit_of_the_resource() -> None:
    assert parse_budget("heap", ("1 MiB",), {}).level == 2**20
    assert parse_budget("gauge:frames", (4,), {}).level == 4
    with pytest.raises(InputError, match="'1 MiB' is not a number"):
        parse_budget("fd", ("1 MiB",), {})


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (Budget("fd"), "no growth"),
        (Budget("fd", 0), "0"),
        (Budget("fd", 3), "3"),
        (Budget("heap", 8 * 2**20, 4096.0), "8.0 MiB, +4.0 KiB/iter"),
        (Budget("rss", 2**31, over=100_000), "2.0 GiB, over 100,000 iterations"),
        (Budget("fd", None, 0.5), "+0.5/iter"),
    ],
)
def test_its_text_is_what_it_allows(budget: Budget, text: str) -> None:
    assert str(budget) == text


@PROPERTY
@given(
    name=NAMES,
    arguments=st.lists(st.one_of(st.integers(), st.text(), st.floats(), st.none()), max_size=2),
    keywords=st.dictionaries(
        st.sampled_from(["per_iteration", "over", "unclosed", "reason", "level", "of"]),
        st.one_of(st.integers(), st.text(), st.floats(), st.none(), st.lists(st.integers())),
    ),
)
def test_any_mark_is_a_budget_or_a_budget_error(
    name: str, arguments: list[object], keywords: dict[str, object]
) -> None:
    try:
        budget = parse_budget(name, tuple(arguments), keywords)
    except InputError:
        return
    assert budget.level is None or budget.level >= 0
    assert budget.per_iteration >= 0
    assert budget.over is None or (budget.over >= 1 and budget.level is not None)
    assert budget.unclosed in ("fail", "warn", "allow")


def test_every_resource_is_found_and_every_gauge_is_an_exact_counter() -> None:
    of_ray = ["ray_actor", "ray_placement_group", "ray_ref", "ray_object", "ray_worker"]
    scarce = ["fd", "thread", "process", "shm", "disk", "task", *of_ray]
    memory = ["heap", "object", "block", "arrow", "vram", "mmap", "rss"]
    assert list(RESOURCES) == [*scarce, "plasma", *memory, "reference"]
    assert [name for name, one in RESOURCES.items() if one.scarce] == [*scarce, "vram", "reference"]
    assert [name for name, one in RESOURCES.items() if not one.default] == ["reference"]
    assert [name for name, one in RESOURCES.items() if one.is_pooled] == scarce
    assert [name for name in RESOURCES if default_budget(name).per_iteration] == ["rss"]
    assert [name for name in RESOURCES if not default_budget(name).judges_all_growth] == ["rss"]
    assert Budget("rss").judges_all_growth
    assert find_resource("gauge:frames").scarce
    with pytest.raises(KeyError):
        find_resource("frames")
