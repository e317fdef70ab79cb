"""Clean workloads with arrays and tables: numpy, pandas, pyarrow, datasets."""

from __future__ import annotations

import io
import os
from importlib import import_module
from pathlib import Path
from random import Random

from workloads import Step, workload


@workload("numpy")
def numpy_mixed_sizes(chance: Random, folder: Path) -> Step:
    """Sort and multiply arrays of varying sizes."""
    numpy = import_module("numpy")

    def step() -> None:
        draw = numpy.random.default_rng(chance.getrandbits(32))
        for _ in range(10):
            rows, columns = (chance.choice((1, 7, 64, 300, 1000)) for _ in range(2))
            values = draw.normal(size=(rows, columns))
            order = numpy.argsort(values, axis=1)
            assert (numpy.take_along_axis(values, order, axis=1) @ numpy.ones(columns)).shape == (rows,)

    return step


@workload("numpy", "pandas", "pyarrow")
def pandas_tables(chance: Random, folder: Path) -> Step:
    """Group and merge tables, and write and read Parquet in memory."""
    numpy, pandas = import_module("numpy"), import_module("pandas")

    def step() -> None:
        draw, rows = numpy.random.default_rng(chance.getrandbits(32)), chance.randint(100, 3000)
        keys = [f"key{number}" for number in draw.integers(0, 50, rows)]
        frame = pandas.DataFrame({"key": keys, "value": draw.normal(size=rows), "count": draw.integers(0, 9, rows)})
        groups = frame.groupby("key", as_index=False).agg({"value": "mean", "count": "sum"})
        joined = frame.merge(groups, on="key", suffixes=("", "_of_group"))
        file = io.BytesIO()
        joined.to_parquet(file)
        assert len(pandas.read_parquet(file)) == rows

    return step


@workload("numpy", "pyarrow")
def arrow_compute(chance: Random, folder: Path) -> Step:
    """Filter, group and sort Arrow tables."""
    numpy, arrow = import_module("numpy"), import_module("pyarrow")
    compute = import_module("pyarrow.compute")

    def step() -> None:
        draw, rows = numpy.random.default_rng(chance.getrandbits(32)), chance.randint(100, 20_000)
        table = arrow.table({"number": draw.integers(0, 100, rows), "value": draw.normal(size=rows)})
        kept = table.filter(compute.greater(table["value"], chance.random()))
        groups = kept.group_by("number").aggregate([("value", "sum"), ("value", "count")])
        assert compute.sum(groups["value_count"]).as_py() == kept.num_rows
        kept.sort_by([("value", "descending")]).take(arrow.array(range(min(10, kept.num_rows))))

    return step


@workload("datasets", "pyarrow")
def datasets_in_memory(chance: Random, folder: Path) -> Step:
    """Map, shuffle and read a dataset in memory."""
    os.environ.update(HF_HOME=str(folder / "hf"), HF_HUB_OFFLINE="1")
    datasets = import_module("datasets")
    datasets.disable_progress_bars()

    def longer(row: dict[str, str]) -> dict[str, int]:
        return {"length": len(row["text"])}

    def step() -> None:
        texts = [chance.randbytes(chance.randint(0, 40)).hex() for _ in range(chance.randint(10, 100))]
        table = datasets.Dataset.from_dict({"text": texts}).map(longer)
        assert [row["length"] for row in table] == list(map(len, texts))
        table.shuffle(seed=chance.getrandbits(30)).select(range(5)).to_dict()

    return step
