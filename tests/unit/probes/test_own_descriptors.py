from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pytest_leakcheck.probes.memory import Mapped, PeakRss, Rss
from pytest_leakcheck.probes.own_descriptors import OwnFile, count_overwritten, open_own
from pytest_leakcheck.probes.processes import LinuxTree

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[OwnFile, OwnFile]]:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    with closing(open_own(str(tmp_path / "one"))) as one, closing(open_own(str(tmp_path / "two"))) as two:
        yield one, two


def test_a_file_that_the_program_closes_is_opened_again(files: tuple[OwnFile, OwnFile]) -> None:
    before = count_overwritten()
    os.close(files[0].number)
    assert files[0].check() is None
    assert [file.read(9) for file in files] == [b"one", b"two"]
    assert count_overwritten() == before


def test_files_whose_numbers_the_program_exchanges_are_opened_again(files: tuple[OwnFile, OwnFile]) -> None:
    """Both numbers still lead to files of the plugin, but to each other's."""
    before, numbers = count_overwritten(), [file.number for file in files]
    kept = os.dup(numbers[0])
    os.dup2(numbers[1], numbers[0])
    os.dup2(kept, numbers[1])
    os.close(kept)
    assert [file.read(9) for file in files] == [b"one", b"two"]
    assert not {file.number for file in files} & set(numbers)
    assert count_overwritten() == before + 2
    for number in numbers:
        # The program's copies stay open.
        os.close(number)


def test_a_file_that_the_program_has_taken_is_not_closed(files: tuple[OwnFile, OwnFile]) -> None:
    number = files[0].number
    os.dup2(files[1].number, number)
    files[0].close()
    assert os.path.sameopenfile(number, files[1].number)
    os.close(number)
    files[0].close()


@linux
def test_probes_read_on_after_their_files_are_exchanged_or_closed() -> None:
    # Files that other tests left in garbage must not be closed between the readings.
    gc.collect()
    tree, rss, peak, mapped = LinuxTree(), Rss(), PeakRss(), Mapped()
    for probe in (tree, rss, peak, mapped):
        probe.open()
    with closing(tree), closing(rss), closing(peak), closing(mapped):
        before = tree.own(), peak.reset(), mapped.read()
        own = [tree._fds, tree._tasks, rss._status, peak._status, peak._statm, mapped._statm, mapped._maps]
        numbers = [file.number for file in own]
        copies = [os.dup(number) for number in numbers]
        for number, copy in zip(numbers, reversed(copies), strict=True):
            os.dup2(copy, number)
            os.close(copy)
        assert peak.now() > 1 << 20
        assert peak.reset() > 1 << 20
        assert rss.read() > 1 << 20
        # As after a change of the address space, which has the mappings read again.
        mapped._last[0] = 0
        assert mapped.read() >= before[2] // 2
        # Each of the seven files is open twice, except that in the middle, which was put over itself.
        assert tree.own()[0] == before[0][0] + len(numbers) - 1
        for number in {*numbers} - {file.number for file in own}:
            os.close(number)
        assert tree.own() == before[0]
