"""A world of ranks at each size: totals and single ranks are judged, and one that does not come to its end says why."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from processes_left import left_over, never_removed
from projects import Outcome, Project
from variants import variants

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peaks are read from /proc")
# So long each step of a world may take, in seconds; and so long it may take to say so.
STEP = 8
REPORTED = 10

# Each rank holds what it may; 64 are allowed in all, and no fewer than are lost by rounding down.
EXECUTOR = """
    import os
    import threading
    import pytest

    CAP = 64
    MEETINGS = {{}}

    @pytest.mark.scaling_budget(
        "world_size", [1, 2, 4], engine={engine!r},
        in_flight={{"total": "<= max(64, world_size)", "at_least": "64 - (world_size - 1)"}},
        rss={memory},
    )
    def test_rollouts(world_size, leakcheck):
        {join}
        cap = CAP if LEAKY else max(1, CAP // world_size)
        held = [bytearray(b"x") * (1 << 20) for _ in range(cap)]
        leakcheck.gauge("in_flight", lambda: len(held))
        assert 0 <= leakcheck.rank < world_size
        {leave}
"""
MEMORY = '{"total": "<= 64 MiB + 8 MiB * world_size", "per_rank": "<= 80 MiB"}'
# Until all ranks have what they hold.
MEET = "MEETINGS.setdefault(world_size, threading.Barrier(world_size)).wait()"
ENGINES = {
    "thread": {"memory": '"<= 72 MiB"', "join": "", "leave": MEET},
    "process": {"memory": MEMORY, "join": "", "leave": ""},
    "gloo": {
        "memory": MEMORY,
        "join": "import torch.distributed as dist; assert dist.get_world_size() == world_size",
        "leave": "dist.barrier(); assert dist.get_rank() == leakcheck.rank == int(os.environ['RANK'])",
    },
}


def executor(project: Project, engine: str, *, leaky: bool) -> Outcome:
    text = EXECUTOR.format(engine=engine, **ENGINES[engine]).replace("\n    ", "\n")
    project.write("test_it.py", f"LEAKY = {leaky}\n" + text)
    before = set(Path("/dev/shm").iterdir())
    temporary = project.folder / "tmp"
    temporary.mkdir(exist_ok=True)
    ran = project.run(TMPDIR=str(temporary))
    of_libraries = ("torch", "psm", "gloo", "sem.")
    came = {one for one in set(Path("/dev/shm").iterdir()) - before if one.name.startswith(of_libraries)}
    assert not never_removed(came)
    assert not [one.name for one in temporary.iterdir() if one.name.startswith((*of_libraries, "leakcheck"))]
    return ran


@pytest.mark.parametrize("engine", variants(["thread", "process"], ["gloo"]))
def test_a_cap_per_rank_that_was_meant_for_all_is_red(project: Project, engine: str) -> None:
    ran = executor(project, engine, leaky=True)
    found = ran.finding("test_rollouts", "gauge:in_flight")
    assert [point["peak"] for point in found["points"]] == [64, 128, 256]
    assert found["verdict"] == "over_budget"
    assert "in_flight at world_size 2: 128, at most 64 allowed" in ran.text
    assert re.search(r"^ +4 +256 +█{24}  64 \+ 64 \+ 64 \+ 64$", ran.text, re.MULTILINE)
    assert "each rank takes as much as one alone: divide what is meant for all ranks by world_size" in ran.one_line
    peaks = [point["peak"] for point in ran.finding("test_rollouts", "rss")["points"]]
    assert 3.9 < peaks[2] / peaks[0] < 4.1
    # The sum and, where each has its own, the highest: that is as it was.
    of_memory = [one["verdict"] for one in ran.findings if one["resource"] == "rss"]
    assert of_memory == (["over_budget"] if engine == "thread" else ["over_budget", "ok"])


@pytest.mark.parametrize("engine", variants(["thread", "process"], ["gloo"]))
def test_a_cap_that_is_shared_is_silent(project: Project, engine: str) -> None:
    ran = executor(project, engine, leaky=False)
    assert ran.last_line == "1 passed", ran.text
    found = ran.finding("test_rollouts", "gauge:in_flight")
    peaks = {point["size"]: point["peak"] for point in found["points"]}
    assert all(64 - (size - 1) <= peak <= max(64, size) for size, peak in peaks.items())
    recordings = [point["recordings"] for point in next(iter(ran.scaled.values()))["points"]]
    assert [len(ranks) for ranks in recordings] == ([1, 1, 1] if engine == "thread" else [1, 2, 4])


# An engine is a class: here, one that runs the ranks one after the other.
IN_TURN = """
    from dataclasses import replace
    from itertools import chain
    from pytest_leakcheck.plugin.isolation import engines

    class InTurn(engines.Subprocess):
        def run(self, sizing=None):
            answers = [super(InTurn, self).run(replace(sizing, engine="")) for _rank in range(sizing.ranks)]
            messages = tuple(chain.from_iterable(one.messages for one in answers))
            return replace(answers[0], messages=messages, stacks=("",) * sizing.ranks)

    engines.WORLDS["process"] = InTurn
"""


def test_an_added_engine_needs_nothing_else(project: Project) -> None:
    project.write("conftest.py", IN_TURN)
    ran = executor(project, "process", leaky=True)
    found = ran.finding("test_rollouts", "gauge:in_flight")
    assert ([point["peak"] for point in found["points"]], found["verdict"]) == ([64, 128, 256], "over_budget")
    recordings = [point["recordings"] for point in next(iter(ran.scaled.values()))["points"]]
    assert [len(ranks) for ranks in recordings] == [1, 2, 4]


def test_one_that_throttles_itself_is_red(project: Project) -> None:
    ran = project.run_test("""
        import pytest
        @pytest.mark.scaling_budget("world_size", [1, 2, 4], engine="thread",
                                    in_flight={"at_least": "64 - (world_size - 1)"})
        def test_it(world_size, leakcheck):
            leakcheck.gauge("in_flight", 64 // world_size ** 2)
        """)
    assert "in_flight at world_size 2: 32, at least 63 required" in ran.text


LOST = """
    import os, time
    import pytest

    @pytest.mark.scaling_budget("world_size", [2, 4, 8], engine={engine!r}, rss="<= 200 MiB")
    def test_world(world_size, leakcheck):
        with open("pids", "a") as file:
            file.write(f"{{os.getpid()}} ")
        if world_size == 2 and leakcheck.rank == 1:
            {act}
        if world_size == 2:
            {wait}
"""
WAIT = {"process": "time.sleep(60)", "gloo": "import torch.distributed as dist; dist.barrier()"}


def lost(project: Project, engine: str, act: str) -> Outcome:
    project.write("test_it.py", LOST.format(engine=engine, act=act, wait=WAIT[engine]))
    ran = project.run(f"--leakcheck-max-time={STEP}", "-p", "no:hypothesispytest")
    assert ran.last_line == "1 failed", ran.text
    assert not left_over(project.folder)
    assert reported_after(ran, project.folder) < STEP + REPORTED
    return ran


@pytest.mark.parametrize("engine", WAIT)
def test_a_rank_that_raises_fails_the_test_with_its_own_traceback(project: Project, engine: str) -> None:
    ran = lost(project, engine, 'raise ValueError("rank one is broken")')
    assert "E           ValueError: rank one is broken" in ran.text
    assert "failed in a separate process at world_size=2, rank 1 of 2" in ran.text
    assert ran.findings == []


@pytest.mark.parametrize("engine", variants(["process"], ["gloo"]))
def test_a_rank_that_is_killed_is_named(project: Project, engine: str) -> None:
    ran = lost(project, engine, "os.kill(os.getpid(), 9)")
    reason = "rank 1 of 2 died of SIGKILL (signal 9) at world_size=2, before the end of the test"
    assert ran.finding("test_world", "rss")["reason"] == reason


@pytest.mark.laboratory
@pytest.mark.parametrize("engine", WAIT)
def test_a_rank_that_never_answers_is_told_from_those_that_wait_for_it(project: Project, engine: str) -> None:
    began = time.monotonic()
    ran = lost(project, engine, "time.sleep(1000)")
    reason = ran.finding("test_world", "rss")["reason"]
    if engine == "gloo":
        assert reason == f"hung at world_size=2: rank 1 of 2 made no progress for {STEP} s"
        assert re.search(r"stack of rank 0.*in barrier.*stack of rank 1.*line 9 in test_world", ran.text, re.DOTALL)
    else:
        # Nothing tells one sleep from another.
        assert reason == f"hung at world_size=2: rank 0, 1 of 2 made no progress for {STEP} s"
    assert re.search(r"stack of rank 1.*line 9 in test_world", ran.text, re.DOTALL)
    spent = ran.recordings[0]["seconds"]
    assert spent <= time.monotonic() - began


@pytest.mark.laboratory
@pytest.mark.parametrize("engine", WAIT)
def test_a_rank_that_exits_too_early_is_named(project: Project, engine: str) -> None:
    # If no rank waits for another, nothing may notice the early exit; the test then runs into its time limit.
    ran = lost(project, engine, "os._exit(0)")
    reason = ran.finding("test_world", "rss")["reason"]
    assert reason.endswith("at world_size=2, before the end of the test") or engine == "process"
    assert "rank 1 of 2 exited with status 0" in reason or engine == "process"


def reported_after(ran: Outcome, folder: Path) -> float:
    """Seconds from when the last process of the world began its body to the end of the run."""
    return ran.ended - (folder / "pids").stat().st_mtime


# The body looks at all processes of the world, its launcher included: they are a process group.
LISTENS = """
    import os, re
    from pathlib import Path
    import psutil, pytest

    def listening():
        group = os.getpgrp() if "RANK" in os.environ else None
        pids = [pid for pid in psutil.pids() if group and os.getpgid(pid) == group] or [os.getpid()]
        links = [os.readlink(one) for pid in pids for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()]
        inodes = {one[8:-1] for one in links if one.startswith("socket:")}
        rows = [row.split() for kind in ("tcp", "tcp6") for row in Path(f"/proc/net/{kind}").read_text().splitlines()]
        return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}

    @pytest.mark.scaling_budget("world_size", [1, 2, 4], engine="gloo", fd="O(n)")
    def test_it(world_size):
        import torch.distributed as dist
        dist.barrier(group=dist.new_group())
        Path("seen").open("a").write(f"{world_size} {' '.join(sorted(listening()))}\\n")
        dist.barrier()
        assert not {"MASTER_ADDR", "MASTER_PORT"} & os.environ.keys()
"""


@pytest.mark.parametrize("leakcheck", variants([False], [True]))
def test_ranks_listen_on_loopback_only(project: Project, *, leakcheck: bool) -> None:
    ran = project.run_test(LISTENS, leakcheck=leakcheck, GLOO_SOCKET_IFNAME="eth0")
    assert ran.last_line == "1 passed", ran.text
    addresses: dict[str, set[str]] = {}
    for line in (project.folder / "seen").read_text().splitlines():
        size, *found = line.split()
        addresses.setdefault(size, set()).update(found)
    # That is how /proc shows 127.0.0.1. A group of one need not listen.
    assert addresses.pop("1") <= {"0100007F"}
    assert addresses == ({size: {"0100007F"} for size in "24"} if leakcheck else {})


@pytest.mark.laboratory
def test_worlds_of_several_workers_keep_apart(project: Project) -> None:
    body = """
        @pytest.mark.scaling_budget("world_size", [1, 2, 4], engine="process", rss="<= 64 MiB")
        def test_{name}(world_size, worker_id):
            began = time.monotonic()
            time.sleep(0.2)
            with open("spans", "a") as file:
                file.write(f"{name}{{world_size}} {{worker_id}} {{began}} {{time.monotonic()}}\\n")
    """
    tests = "".join(body.format(name=name).replace("\n        ", "\n") for name in "ab")
    ran = project.run_test(f"import time\nimport pytest\n{tests}", "-n2")
    assert ran.last_line == "2 passed", ran.text
    spans = [line.split() for line in (project.folder / "spans").read_text().splitlines()]
    assert len({worker for _world, worker, _began, _ended in spans}) == 2
    for world, _worker, began, ended in spans:
        others = [(float(one[2]), float(one[3])) for one in spans if one[0] != world]
        assert all(float(ended) <= start or end <= float(began) for start, end in others)


@pytest.mark.laboratory
def test_each_rank_has_folders_of_its_own(project: Project) -> None:
    ran = project.run_test("""
        import pytest
        @pytest.mark.scaling_budget("world_size", [1, 2, 4], engine="process", rss="<= 64 MiB")
        def test_it(world_size, leakcheck, tmp_path):
            (tmp_path / "rank").write_text(str(leakcheck.rank))
            assert [one.name for one in tmp_path.iterdir()] == ["rank"]
        """)
    assert ran.last_line == "1 passed", ran.text


@pytest.mark.parametrize("judged", [False, True])
def test_what_is_not_judged_has_a_group_of_one(judged: bool, project: Project) -> None:
    ran = project.run_test(
        """
        import pytest
        import torch.distributed as dist
        @pytest.mark.scaling_budget("world_size", [1, 2, 4], engine="gloo", rss="<= 64 MiB")
        @pytest.mark.leakcheck(False)
        def test_it(world_size):
            dist.barrier()
            assert dist.get_world_size() == world_size
        def test_after():
            assert not dist.is_initialized()
        """,
        leakcheck=judged,
    )
    assert ran.last_line == "2 passed"


def test_ranks_of_ray_need_ray(project_here: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    text = """
        import pytest
        @pytest.mark.scaling_budget("world_size", [1, 2, 4], engine="ray", rss="<= 64 MiB")
        def test_it(world_size):
            assert world_size == 1
        """
    assert project_here.run_test_here(text, leakcheck=False).last_line == "1 passed"
    ran = project_here.run_test_here(text)
    assert ran.last_line == "1 skipped"
    assert ran.finding("test_it", "rss")["reason"] == (
        "engine=\"ray\" needs Ray, which is not installed here: pip install 'pytest-leakcheck[ray]', or have plain "
        'processes as ranks (engine="process")'
    )
