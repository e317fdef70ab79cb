"""The limits of a process, and its memory cgroups of either version, read from a tree that looks like the kernel's."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_leakcheck.probes import resource_limits
from pytest_leakcheck.probes.resource_limits import groups_of, read_limits

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
