"""The loopback Hub, driven by the real clients: what is sent comes back, what is wrong is refused, and faults are met."""

from __future__ import annotations

import hashlib
import io
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest
from datasets import load_dataset, load_dataset_builder, load_from_disk
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, hf_hub_download, set_client_factory
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils._http import default_client_factory

from leakcheck_incidents.synthetic.hub import loopback
from leakcheck_incidents.synthetic.hub.faults import Fault, Schedule
from leakcheck_incidents.synthetic.hub.loopback import LoopbackHub

if TYPE_CHECKING:
    from leakcheck_incidents.material import SyntheticArrow

pytest_plugins = "leakcheck_incidents.material"
# huggingface_hub 2.4 itself hands a body to httpx2 in a way that is going out of use there.
pytestmark = [pytest.mark.laboratory, pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")]

CONTENT = bytes(range(256)) * 5000


@pytest.fixture
def repo(api: HfApi, tmp_path: Path) -> str:
    """An empty repository of the test's own."""
    name = f"user/{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"
    api.create_repo(name, repo_type="dataset")
    return name


def put(api: HfApi, repo: str, path: str = "data/one.bin", content: bytes = CONTENT) -> str:
    """Returns the commit."""
    source = io.BytesIO(content)
    return api.upload_file(path_or_fileobj=source, path_in_repo=path, repo_id=repo, repo_type="dataset").oid


def get(api: HfApi, repo: str, path: str = "data/one.bin", revision: str | None = None) -> bytes:
    cached = api.hf_hub_download(repo, path, repo_type="dataset", revision=revision, force_download=True)
    return Path(cached).read_bytes()


def test_it_listens_on_this_machine_alone(hub: LoopbackHub) -> None:
    port = urlsplit(hub.url).port
    listening = [
        connection.laddr
        for process in psutil.Process().children()
        for connection in process.net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert ("127.0.0.1", port) in listening
    assert {address for address, at in listening if at == port} == {"127.0.0.1"}


def test_files_come_back_as_they_were_sent(api: HfApi, repo: str) -> None:
    put(api, repo)
    put(api, repo, "README.md", b"# A card")
    assert get(api, repo) == CONTENT
    assert get(api, repo, "README.md") == b"# A card"
    listed = {one.path: one for one in api.list_repo_tree(repo, repo_type="dataset", recursive=True)}
    assert sorted(listed) == ["README.md", "data", "data/one.bin"]
    large, card = listed["data/one.bin"], listed["README.md"]
    assert isinstance(large, RepoFile)
    assert large.lfs is not None
    assert (large.lfs.sha256, large.size) == (hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))
    assert isinstance(card, RepoFile)
    assert card.lfs is None
    assert sorted(api.list_repo_files(repo, repo_type="dataset")) == ["README.md", "data/one.bin"]
    assert [one.path for one in api.get_paths_info(repo, ["data/one.bin", "nothing"], repo_type="dataset")] == [
        "data/one.bin"
    ]
    assert api.whoami()["name"] == "user"


def test_a_part_of_a_file_can_be_read(api: HfApi, repo: str) -> None:
    put(api, repo)
    url = f"{api.endpoint}/datasets/{repo}/resolve/main/data/one.bin"
    answer = httpx2.get(url, headers={"Range": "bytes=1000-1999"}, trust_env=False)
    assert (answer.status_code, answer.content) == (206, CONTENT[1000:2000])


def test_history_is_kept(api: HfApi, repo: str) -> None:
    first = put(api, repo)
    second = put(api, repo, content=b"changed" * 100)
    assert first != second
    assert get(api, repo) == b"changed" * 100
    assert get(api, repo, revision=first) == CONTENT
    deletion = [CommitOperationDelete("data/", is_folder=True)]
    api.create_commit(repo, deletion, commit_message="Delete", repo_type="dataset")
    assert api.list_repo_files(repo, repo_type="dataset") == []
    assert api.list_repo_files(repo, repo_type="dataset", revision=second) == ["data/one.bin"]


def test_a_content_is_sent_once(api: HfApi, hub: LoopbackHub, repo: str) -> None:
    content = repo.encode() * 1000
    put(api, repo, content=content)
    put(api, repo, "data/again.bin", content)
    oid = hashlib.sha256(content).hexdigest()
    assert [one.line for one in hub.requests()].count(f"PUT /lfs/{oid}") == 1
    assert get(api, repo, "data/again.bin") == content


def test_what_does_not_exist_is_named_as_the_real_one_names_it(api: HfApi, repo: str) -> None:
    with pytest.raises(RepositoryNotFoundError):
        api.repo_info("user/nowhere", repo_type="dataset")
    with pytest.raises(RevisionNotFoundError):
        api.repo_info(repo, repo_type="dataset", revision="no-such-branch")
    with pytest.raises(EntryNotFoundError):
        list(api.list_repo_tree(repo, "data", repo_type="dataset"))
    with pytest.raises(EntryNotFoundError):
        hf_hub_download(repo, "nothing.bin", repo_type="dataset", endpoint=api.endpoint)
    operations = [CommitOperationDelete("data/nothing.bin")]
    with pytest.raises(EntryNotFoundError):
        api.create_commit(repo, operations, commit_message="Delete", repo_type="dataset")
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo(repo, repo_type="dataset")
    api.create_repo(repo, repo_type="dataset", exist_ok=True)


def test_commits_that_cannot_be_are_refused(api: HfApi, repo: str) -> None:
    first = put(api, repo)
    put(api, repo, content=b"newer" * 100)
    addition = CommitOperationAdd("late.bin", b"late" * 100)
    with pytest.raises(HfHubHTTPError, match="412"):
        api.create_commit(repo, [addition], commit_message="Late", repo_type="dataset", parent_commit=first)
    sent = {"key": "lfsFile", "value": {"path": "x.bin", "algo": "sha256", "oid": "0" * 64, "size": 1}}
    lines = b'{"key": "header", "value": {"summary": ""}}\n' + str(sent).replace("'", '"').encode()
    answer = httpx2.post(f"{api.endpoint}/api/datasets/{repo}/commit/main", content=lines, trust_env=False)
    assert (answer.status_code, "never uploaded" in answer.text) == (400, True)
    assert api.list_repo_files(repo, repo_type="dataset") == ["data/one.bin"]


def test_a_body_with_another_hash_is_refused_and_not_kept(api: HfApi, hub: LoopbackHub, repo: str) -> None:
    oid = hashlib.sha256(repo.encode()).hexdigest()
    answer = httpx2.put(f"{hub.url}/lfs/{oid}", content=b"something else", trust_env=False)
    assert answer.status_code == 422
    assert oid in answer.text
    assert put(api, repo, content=repo.encode())
    assert get(api, repo) == repo.encode()


def test_datasets_are_pushed_and_loaded(hub: LoopbackHub, repo: str, synthetic_arrow: SyntheticArrow) -> None:
    before = len(hub.requests())
    dataset = load_from_disk(str(synthetic_arrow(rows=10)))
    dataset.push_to_hub(repo, num_shards=3)
    dataset.push_to_hub(repo, num_shards=2)
    dataset.push_to_hub(repo, "other", num_shards=2)
    loaded = load_dataset(repo, "default", split="train")
    assert (loaded["id"][:], loaded.features) == (dataset["id"][:], dataset.features)
    streamed = load_dataset(repo, "other", split="train", streaming=True)
    assert [row["id"] for row in streamed] == dataset["id"][:]
    assert load_dataset_builder(repo, "other").info.splits["train"].num_examples == 10
    unexpected = {one.line for one in hub.requests()[before:] if one.status not in (200, 206, 404, 409, 412, 422, 400)}
    assert not unexpected


def test_nothing_is_asked_that_it_does_not_know(hub: LoopbackHub, repo: str, synthetic_arrow: SyntheticArrow) -> None:
    """A 404 without the Hub's own word for it would be a request that has no route."""
    before = len(hub.requests())
    load_from_disk(str(synthetic_arrow(rows=10))).push_to_hub(repo, num_shards=2, num_proc=2)
    load_dataset(repo, split="train")
    # What the clients look for and the real Hub does not have either.
    absent = (f"/api/datasets/{repo}/tree/", "dataset_infos.json", ".huggingface.yaml", f"{repo.partition('/')[2]}.py")
    lost = [one.line for one in hub.requests()[before:] if one.status == 404 and not any(a in one.line for a in absent)]
    assert lost == []


# What happens to one file that is uploaded once.


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The clients wait a second and more between attempts, and without end for an answer."""
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)
    set_client_factory(lambda: httpx2.Client(timeout=0.5, follow_redirects=True))
    yield
    set_client_factory(default_client_factory)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["status", "timeout", "cut", "lost"])
@pytest.mark.parametrize("on", ["/preupload/", "/objects/batch", "PUT /lfs/", "/lfs/verify"])
def test_the_client_outlives_a_fault(api: HfApi, hub: LoopbackHub, repo: str, kind: str, on: str) -> None:
    content = f"{repo}{kind}{on}".encode() * 20_000
    hub.fail(Fault(kind, on=on))  # type: ignore[arg-type]
    put(api, repo, content=content)
    assert get(api, repo) == content
    met = [one for one in hub.requests() if repo in one.line or hashlib.sha256(content).hexdigest() in one.line]
    assert [one.fault for one in hub.requests() if one.fault][-1] == kind
    assert met


@pytest.mark.usefixtures("impatient")
def test_a_fault_is_met_as_often_as_it_is_told_and_where(api: HfApi, hub: LoopbackHub, repo: str) -> None:
    content = repo.encode() * 100
    hub.fail(Fault("status", at=1, times=2, on="/preupload/", status=503))
    put(api, repo, content=content)
    put(api, repo, "data/two.bin", content[:-1])
    asked = [one.status for one in hub.requests() if one.line == f"POST /api/datasets/{repo}/preupload/main"]
    assert asked == [200, 503, 503, 200]


@pytest.mark.usefixtures("impatient")
def test_a_server_that_stays_down_is_given_up(api: HfApi, hub: LoopbackHub, repo: str) -> None:
    hub.fail(Fault("status", times=1000, on="/commit/", status=500))
    with pytest.raises(HfHubHTTPError, match="500"):
        put(api, repo)


def test_retry_after_is_obeyed(api: HfApi, hub: LoopbackHub, repo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", slept.append)
    hub.fail(Fault("status", on="/preupload/", status=429, retry_after=7))
    put(api, repo)
    assert 7 <= slept[0] <= 9


def test_a_wrong_hash_is_not_tried_again(api: HfApi, hub: LoopbackHub, repo: str) -> None:
    content = repo.encode() * 500
    hub.fail(Fault("wrong_hash", on="PUT /lfs/"))
    with pytest.raises(RuntimeError, match="Error while uploading") as failed:
        put(api, repo, content=content)
    assert "422" in str(failed.value.__cause__)
    assert api.list_repo_files(repo, repo_type="dataset") == []


def test_regular_files_travel_in_the_commit(api: HfApi, hub: LoopbackHub, repo: str) -> None:
    content = repo.encode() * 777
    hub.fail(Fault("regular", times=1000, on="/preupload/"))
    put(api, repo, content=content)
    assert get(api, repo) == content
    assert not any(hashlib.sha256(content).hexdigest() in one.line for one in hub.requests())


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="'cutt' is not one of status, timeout, cut, lost, regular, wrong_hash"):
        Fault("cutt")  # type: ignore[arg-type]


def test_a_schedule_counts_by_what_a_fault_is_on() -> None:
    schedule = Schedule()
    schedule.set([Fault("cut", at=1, on="PUT"), Fault("status", at=3)])
    lines = ["PUT a", "GET a", "PUT b", "GET b", "GET c"]
    assert [fault.kind if (fault := schedule.next(line)) else "" for line in lines] == ["", "", "cut", "status", ""]


# Its process.


def test_it_ends_with_the_one_who_started_it() -> None:
    code = (
        "import os\n"
        "from leakcheck_incidents.synthetic.hub import loopback\n"
        "import psutil\n"
        "with loopback.running() as hub:\n"
        "    print(psutil.Process().children()[0].pid, hub.url, flush=True)\n"
        "    os._exit(1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    pid, url = done.stdout.split()
    psutil.wait_procs([psutil.Process(int(pid))] if psutil.pid_exists(int(pid)) else [], timeout=600)
    assert not psutil.pid_exists(int(pid))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=5)


def test_the_end_of_it_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with loopback.running() as other:
        api = HfApi(endpoint=other.url, token=other.token)
        api.create_repo("user/other", repo_type="dataset")
        put(api, "user/other")
        assert list(tmp_path.iterdir())
    assert list(tmp_path.iterdir()) == []


def test_a_program_is_pointed_at_it_by_its_environment(hub: LoopbackHub) -> None:
    import os

    code = "from huggingface_hub import HfApi; print(HfApi().whoami()['name'])"
    environment = {**os.environ, **hub.environment}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "user\n", done.stderr
