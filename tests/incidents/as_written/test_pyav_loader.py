"""The dataset of the write-up, pasted into a user's project, alone and in workers, with its fault and with its fix."""

from __future__ import annotations

from typing import Any

import pytest

from projects import Outcome, Project

DATASET = """
    import av
    import numpy as np
    import torch
    from torch.utils.data import IterableDataset, get_worker_info

    CAMERAS = ("head", "left_wrist", "right_wrist")


    class VideoLoader:
        def __init__(self, path, start_idx, end_idx, fps=30):
            self.container = av.open(str(path))  # of the leak
            self.stream = self.container.streams.video[0]
            self.start_idx, self.end_idx, self.fps = start_idx, end_idx, fps

        def __iter__(self):
            self.container.seek(round(self.start_idx / self.fps / self.stream.time_base), stream=self.stream)
            for frame in self.container.decode(self.stream):
                index = round(frame.pts * self.stream.time_base * self.fps)
                if index >= self.end_idx:
                    return
                yield torch.from_numpy(frame.to_ndarray(format="rgb24")).movedim(-1, 0)

        def close(self):
            self.container.close()


    class DepthVideoLoader(VideoLoader):
        pass


    class SegVideoLoader(VideoLoader):
        pass


    OBS_LOADER_MAP = {"rgb": VideoLoader, "depth": DepthVideoLoader, "seg_instance_id": SegVideoLoader}


    class BehaviorDataset(IterableDataset):
        def __init__(self, folder, chunks, seed=0):
            self.folder, self.chunks, self.seed = folder, chunks, seed
            self._obs_loaders = {}

        def _close_loaders(self):
            for loader in self._obs_loaders.values():
                loader.close()
            self._obs_loaders = {}

        def _open_loaders(self, start, end):
            self._close_loaders()
            for camera in CAMERAS:
                for kind, loader_cls in OBS_LOADER_MAP.items():
                    loader = loader_cls(self.folder / f"{kind}.{camera}.mp4", start, end)
                    self._obs_loaders[f"observation.images.{kind}.{camera}"] = iter(loader)

        def __iter__(self):
            info = get_worker_info()
            rng = np.random.default_rng(self.seed + (info.id if info else 0))
            while True:
                for start, end in rng.permutation(self.chunks):
                    self._open_loaders(start, end)
                    for _ in range(start, end):
                        yield {key: next(loader) for key, loader in self._obs_loaders.items()}

        def close(self):
            if hasattr(self, "_obs_loaders"):
                self._close_loaders()

        def __del__(self):
            self.close()
"""
# The fix: the loaders are stored beside their iterators, and these are closed.
REPAIRED = (
    DATASET.replace(
        "            self._obs_loaders = {}\n\n", "            self._obs_loaders, self._obs_loader_objects = {}, {}\n\n"
    )
    .replace(
        """            for loader in self._obs_loaders.values():
                loader.close()
            self._obs_loaders, self._obs_loader_objects""",
        """            for loader in self._obs_loader_objects.values():
                try:
                    loader.close()
                except Exception:
                    pass
            self._obs_loaders, self._obs_loader_objects""",
    )
    .replace(
        'self._obs_loaders[f"observation.images.{kind}.{camera}"] = iter(loader)',
        "self._obs_loader_objects[kind, camera], self._obs_loaders[kind, camera] = loader, iter(loader)",
    )
)
LINE = (
    DATASET.strip("\n").splitlines().index(next(line for line in DATASET.splitlines() if "# of the leak" in line)) + 1
)
TEST = """
    import gc

    import pytest
    from torch.utils.data import DataLoader

    from dataset import CAMERAS, OBS_LOADER_MAP, BehaviorDataset


    @pytest.fixture(scope="module")
    def dataset(synthetic_video, tmp_path_factory):
        folder = tmp_path_factory.mktemp("episode")
        clip = synthetic_video(width=64, height=64, frames=20, gop=10)
        for camera in CAMERAS:
            for kind in OBS_LOADER_MAP:
                (folder / f"{kind}.{camera}.mp4").hardlink_to(clip)
        return BehaviorDataset(folder, chunks=[(0, 2), (10, 12)])

    {fixture}

    @pytest.mark.fd_budget(0)
    def test_switch(frames):
        next(frames)
        next(frames)
"""
IN_PROCESS = """
    @pytest.fixture(scope="module")
    def frames(dataset):
        return iter(dataset)
"""
WORKERS = """
    @pytest.fixture(scope="module")
    def frames(dataset):
        loader = DataLoader(
            dataset, batch_size=None, num_workers=3, persistent_workers=True, prefetch_factor=5{more}
        )
        return iter(loader)
"""
COLLECTOR_OFF = ", worker_init_fn=lambda _: gc.disable()"


def run(project: Project, fixture: str, *options: str) -> tuple[Outcome, dict[str, Any], dict[str, Any]]:
    """Judge both datasets; return the rows of the faulty and of the repaired one, too."""
    for name, dataset in (("faulty", DATASET), ("repaired", REPAIRED)):
        project.write(f"{name}.py", dataset)
        project.write(
            f"test_{name}.py", TEST.replace("    {fixture}\n", fixture).replace("from dataset", f"from {name}")
        )
    ran = project.run("-p", "leakcheck_incidents.material", *options, PYTHONPATH=str(project.folder), CI="1")
    faulty, repaired = ran.findings
    assert (faulty["test"], repaired["test"]) == ("test_faulty.py::test_switch", "test_repaired.py::test_switch"), (
        ran.text
    )
    return ran, faulty, repaired


def test_in_one_process_the_line_and_the_cycle_are_named_and_the_fix_is_green(project: Project) -> None:
    ran, faulty, repaired = run(project, IN_PROCESS, "--leakcheck-iterations=20", "--leakcheck-max-time=600")
    assert (faulty["verdict"], faulty["slope"], faulty["colour"]) == ("unclosed", 9.0, "red"), ran.text
    assert (faulty["site"]["file"].rpartition("/")[2], faulty["site"]["line"]) == ("faulty.py", LINE)
    assert "InputContainer → StreamContainer → VideoStream" in ran.one_line
    assert "close() the container, or use `with av.open(...)`" in ran.one_line
    assert (repaired["verdict"], repaired["colour"]) == ("ok", "green"), ran.text


@pytest.mark.laboratory
@pytest.mark.parametrize(("more", "verdict"), [("", "unclosed"), (COLLECTOR_OFF, "leak")], ids=["collector", "without"])
def test_in_workers_it_is_red_with_its_line_and_the_fix_is_green(project: Project, more: str, verdict: str) -> None:
    ran, faulty, repaired = run(project, WORKERS.format(more=more))
    assert (faulty["verdict"], faulty["colour"]) == (verdict, "red"), ran.text
    # Three workers with five frames of nine tensors each under way: less even than numbers would be.
    assert 5 <= faulty["slope"] <= 18, ran.text
    if faulty["site"] is None:
        # On a busy machine, torch's own thread runs whenever a video is opened.
        assert "another of its threads was running too" in faulty["culprit"]["unresolved"]["site"], ran.text
    else:
        assert (faulty["site"]["file"].rpartition("/")[2], faulty["site"]["line"]) == ("faulty.py", LINE), ran.text
    assert (repaired["verdict"], repaired["colour"]) == ("ok", "green"), ran.text
