"""Incident 2: nine descriptors per switch, caught; the mended loader, silent, and safe to misuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from leakcheck_incidents import media
from leakcheck_incidents.catalog import INCIDENTS
from leakcheck_incidents.pyav_loader import fixed, leaky
from leakcheck_incidents.pyav_loader.chunks import Chunk, Recording
from projects import Project

INCIDENT = INCIDENTS["pyav_loader"]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    clip = media.Clip(width=64, height=64, frames=25, gop=10)
    return media.write_clip(clip, tmp_path_factory.mktemp("clips") / clip.name)


@pytest.fixture(scope="module")
def reproduced() -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_leakcheck.cli", "repro", INCIDENT.name]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)


def test_both_arms_come_out_as_they_must(reproduced: subprocess.CompletedProcess[str]) -> None:
    assert reproduced.returncode == 0, reproduced.stdout + reproduced.stderr
    assert "leaky arm: 3 of 3 as it must be" in reproduced.stdout
    assert "fixed arm: 11 of 11 as it must be" in reproduced.stdout
    assert "NOT" not in reproduced.stdout


def test_the_figures_of_the_leaky_arm(reproduced: subprocess.CompletedProcess[str]) -> None:
    text = reproduced.stdout
    assert text.count("fd +9.0/iter unclosed") >= 1
    assert "TestCollectorOff: fd leak, 9 per switch" in text
    assert "threads per container" in text
    # A soft limit of 1,024 is set for the run, so the figure is the same on every machine but for a few descriptors.
    reached = [
        int(line.split("≈ ")[1].split()[0]) for line in text.splitlines() if "≈" in line and "iterations" in line
    ]
    assert reached
    assert all(108 <= switches <= 116 for switches in reached), reached
    assert "heap +" in text
    assert "not judged" in text


def test_one_arm_exits_as_pytest_does() -> None:
    command = [sys.executable, "-m", "pytest_leakcheck.cli", "repro", INCIDENT.name, "--arm"]
    assert subprocess.run([*command, "leaky"], capture_output=True, check=False, timeout=120).returncode == 1
    assert subprocess.run([*command, "fixed"], capture_output=True, check=False, timeout=120).returncode == 0


def test_the_list_and_wrong_use() -> None:
    command = [sys.executable, "-m", "pytest_leakcheck.cli", "repro"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert listed.returncode == 0
    assert "pyav_loader     video loaders whose iterator is closed in place of the loader" in listed.stdout
    wrong = subprocess.run([*command, "pyav"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "pytest-leakcheck repro pyav: no such incident; there are: pyav_loader" in wrong.stderr


def test_a_missing_library_is_named(project: Project) -> None:
    project.write("av.py", "raise ImportError('not here')")
    code = "import sys; sys.modules['av'] = None; from pytest_leakcheck.cli import main; sys.exit(main(['repro', 'pyav_loader']))"
    # A module set to None has no spec to be found; that is what an absent one comes to.
    code = code.replace(
        "sys.modules['av'] = None",
        "import importlib.machinery as m, importlib.util as u; f = u.find_spec; u.find_spec = lambda n, *a: None if n == 'av' else f(n, *a)",
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "pyav_loader: needs av: pip install 'pytest-leakcheck[pyav]'" in done.stderr


def test_both_loaders_give_the_same_frames(clip: Path) -> None:
    for chunk in Recording({}, frames=25, gop=10).chunks():
        ours = [frame.tobytes() for frame in fixed.VideoLoader(clip, chunk)]
        theirs = [frame.tobytes() for frame in leaky.VideoLoader(clip, chunk)]
        assert len(ours) == chunk.last - chunk.first
        assert ours == theirs


def test_a_stream_goes_round(clip: Path) -> None:
    stream = fixed.ChunkStream(Recording({("head", "rgb"): clip}, frames=25, gop=10))
    lengths = [len(list(stream.next_chunk())) for _ in range(4)]
    stream.close()
    assert lengths == [10, 10, 5, 10]


def test_a_closed_loader_raises(clip: Path) -> None:
    """Resuming a decoder after its container was closed crashes the process; the mended loader must raise instead."""
    loader = fixed.VideoLoader(clip, Chunk(0, 10))
    frames = iter(loader)
    next(frames)
    loader.close()
    loader.close()
    with pytest.raises(ValueError, match="read from a closed VideoLoader"):
        next(frames)
    with pytest.raises(ValueError, match="read from a closed VideoLoader"):
        next(iter(loader))


def test_the_reason_for_that(clip: Path) -> None:
    """In a process of its own, since it dies: what the leaky loader does when its container is closed under it."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from leakcheck_incidents.pyav_loader import leaky\n"
        "from leakcheck_incidents.pyav_loader.chunks import Chunk\n"
        "loader = leaky.VideoLoader(Path(sys.argv[1]), Chunk(0, 10))\n"
        "frames = iter(loader); next(frames); loader.close(); next(frames)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(clip)], capture_output=True, check=False)
    assert done.returncode != 0


def test_clips_are_deterministic(tmp_path: Path) -> None:
    for kind in ("rgb", "depth", "segmentation"):
        clip = media.Clip(kind=kind, width=64, height=48, frames=12, gop=4, seed=3)
        one = media.write_clip(clip, tmp_path / "one.mp4").read_bytes()
        two = media.write_clip(clip, tmp_path / "two.mp4").read_bytes()
        assert one == two
    other = media.Clip(kind="rgb", width=64, height=48, frames=12, gop=4, seed=4)
    assert media.write_clip(other, tmp_path / "three.mp4").read_bytes() != one


def test_keyframes_are_where_they_are_said(clip: Path) -> None:
    import av

    with av.open(str(clip)) as container:
        keys = [index for index, frame in enumerate(container.decode(video=0)) if frame.key_frame]
    assert keys == [0, 10, 20]


def test_a_failed_encoding_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no-such-codec"):
        media.write_clip(media.Clip(codec="no-such-codec"), tmp_path / "clip.mp4")
    assert list(tmp_path.iterdir()) == []


def test_the_fixture_for_users(project: Project) -> None:
    project.write(
        "test_it.py",
        """
        def test_video(synthetic_video):
            clip = synthetic_video(kind="depth", width=64, height=48, frames=6, gop=3, seed=1)
            assert clip.stat().st_size > 500
            assert synthetic_video(kind="depth", width=64, height=48, frames=6, gop=3, seed=1) == clip
            assert synthetic_video(seed=2, width=64, height=48, frames=6) != clip
        """,
    )
    assert "1 error" in project.run(leakcheck=False).last_line
    assert project.run("-p", "leakcheck_incidents.material", leakcheck=False).last_line == "1 passed"
