"""scikit-learn: its test helper for memory-mapped data leaves a temporary folder per call until the process ends."""

import tempfile
from pathlib import Path

import numpy as np
from sklearn.utils._testing import create_memmap_backed_data

ITERATIONS = 100

with tempfile.TemporaryDirectory() as folder:
    tempfile.tempdir = folder
    create_memmap_backed_data(np.zeros(4))
    before = len(list(Path(folder).iterdir()))
    for _ in range(ITERATIONS):
        create_memmap_backed_data(np.zeros(4))
    print(f"{ITERATIONS} iterations: {before} -> {len(list(Path(folder).iterdir()))} folders")
