"""Incident 3: uploads that are killed or meet faults, and are then repeated. No row is lost, none is there twice."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import httpx2
import pytest
from datasets import Dataset, load_dataset, load_from_disk
from datasets.data_files import EmptyDatasetError
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub import HfApi, set_client_factory
from huggingface_hub.utils._http import default_client_factory

from leakcheck_incidents.hub_upload import fixed
from leakcheck_incidents.synthetic.hub.faults import Fault, Kind
from leakcheck_incidents.synthetic.hub.loopback import LoopbackHub

if TYPE_CHECKING:
    from leakcheck_incidents.material import SyntheticArrow

pytest_plugins = "leakcheck_incidents.material"
# huggingface_hub 2.4 itself hands a body to httpx2 in a way that is going out of use there.
pytestmark = [
    pytest.mark.laboratory,
    pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning"),
]

ROWS, SHARDS = 23, 4
KILLED = Path(__file__).with_name("killed_upload.py")


@pytest.fixture
def folder(synthetic_arrow: SyntheticArrow) -> Path:
    return synthetic_arrow(rows=ROWS, shard_rows=10)


@pytest.fixture
def dataset(folder: Path) -> Dataset:
    return load_from_disk(str(folder))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the test's own, and of the programs that it starts."""
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    monkeypatch.setenv("TMPDIR", str(made))
    return made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The clients wait a second and more between attempts, and without end for an answer."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)
    set_client_factory(lambda: httpx2.Client(timeout=0.5, follow_redirects=True))
    yield
    set_client_factory(default_client_factory)


def numbers_in(repo: str) -> list[int]:
    """Of the rows that a reader finds; none where there is nothing to read yet."""
    try:
        read = load_dataset(repo, split="train", download_mode="force_redownload")
    except (DatasetNotFoundError, EmptyDatasetError):
        return []
    return list(read["id"])


def sent_twice(hub: LoopbackHub, first: int) -> list[str]:
    """Contents that arrived whole more than once, from so many requests on."""
    arrived = Counter(one.line for one in hub.requests()[first:] if one.line.startswith("PUT") and one.status == 200)
    return [line for line, times in arrived.items() if times > 1]


def test_killed_at_any_point(api: HfApi, hub: LoopbackHub, folder: Path, dataset: Dataset, temporary: Path) -> None:
    command = [sys.executable, str(KILLED), str(folder), "user/killed", str(SHARDS), "7", "20"]
    first = len(hub.requests())
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env={**os.environ})
    killed = [line.split()[0] for line in done.stdout.splitlines()]
    assert len(killed) == 20, done.stderr
    # One workplace each, with one file at most, and only if it was there at that moment.
    left = list(temporary.glob("hub-upload-*"))
    assert 0 < len(left) <= 20
    assert all(len(list(one.iterdir())) <= 1 for one in left)
    assert any(list(one.iterdir()) for one in left)
    found = [numbers_in(repo) for repo in killed]
    # A reader finds all or nothing, and of 20 points some are early.
    assert all(numbers in ([], list(range(ROWS))) for numbers in found)
    assert [] in found
    for repo in killed:
        fixed.upload(dataset, repo, shards=SHARDS, api=api)
        assert numbers_in(repo) == list(range(ROWS))
    assert list(temporary.glob("hub-upload-*")) == []
    assert sent_twice(hub, first) == []


def fault(number: int, requests: int) -> Fault:
    """The number-th: a kind, and a request from which on it lasts."""
    chance = random.Random(number)
    kind = get_args(Kind)[number % len(get_args(Kind))]
    # A client that gets no answer waits for each; the others it tries again at once.
    return Fault(kind, at=chance.randrange(requests), times=6 if kind == "timeout" else 10_000)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("number", range(20))
def test_a_fault_at_any_request(api: HfApi, hub: LoopbackHub, dataset: Dataset, temporary: Path, number: int) -> None:
    # With a column of their own no two have a content in common, so each has all requests.
    rows, other = (dataset.add_column("test", [mark] * ROWS) for mark in (number, -1 - number))
    first = len(hub.requests())
    fixed.upload(other, f"user/whole-{number}", shards=SHARDS, api=api)
    requests = len(hub.requests()) - first
    repo, met = f"user/faulted-{number}", fault(number, requests)
    first = len(hub.requests())
    hub.fail(met)
    try:
        fixed.upload(rows, repo, shards=SHARDS, api=api)
        failed = False
    except Exception:  # noqa: BLE001 - whatever the client makes of it
        failed = True
    assert list(temporary.iterdir()) == []
    assert failed or met.kind in ("regular", "wrong_hash")
    hub.fail()
    fixed.upload(rows, repo, shards=SHARDS, api=api)
    assert numbers_in(repo) == list(range(ROWS))
    assert list(temporary.iterdir()) == []
    if met.kind != "lost":
        assert sent_twice(hub, first) == []


def test_another_fingerprint_is_no_hindrance(api: HfApi, hub: LoopbackHub, folder: Path, temporary: Path) -> None:
    """Rows are recognized by their content: if the dataset is loaded again, the upload resumes where it stopped."""
    hub.fail(Fault("status", at=2, times=10_000, on="PUT /lfs/", status=403))
    rows = load_from_disk(str(folder)).shuffle(seed=11)
    with pytest.raises(RuntimeError, match="Error while uploading"):
        fixed.upload(rows, "user/reloaded", shards=SHARDS, api=api)
    hub.fail()
    first = len(hub.requests())
    again = load_from_disk(str(folder)).shuffle(seed=11).flatten_indices()
    fixed.upload(again, "user/reloaded", shards=SHARDS, api=api)
    assert sum(one.line.startswith("PUT") for one in hub.requests()[first:]) == SHARDS - 2
    assert numbers_in("user/reloaded") == rows["id"][:]
    assert list(temporary.iterdir()) == []


@pytest.mark.laboratory
@pytest.mark.usefixtures("hub")
def test_the_warning_of_a_killed_upload(folder: Path, tmp_path: Path) -> None:
    """`push_to_hub` with several processes: their semaphores outlive a kill, and Python says so. A symptom, no cause."""
    program = tmp_path / "push.py"
    program.write_text(
        "import os, signal, sys, warnings\n"
        "warnings.simplefilter('ignore')\n"
        "from datasets import load_from_disk\n"
        "import datasets.arrow_dataset as module\n"
        "def killed(*arguments, **options):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "    yield\n"
        "if __name__ == '__main__':\n"
        "    if sys.argv[2] == 'kill':\n"
        "        module.iflatmap_unordered = killed\n"
        "    load_from_disk(sys.argv[1]).push_to_hub('user/' + sys.argv[2], num_shards=4, num_proc=2)\n"
    )
    warned = {}
    for how in ("end", "kill"):
        command = [sys.executable, str(program), str(folder), how]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == (0 if how == "end" else -9), done.stderr
        warned[how] = re.findall(r"There appear to be (\d+) leaked semaphore", done.stderr)
    assert warned["end"] == []
    assert [int(count) > 0 for count in warned["kill"]] == [True]
