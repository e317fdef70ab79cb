"""Whole reports, letter by letter, as they stand under a failed test."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_leakcheck.config.budget import Budget, parse_budget
from pytest_leakcheck.config.plan import Plan
from pytest_leakcheck.judge.conclude_finding import Policy, Result, conclude
from pytest_leakcheck.judge.judge_series import Context, judge
from pytest_leakcheck.model.culprit import CreationPath, Culprit, Owner, Remainder, Site, Step
from pytest_leakcheck.model.finding import Finding, Verdict
from pytest_leakcheck.model.recording import Collector, Recording, Series
from pytest_leakcheck.report.finding_text import block, floor_text, headline, styled_lines

PROPERTY = settings(max_examples=50, deadline=None, derandomize=True)
AUTO = ("leak", "over_budget", "unclosed")
NO_HEAP = "the C library has no mallinfo2 (glibc 2.33 or newer has it); rss_budget needs none"


def finding(
    test: str,
    series: tuple[Series, ...],
    budgets: tuple[Budget, ...],
    held: dict[str, tuple[Remainder, ...]] | None = None,
    *,
    collector: Collector = "on",
) -> Finding:
    """Judged as the runner does: in order, up to the first red."""
    verdicts: list[Verdict] = []
    missing: dict[str, str] = {}
    recording = Recording(f"tests/test_loader.py::{test}", series, 3, 1.25, collector, limits={"fd": 1024})
    for budget in budgets:
        read = recording.find(budget.resource)
        if read is None:
            missing[budget.resource] = NO_HEAP
            verdicts.append(Verdict(budget.resource, "unavailable", reason=NO_HEAP))
            continue
        verdict = judge(read, budget, Context(final=True))
        assert verdict is not None
        verdicts.append(verdict)
        if verdict.outcome in AUTO:
            break
    return conclude(Result(Plan(recording.test, budgets), recording, tuple(verdicts), held or {}), Policy(AUTO))


LEAK = finding(
    "test_switch[front-camera]",
    (
        Series("fd", tuple(range(11, 29)), (0,) * 17),
        Series("heap", tuple(10_000_000 + 1000 * i for i in range(18))),
        Series("object", (4,) * 18),
    ),
    (Budget("fd", 0, reason="one file at a time"), Budget("heap")),
    {
        "fd": (Remainder("/data/episodes/2024/front/video_0001.mp4", 16), Remainder("socket", 1)),
        "thread": (Remainder("Thread-N (decode)", 2),),
        "process": (),
    },
)
OVER_BUDGET = finding(
    "test_once",
    (Series("fd", (11,) * 7 + (12,) * 40, (0,) * 46),),
    (Budget("fd", 0),),
    {"fd": (Remainder("/dev/null", 1),)},
    collector="off",
)
UNCLOSED = finding(
    "test_cycle", (Series("fd", (11,) * 18, (2,) * 17),), (Budget("fd", 0),), {"fd": (Remainder("/data/a.mp4", 2),)}
)
INCONCLUSIVE = finding("test_short", (Series("fd", (11,) * 9, (0,) * 8),), (Budget("fd", 0),))
UNAVAILABLE = finding("test_heap", (Series("fd", (11,) * 14, (0,) * 13),), (Budget("fd"), Budget("heap", 0)))
OK = finding(
    "test_ok",
    (Series("fd", (11,) * 7 + (12,) * 53, (0,) * 59), Series("heap", (10_000_000,) * 60)),
    (Budget("fd"), parse_budget("heap", ("1 MiB",), {})),
)
GOLDEN: list[tuple[Finding, str]] = [
    (
        LEAK,
        """
fd +1.0/iter — 16 × video_0001.mp4 + 1 more (17 iterations)

  leak         +1.0/iter sustained over 17 iterations
  fd           11 → 28             ▁▁▂▂▃▃▄▄▅▅▆▆▇▇██  +1.0/iter  exact
  also growing heap +1000 B/iter, +16.6 KiB so far (not judged)
  remaining    16 × /data/episodes/2024/front/video_0001.mp4 from 17 iterations
               1 × socket
               2 × Thread-N (decode)
  means        this process reaches its limit of 1,024 descriptors (ulimit -n)
               after ≈ 1,016 iterations
  budget       0: one file at a time
  finding      f7bfd3-fd
  next         pytest --leakcheck "tests/test_loader.py::test_switch[front-camera]"
""",
    ),
    (
        OVER_BUDGET,
        """
fd +1 — 1 × null

  over budget  one-off +1 at iteration 7, 0 allowed
  fd           11 → 12             ▁▁▁█████████████  +1  exact
  remaining    1 × /dev/null
  collector    disabled by the program: cyclic garbage counts as retained
  advice       if it is meant to stay: fd_budget(1), or fd_budget() to bound
               growth only
  finding      66542c-fd
  next         pytest --leakcheck "tests/test_loader.py::test_once"
""",
    ),
    (
        UNCLOSED,
        """
fd +2.0/iter unclosed — 2 × a.mp4 (17 iterations)

  unclosed     2 descriptors per iteration released by the garbage collector
               only
  fd           11 → 11             ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁  +2.0/iter  released by GC
  released     2 × /data/a.mp4
  means        without garbage collection, this process reaches its limit of
               1,024 descriptors (ulimit -n) after ≈ 510 iterations
  advice       close them when done: the collector runs late, or never if it is
               disabled
  finding      e81113-fd
  next         pytest --leakcheck "tests/test_loader.py::test_cycle"
""",
    ),
    (
        INCONCLUSIVE,
        """
fd inconclusive: 8 iterations, 13 needed

  inconclusive 8 iterations, 13 needed
  fd           11 → 11             ▁▁▁▁▁▁▁▁▁  +0  exact
  advice       about 13 iterations would decide it: --leakcheck-iterations,
               --leakcheck-max-time
  finding      bd8b8b-fd
  next         pytest --leakcheck "tests/test_loader.py::test_short"
""",
    ),
    (
        UNAVAILABLE,
        """
heap unavailable: the C library has no mallinfo2 (glibc 2.33 or newer has it); …

  unavailable  the C library has no mallinfo2 (glibc 2.33 or newer has it);
               rss_budget needs none
  heap         unavailable: the C library has no mallinfo2 (glibc 2.33 or newer
               has it); rss_budget needs none
  also ok      fd
  finding      afce15-heap
  next         pytest --leakcheck "tests/test_loader.py::test_heap"
""",
    ),
    (
        OK,
        """
fd ok (59 iterations)

  ok           one-off +1 at iteration 7
  fd           11 → 12             within budget; would have caught 1 in 5 iter
  heap         9.5 MiB → 9.5 MiB   within budget; would have caught 38 B/iter
  finding      bdaa30-fd
  next         pytest --leakcheck "tests/test_loader.py::test_ok"
""",
    ),
]


@pytest.mark.parametrize(("one", "text"), GOLDEN, ids=[one.verdict.outcome for one, _ in GOLDEN])
def test_the_whole_block(one: Finding, text: str) -> None:
    command = f'pytest --leakcheck "{one.test}"'
    assert block(one, command=command) == text.strip("\n")
    assert block(one) == text.strip("\n").rpartition("\n")[0]


def test_a_wide_terminal_is_filled_and_a_name_is_not_broken() -> None:
    source = 'found = [{"name": name, "type": kind, "data": value} for name, kind, value in read_all(connection)]'
    name = "application.clients.redis_client.connection_pool.connections_that_are_in_use_now"
    line = Site("/app/loader.py", 3, "load")
    culprit = Culprit(
        "fd", CreationPath((line,), line), owner=Owner(name, "module application", (), "", 1.0), source=source
    )
    one = replace(LEAK, culprit=culprit)
    wide, narrow = (block(one, width).splitlines() for width in (120, 80))
    assert any(line.endswith(source) for line in wide)
    assert max(map(len, wide)) <= 120
    assert not any(line.endswith(source) for line in narrow)
    assert any(line.endswith(name) for line in narrow)


def test_what_matters_has_a_style() -> None:
    site = Site("/project/src/loader.py", 41, "load", "open()")
    owner = Owner("loader.KEPT", "module loader", (Step("module loader", "KEPT", suspect=True),), "20 × int", 1.0)
    culprit = Culprit("fd", CreationPath((site,), site, "call"), owner=owner, source="KEPT.append(open(path))")
    one = finding("test_kinds", (Series("fd", tuple(range(18))),), (Budget("fd", 0),))
    parts = [part for line in styled_lines(replace(one, culprit=culprit), command="pytest x") for part in line]
    styles = {text.strip(): style for text, style in parts}
    assert [text.strip() for text, style in parts if style == "verdict"] == [
        "fd +1.0/iter — loader.py:41 open() (17 iterations)",
        "leak",
        "+1.0/iter sustained over 17 iterations",
        "<- grows by 1.0/iter",
    ]
    assert (styles["KEPT.append(open(path))"], styles["pytest x"]) == ("source", "command")
    assert (styles["held by"], styles["loader.KEPT"], styles["└ KEPT → int"]) == ("label", "plain", "plain")


WORDS = st.text("ab_/ .", min_size=1, max_size=120)
HELD = st.builds(Remainder, WORDS.map("/{}".format) | WORDS.map("Thread-N ({})".format), st.integers(1, 10**6))


@settings(PROPERTY, max_examples=20)
@given(
    held=st.lists(HELD, max_size=4),
    first=st.integers(0, 2**50),
    slope=st.integers(1, 2**40),
    resource=st.sampled_from(["fd", "heap"]),
)
def test_nothing_that_is_held_makes_a_line_wider(held: list[Remainder], first: int, slope: int, resource: str) -> None:
    series = Series(resource, tuple(first + slope * i for i in range(18)))
    one = finding("test_wide", (series,), (Budget(resource, 0, reason="said at length " * 9),), {resource: tuple(held)})
    first_line, *lines, _next = block(one).splitlines()
    assert len(first_line) <= 80
    assert max(map(len, lines)) <= 80


def test_many_kinds_are_counted_after_the_ninth() -> None:
    kinds = tuple(Remainder(f"/data/{i:02}.mp4", 1) for i in range(12))
    one = finding("test_kinds", (Series("fd", tuple(range(18))),), (Budget("fd", 0),), {"fd": kinds})
    lines = block(one).splitlines()
    assert "               1 × /data/08.mp4" in lines
    assert "               and 3 more kinds" in lines
    assert not any("09.mp4" in line for line in lines)


def test_a_counter_that_is_undecided_beside_a_leak_says_so() -> None:
    heap = Series("heap", tuple(10_000_000 + 1000 * i for i in range(18)))
    both = heap, Series("fd", tuple(range(18)))
    lines = block(finding("test_both", both, (Budget("heap"), Budget("fd", 0)))).splitlines()
    assert [line.rpartition("  ")[2] for line in lines if line.startswith(("  heap ", "  fd "))] == [
        "exact",
        "(not decided)",
    ]
    alone = block(finding("test_alone", (heap,), (Budget("heap"),)))
    assert "(not decided)" not in alone


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        (Verdict("fd", "ok", floor=0.1), "1 in 10 iter"),
        (Verdict("fd", "ok", floor=0.383), "1 in 3 iter"),
        (Verdict("fd", "ok", floor=1.0), "1.0/iter"),
        (Verdict("heap", "ok", floor=17.0), "17 B/iter"),
        (Verdict("heap", "ok", floor=1536.0), "1.5 KiB/iter"),
        (Verdict("object", "ok", floor=1.0), "1/iter"),
        (Verdict("fd", "leak"), ""),
    ],
)
def test_the_floor_in_words(verdict: Verdict, text: str) -> None:
    assert floor_text(verdict) == text


def test_a_long_number_of_names_leaves_the_first_and_the_count() -> None:
    kinds = (Remainder("/data/" + "a" * 90 + ".mp4", 17), Remainder("socket", 1), Remainder("pipe", 1))
    one = finding("test_kinds", (Series("fd", tuple(range(18))),), (Budget("fd", 0),), {"fd": kinds})
    line = headline(one)
    assert line.startswith("fd +1.0/iter — 17 × aaa")
    assert line.endswith("a… + 2 more")
    assert len(line) == 80


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (120, "fd +1.0/iter — loader.py:41 av.container.open() (17 iterations, budget 3)"),
        (60, "fd +1.0/iter — loader.py:41 av.container.open()"),
        (45, "fd +1.0/iter — loader.py:41"),
        (20, "fd +1.0/iter — loader.py:41"),
    ],
)
def test_the_first_line_gives_up_words_before_it_gives_up_the_place(width: int, line: str) -> None:
    one = finding("test_kinds", (Series("fd", tuple(range(18))),), (Budget("fd", 3),))
    site = Site("/project/src/loader.py", 41, "load", "av.container.open()")
    assert headline(replace(one, culprit=Culprit("fd", CreationPath((site,), site, "call"))), width) == line
