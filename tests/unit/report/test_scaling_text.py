"""Whole reports of tests that were run over an axis, letter by letter."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from pytest_leakcheck.config.scaling_marker import parse_bound
from pytest_leakcheck.judge.conclude_finding import Policy, conclude_sizes
from pytest_leakcheck.judge.judge_scaling import judge_points
from pytest_leakcheck.model.culprit import CreationPath, Culprit, Owner, Site, Step
from pytest_leakcheck.model.finding import Finding, Verdict
from pytest_leakcheck.model.recording import Engine, Point, Recording, Scaled, UserPhase
from pytest_leakcheck.model.resources import find_resource
from pytest_leakcheck.report.finding_text import block, headline
from pytest_leakcheck.report.summary import Tally, summary_lines

MIB = 1 << 20
TEST = "tests/test_hub.py::test_upload"
SITE = Site("/work/hub.py", 40, "Uploader.add", "read_bytes()")
CULPRIT = Culprit(
    "rss",
    CreationPath((Site("/work/test_hub.py", 12, "test_upload", "Uploader.add()"), SITE), SITE, "call"),
    owner=Owner(
        "Uploader.add() local 'self'.parts",
        "frame of Uploader.add()",
        (
            Step("frame of Uploader.add()", "local 'self'"),
            Step("an instance", ".parts"),
            Step("list of 64", "[63]", suspect=True),
        ),
        "64 × bytes, 1,048,609 B each",
        0.0,
    ),
    source="self.parts.append(path.read_bytes())",
)


def scaled(
    axis: str, sizes: Sequence[int], peaks: dict[str, Sequence[int]], engine: Engine = "", children: int = 0
) -> Scaled:
    """Peaks by resource and size; of each rank where there is an engine."""
    points = []
    for at, size in enumerate(sizes):
        recording = Recording(
            TEST,
            (),
            exact=True,
            peaks={name: one[at] for name, one in peaks.items()},
            phases=(UserPhase("staged", {"rss": 3 * MIB}), UserPhase("sent", {"rss": MIB}, 4)) if not engine else (),
        )
        ranks = size if engine in ("process", "gloo") else 1
        points.append(Point(size, (recording,) * ranks, children if at else 0, 1.5))
    return Scaled(axis, engine, tuple(points))


def finding(found: Scaled, bounds: dict[str, str], culprits: Sequence[Culprit] = (), reason: str = "") -> Finding:
    judged: list[Verdict] = []
    for resource, text in bounds.items():
        bound = parse_bound(text, found.axis, find_resource(resource).unit)
        peaks = found.peaks(resource, "total")
        judged.append(judge_points(resource, found.axis, found.sizes, peaks, bound, exact=found.is_exact(resource)))
    recording = Recording(TEST, (), seconds=9.25)
    return conclude_sizes(
        recording, bounds, judged, found, Policy(("leak", "over_budget")), reason=reason, culprits=culprits
    )


SIZES = (8, 16, 32, 64, 128, 256)
GROWING = scaled("shards", SIZES, {"rss": [5 * MIB + size * MIB for size in SIZES]})
STILL = scaled("shards", SIZES, {"rss": [5 * MIB for _ in SIZES]})


def expect(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def test_a_law_that_is_exceeded() -> None:
    found = finding(GROWING, {"rss": "O(1)"}, [CULPRIT], "a pod has 2 GiB")
    assert block(found) == expect(
        """
        rss O(n): +1.0 MiB per shard, O(1) allowed

          over budget  O(n): +1.0 MiB per shard, O(1) allowed
          rss            8  13.0 MiB  █
                        16  21.0 MiB  ██
                        32  37.0 MiB  ███
                        64  69.0 MiB  ██████
                       128   133 MiB  ████████████
                       256   261 MiB  ████████████████████████
          law          O(n): +1.0 MiB per shard, exponent 1.00 (1.00 to 1.00)
          phases       staged: rss 3.0 MiB
                       sent: rss 1.0 MiB (highest of 4)
          measured     the test's body, in a fresh process per size; memory read between
                       calls and from the kernel's high-water mark, child processes read
                       from outside
          allocated    work/hub.py:40 in Uploader.add()
                         self.parts.append(path.read_bytes())
                       called from work/test_hub.py:12 in test_upload()
          held by      Uploader.add() local 'self'.parts
                       frame of Uploader.add()
                       └ local 'self' → an instance
                         └ .parts → list of 64   <- keeps it
                           └ [63] → bytes, 1,048,609 B each
          budget       O(1): a pod has 2 GiB
          finding      69a9cd-rss-Uploader-add
        """
    )


def test_a_world_shows_what_each_rank_had() -> None:
    world = scaled("world_size", (1, 2, 4), {"rss": [65 * MIB] * 3, "gauge:in_flight": [64, 64, 64]}, "gloo")
    found = finding(world, {"gauge:in_flight": "<= max(64, world_size)", "rss": "<= 1 GiB"})
    assert block(found) == expect(
        """
        in_flight at world_size 2: 128, at most 64 allowed (max(64, world_size))

          over budget  at world_size 2: 128, at most 64 allowed (max(64, world_size))
          in_flight    1   64  ██████
                       2  128  ████████████  64 + 64
                       4  256  ████████████████████████  64 + 64 + 64 + 64
          law          O(n): +64 per world_size
          rss          1  65.0 MiB  ██████
                       2   130 MiB  ████████████  65.0 MiB + 65.0 MiB
                       4   260 MiB  ████████████████████████  65.0 MiB each
          law          O(n): +65.0 MiB per world_size
          measured     the test's body, in a fresh process per rank, joined over gloo;
                       memory read between calls and from the kernel's high-water mark,
                       child processes of ranks not included; counters are read at each
                       call and return, not within a C call
          finding      d7e31f-gauge:in_flight
        """
    )


def test_children_are_told_apart() -> None:
    found = finding(scaled("n", (1, 2, 4), {"rss": [MIB, MIB, MIB]}, children=50 * MIB), {"rss": "<= 40 MiB"})
    assert "4  51.0 MiB  ████████████████████████  50.0 MiB of it in children" in block(found)


def test_fixed_it_says_what_would_have_shown() -> None:
    found = finding(STILL, {"rss": "O(1)"})
    assert (found.colour, found.verdict.outcome) == ("green", "ok")
    assert headline(found) == "rss ok over shards 8…256 (budget O(1))"
    assert list(summary_lines([found], Tally([found]), "sensitivity")) == [
        ("dim", "  sensitivity (each ok test would have caught): rss 1.0 KiB/shard")
    ]
