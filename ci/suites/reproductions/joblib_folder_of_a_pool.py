"""scikit-learn: each `joblib.Parallel` with processes leaves a folder in /dev/shm until the process ends."""

from pathlib import Path

from joblib import Parallel, delayed

ITERATIONS = 20


def count() -> int:
    """Return how many folders of joblib exist."""
    return len(list(Path("/dev/shm").glob("joblib_memmapping_folder_*")))  # noqa: S108 - where joblib makes them


Parallel(n_jobs=2)(delayed(abs)(number) for number in range(4))
before = count()
for _ in range(ITERATIONS):
    Parallel(n_jobs=2)(delayed(abs)(number) for number in range(4))
print(f"{ITERATIONS} iterations: {before} -> {count()} folders")
