"""pandas io: PyTables retains two blocks each time that it opens a compressed array.

The index of a table consists of four such arrays, so opening an indexed table retains eight blocks.
"""

import gc
import sys
import tempfile
from pathlib import Path

import numpy as np
import tables

ITERATIONS = 1000


def grow(path: str, node: str) -> str:
    """Open a node in each iteration; return how many blocks Python has allocated before and after."""
    for number in range(ITERATIONS + 20):
        if number == 20:
            gc.collect()
            before = sys.getallocatedblocks()
        with tables.open_file(path) as file:
            file.get_node(node)
    gc.collect()
    return f"{before:,} -> {sys.getallocatedblocks():,} blocks"


with tempfile.TemporaryDirectory() as folder:
    path = str(Path(folder, "file.h5"))
    with tables.open_file(path, "w") as file:
        file.create_carray("/", "plain", obj=np.zeros(4))
        file.create_carray("/", "compressed", obj=np.zeros(4), filters=tables.Filters(complevel=5))
        table = file.create_table("/", "indexed", np.zeros(4, dtype=[("column", "f8")]))
        table.cols.column.create_index()
    compressed, indexed, plain = (grow(path, f"/{name}") for name in ("compressed", "indexed", "plain"))
print(f"{ITERATIONS} iterations: {compressed}; with an index: {indexed}; not compressed: {plain}")
