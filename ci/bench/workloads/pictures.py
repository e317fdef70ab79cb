"""Clean workloads with pictures, video and progress bars: matplotlib, PyAV, tqdm."""

from __future__ import annotations

import io
from importlib import import_module
from pathlib import Path
from random import Random

from workloads import Step, workload


@workload(
    "av",
    "numpy",
    heap="256 B",
    reason="PyAV 18.1 keeps about 145 bytes for each container that was decoded from: over 10,000 steps, 141.7 to 145.4 "
    "per step in each of ten stretches",
)
def av_decode(chance: Random, folder: Path) -> Step:
    """Decode some frames of a clip."""
    from leakcheck_incidents.synthetic.video import Clip, write_clip

    av = import_module("av")
    clip = Clip(codec="mpeg4", width=64, height=64, frames=20, seed=chance.randrange(100))
    path = write_clip(clip, folder / clip.name)

    def step() -> None:
        wanted = chance.randint(1, clip.frames)
        with av.open(str(path)) as container:
            shapes = [
                frame.to_ndarray(format="rgb24").shape
                for frame, _ in zip(container.decode(video=0), range(wanted), strict=False)
            ]
        assert len(shapes) == wanted

    return step


@workload("matplotlib")
def matplotlib_figure(chance: Random, folder: Path) -> Step:
    """Draw a figure and save it to memory."""
    import_module("matplotlib").use("Agg")
    pyplot = import_module("matplotlib.pyplot")

    def step() -> None:
        figure, axes = pyplot.subplots(figsize=(2, 2), dpi=50)
        points = chance.randint(5, 200)
        axes.plot(range(points), [chance.random() for _ in range(points)], label="a line")
        axes.legend()
        figure.savefig(io.BytesIO(), format="png")
        pyplot.close(figure)

    return step


@workload("tqdm")
def tqdm_bars(chance: Random, folder: Path) -> Step:
    """Run two nested progress bars."""
    tqdm = import_module("tqdm")

    def step() -> None:
        total = chance.randint(10, 300)
        with tqdm.tqdm(total=total, file=io.StringIO(), mininterval=0) as bar:
            for number in tqdm.tqdm(range(total), file=io.StringIO(), leave=False):
                bar.update()
                bar.set_postfix(number=number, refresh=False)
        assert bar.n == total

    return step
