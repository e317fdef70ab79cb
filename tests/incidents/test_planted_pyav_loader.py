"""Regressions of incident 2 turn the tests of its fixed arm red, and refactorings do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from planting import Change, judge_change, red_findings
from projects import Project

OPENS = "        self.container = av.open(str(path))\n"
CLOSES = "            self.container.close()\n            del self.stream, self._decoded\n"
NO_LOADER = "        self._opened: list[Loader[T] | Generator[T, Any, Any]] = []\n"
ON, WORKERS = "TestCollectorOn", "fork-prefetch2-gc_off"
ADAPTIVE = ("--leakcheck-max-time=120",)


def one_left_out(tests: str) -> Change:
    edit = ("reversed(self._opened)", "reversed(self._opened[1:])")
    return Change("closes all loaders but the first", {"fixed.py": [edit]}, tests, ADAPTIVE)


# What is changed, with the resource, the verdict and the slope that must be found.
REGRESSIONS = [
    ("pyav_loader", one_left_out(ON), ("fd", "unclosed", 1)),
    ("pyav_workers", one_left_out(WORKERS), ("fd", "leak", 1)),
    (
        "pyav_loader",
        Change(
            "closes iterators, not loaders",
            {
                "fixed.py": [
                    ("            self._opened.append(loader)\n", ""),
                    ("            if isinstance(current[-1], Generator):\n    ", ""),
                ]
            },
            "TestOtherLoaders",
            ADAPTIVE,
        ),
        ("fd", "unclosed", 9),
    ),
    (
        "pyav_loader",
        Change(
            "stores the loaders by camera: one of three",
            {
                "fixed.py": [
                    (NO_LOADER, "        self._opened: Any = {}\n"),
                    ("for open_loader in self._loaders.values():", "for key, open_loader in self._loaders.items():"),
                    ("self._opened.append(loader)", "self._opened[key[0]] = loader"),
                    ("reversed(self._opened)", "self._opened.values()"),
                ]
            },
            ON,
            ADAPTIVE,
        ),
        ("fd", "unclosed", 6),
    ),
    (
        "pyav_loader",
        Change(
            "opens each video again to learn its rate",
            {"fixed.py": [(OPENS, f"{OPENS}        self.rate = av.open(str(path)).streams.video[0].average_rate\n")]},
            ON,
            ADAPTIVE,
        ),
        ("fd", "unclosed", 9),
    ),
    (
        "pyav_loader",
        Change(
            "drops its references in place of closing",
            {"fixed.py": [(CLOSES, "            del self.container, self.stream, self._decoded\n")]},
            ON,
            ADAPTIVE,
        ),
        ("fd", "unclosed", 9),
    ),
    (
        "pyav_loader",
        Change(
            "keeps a thumbnail of each chunk",
            {
                "fixed.py": [
                    ('T = TypeVar("T")\n', 'T = TypeVar("T")\nTHUMBNAILS: list[Any] = []\n'),
                    (
                        "        frames = zip(*current, strict=True)\n",
                        "        THUMBNAILS.append(next(current[0]))\n        frames = zip(*current, strict=True)\n",
                    ),
                ]
            },
            ON,
            ADAPTIVE,
        ),
        ("heap", "leak", None),
    ),
]
WITH_A_STACK = Change(
    "closes by an ExitStack",
    {
        "fixed.py": [
            ("from pathlib import Path\n", "from contextlib import ExitStack\nfrom pathlib import Path\n"),
            (NO_LOADER, "        self._stack = ExitStack()\n"),
            ("self._opened.append(loader)", "self._stack.callback(loader.close)"),
            ("self._opened.append(current[-1])", "self._stack.callback(current[-1].close)"),
            ("        errors = []\n", "        self._stack.close()\n        errors: list[Exception] = []\n"),
            ("for opened in reversed(self._opened):", "for opened in ():"),
            ("        self._opened.clear()\n", ""),
        ]
    },
    ON,
    ADAPTIVE,
)


def persistent(tests: str) -> Change:
    return Change(
        "opens each video once, and seeks",
        {
            "fixed.py": [
                ('T = TypeVar("T")\n', 'T = TypeVar("T")\nCONTAINERS: dict[Path | str, Any] = {}\n'),
                (
                    OPENS,
                    "        if path not in CONTAINERS:\n            CONTAINERS[path] = av.open(str(path))\n"
                    "        self.container = CONTAINERS[path]\n",
                ),
                (CLOSES, "            del self.stream, self._decoded\n"),
            ]
        },
        tests,
        ADAPTIVE,
    )


REFACTORINGS = [
    ("pyav_loader", WITH_A_STACK),
    ("pyav_loader", persistent(ON)),
    ("pyav_workers", persistent(WORKERS)),
]


@pytest.mark.laboratory
@pytest.mark.parametrize(("name", "change", "expected"), REGRESSIONS, ids=lambda one: getattr(one, "what", None))
def test_a_regression_is_red(
    project: Project, name: str, change: Change, expected: tuple[str, str, float | None]
) -> None:
    ran = judge_change(project, name, change)
    resource, verdict, slope = expected
    assert {one[1:] for one in red_findings(ran)} == {(resource, verdict)}, ran.text
    (found,) = (one for one in ran.findings if one["colour"] == "red")
    assert slope in (None, found["slope"]), ran.text
    # The line that opens what is not closed.
    assert resource != "fd" or Path(found["site"]["file"]).parent.name == "pyav_loader", ran.text


@pytest.mark.laboratory
@pytest.mark.parametrize(("name", "change"), REFACTORINGS, ids=lambda one: getattr(one, "what", None))
def test_a_refactoring_is_green(project: Project, name: str, change: Change) -> None:
    ran = judge_change(project, name, change)
    assert {one["verdict"] for one in ran.findings} == {"ok"}, ran.text
    assert ran.status == 0, ran.text
