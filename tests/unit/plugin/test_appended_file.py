from __future__ import annotations

import os
import re
import resource
from pathlib import Path

import pytest

from pytest_leakcheck.model.regular_file import FileError, Ours
from pytest_leakcheck.plugin.undisturbed import AppendedFile

# As the operating system's bytes arrive in Python.
NAME = os.fsdecode(b"caf\xe9")
EARLIER = Ours("an earlier file", re.compile(b"earlier"))


def own_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def begun(path: Path) -> AppendedFile:
    file = AppendedFile(path)
    file.begin("", EARLIER)
    return file


def test_each_text_is_on_disk_at_once_and_no_descriptor_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("earlier")
    before = own_descriptors()
    file = begun(path)
    assert path.read_text() == ""
    for number in range(3):
        file.write(f"{number} naïve {NAME}\n")
        assert path.read_text(encoding="utf-8").split("\n")[number] == f"{number} naïve caf\\udce9"
        assert own_descriptors() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_leads_to_what_was_written(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("earlier")
    target.chmod(0o600)
    link.symlink_to(target)
    begun(link).write("new")
    assert link.is_symlink()
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("new", 0o600)


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "file"):
        with pytest.raises(FileError, match=r"a folder, not a regular file|No such file"):
            begun(path)


def test_what_could_not_be_written_is_written_next(tmp_path: Path) -> None:
    file = begun(tmp_path / "file")
    file.write("one\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The kernel takes two bytes of the next text.
    resource.setrlimit(resource.RLIMIT_FSIZE, (6, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.write("two\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.path.read_text() == "one\ntw"
    file.write("three\n")
    assert file.path.read_text() == "one\ntwo\nthree\n"


def test_a_file_that_was_removed_is_not_begun_again(tmp_path: Path) -> None:
    file = begun(tmp_path / "file")
    file.path.unlink()
    with pytest.raises(FileNotFoundError, match="the file or its folder was removed"):
        file.write("text")
    assert list(tmp_path.iterdir()) == []


def test_another_file_in_its_place_is_not_written_to(tmp_path: Path) -> None:
    file = begun(tmp_path / "file")
    (tmp_path / "other").write_text("other")
    (tmp_path / "other").rename(file.path)
    with pytest.raises(FileNotFoundError, match="the file or its folder was removed"):
        file.write("text")
    assert file.path.read_text() == "other"
