"""joblib: each ``Parallel`` with processes leaves a folder for shared arrays until the interpreter ends."""

from __future__ import annotations

from operator import neg

import pytest
from joblib import Parallel, delayed

RELEASES = ("joblib==1.3.0", "joblib==1.6.0")
NEEDS = ("numpy",)


@pytest.mark.leakcheck
def test_leaky() -> None:
    Parallel(n_jobs=2)(delayed(neg)(number) for number in range(2))


@pytest.mark.leakcheck
def test_control() -> None:
    Parallel(n_jobs=2, prefer="threads")(delayed(neg)(number) for number in range(2))
