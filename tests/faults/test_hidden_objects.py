"""`gc.freeze` in a test hides new objects from the collector, so that a count of objects cannot be judged."""

from __future__ import annotations

import pytest

from projects import Project

TEST = """
    import gc
    import pytest

    KEPT = []

    @pytest.mark.{mark}
    def test_it({fixture}):
        {work}
"""
KEEP = "KEPT.append([[] for _ in range(10)])"
BLOCK = "with leakcheck.budget(object=0): {}"


@pytest.mark.parametrize("mark", ["object_budget(0)", "leakcheck"])
def test_a_leak_that_is_frozen_is_not_ok(project: Project, mark: str) -> None:
    project.write("test_it.py", TEST.format(mark=mark, fixture="", work=f"{KEEP}; gc.freeze()"))
    (verdict,) = [one for (_test, resource), one in project.run().verdicts.items() if resource == "object"]
    assert verdict == "inconclusive"


def test_older_objects_are_not_held_against_a_clean_test(project: Project) -> None:
    """All objects of the program become visible in the fifth iteration."""
    work = "KEPT[:] = [KEPT[0] + 1 if KEPT else 1]; KEPT[0] == 5 and gc.unfreeze()"
    project.write("test_it.py", TEST.format(mark="object_budget(0)", fixture="", work=work))
    assert project.run().verdicts["test_it", "object"] == "inconclusive"


def test_in_a_block(project: Project) -> None:
    work = BLOCK.format(f"{KEEP}; gc.freeze()")
    project.write("test_it.py", TEST.format(mark="filterwarnings", fixture="leakcheck", work=work))
    assert project.run().verdicts["test_it", "object"] == "inconclusive"


@pytest.mark.parametrize(("work", "expected"), [(KEEP, "leak"), ("gc.freeze(); gc.unfreeze()", "ok")])
def test_what_stays_visible_is_judged(project: Project, work: str, expected: str) -> None:
    project.write("test_it.py", TEST.format(mark="object_budget(0)", fixture="", work=work))
    assert project.run().verdicts["test_it", "object"] == expected


def test_an_owner_is_named_where_the_test_unfreezes_all(project: Project) -> None:
    """All objects then look new, so that only the containers that grow are evidence."""
    work = "gc.unfreeze(); KEPT.append([[]])"
    finding = project.run_test(TEST.format(mark="object_budget(0)", fixture="", work=work)).finding("test_it", "object")
    assert finding["owner"]["name"] == "test_it.KEPT"
    assert finding["held"] == []
