"""The limits of a process, and its memory cgroups of either version, read from a tree that looks like the kernel's."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_leakcheck.probes import resource_limits
from pytest_leakcheck.probes.resource_limits import (
    UNLIMITED,
    free_on,
    groups_of,
    memory_left,
    read_limits,
    tasks_left,
)

MIB = 1 << 20


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/job/rank\n", {"job/rank/memory.max": "max", "job/memory.max": f"{MIB}"}, [("job", MIB)]),
        (
            "0::/job/rank\n",
            {"job/rank/memory.max": f"{MIB}", "job/memory.max": f"{2 * MIB}"},
            [("rank", MIB), ("job", 2 * MIB)],
        ),
        ("5:cpu,memory:/job\n0::/\n", {"memory/job/memory.limit_in_bytes": f"{MIB}"}, [("job", MIB)]),
        ("4:memory:/job\n", {"memory/job/memory.limit_in_bytes": f"{(1 << 63) - 4096}"}, []),
        ("4:memory:/far\n", {"memory/memory.limit_in_bytes": f"{MIB}"}, [("memory", MIB)]),
        ("3:cpu:/job\n", {"memory/job/memory.limit_in_bytes": f"{MIB}"}, []),
    ],
    ids=["above", "both", "version 1", "version 1, unlimited", "container", "another controller"],
)
def test_those_with_a_limit_from_the_inside_out(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected: list[tuple[str, int]]
) -> None:
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(cgroup)
    for name, text in files.items():
        path = tmp_path / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = [(group.folder.name, group.limit) for group in groups_of(7, tmp_path / "proc", tmp_path / "groups")]
    assert found == expected


def test_where_nothing_can_be_read_there_is_none(tmp_path: Path) -> None:
    assert list(groups_of(7, tmp_path, tmp_path)) == []


def test_limits_are_those_of_the_process_and_the_machine() -> None:
    found = read_limits()
    assert found["fd"] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert found["heap"] == found["rss"]
    assert 0 < found["rss"] <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_the_tighter_of_machine_and_cgroup_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_limits, "groups_of", lambda: [SimpleNamespace(limit=MIB)])
    assert read_limits()["rss"] == MIB
    monkeypatch.setattr(resource_limits, "_machine_memory", lambda: MIB // 2)
    assert read_limits()["rss"] == MIB // 2


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A machine with 8 GiB left, as its files show it."""
    write(tmp_path / "proc", meminfo=f"MemTotal: 9 kB\nMemAvailable:    {8 << 20} kB\nSwapFree: 1 kB\n")
    write(tmp_path / "proc" / "self", cgroup="")
    return tmp_path


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_memory_is_left_by_the_machine_and_by_cgroups_of_either_version(tree: Path) -> None:
    places = tree / "proc", tree / "groups"
    assert memory_left(*places) == 8 << 30
    write(tree / "proc" / "self", cgroup="0::/job\n")
    write(tree / "groups" / "job", memory__max=f"{1000 * MIB}", memory__current=f"{700 * MIB}")
    # Without the file that says what can be reclaimed, nothing is known of the group.
    assert memory_left(*places) == 8 << 30
    write(tree / "groups" / "job", memory__stat=f"anon 1\ninactive_file {100 * MIB}\n")
    assert memory_left(*places) == 400 * MIB
    write(tree / "proc" / "self", cgroup="4:memory:/old\n")
    old = {"memory__limit_in_bytes": f"{300 * MIB}", "memory__usage_in_bytes": f"{250 * MIB}"}
    write(tree / "groups" / "memory" / "old", **old, memory__stat="total_inactive_file 0\n")
    assert memory_left(*places) == 50 * MIB


@pytest.mark.parametrize(("cgroup", "folder"), [("0::/job\n", "job"), ("8:pids:/job\n", "pids/job")])
def test_processes_are_left_by_the_cgroup(
    tree: Path, cgroup: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getuid", lambda: 0)
    write(tree / "proc" / "self", cgroup=cgroup)
    write(tree / "groups" / folder, pids__max="max\n", pids__current="6\n")
    assert tasks_left(tree / "proc", tree / "groups") == UNLIMITED
    write(tree / "groups" / folder, pids__max="60\n")
    assert tasks_left(tree / "proc", tree / "groups") == 54


def test_processes_are_left_by_the_limit_of_the_user(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for thread in ("7", "8", "9"):
        (tree / "proc" / "7" / "task" / thread).mkdir(parents=True)
    tasks = tree / "proc" / "7" / "task"
    if not (user := os.getuid()):
        # Root may start more than its limit.
        user = 1
        os.chown(tasks, user, user)
    monkeypatch.setattr(resource_limits, "getrlimit", lambda _: (100, 100))
    monkeypatch.setattr("os.getuid", lambda: user)
    assert tasks_left(tree / "proc", tree) == 97
    monkeypatch.setattr("os.getuid", lambda: user + 1)
    assert tasks_left(tree / "proc", tree) == 100


def test_a_file_system_without_a_number_of_entries_has_room_for_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = os.statvfs(tmp_path)
    size, entries = free_on(str(tmp_path))
    assert 0 < size <= true.f_blocks * true.f_frsize
    assert entries <= (true.f_files or UNLIMITED)
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_bavail=2, f_frsize=3, f_files=0, f_favail=0))
    assert free_on(str(tmp_path)) == (6, UNLIMITED)
