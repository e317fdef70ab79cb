"""The loopback Hub, driven by the real clients: what is sent comes back, and what is wrong is refused."""

from __future__ import annotations

import contextlib
import hashlib
import io
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psutil
import pytest
from datasets import load_dataset, load_from_disk
from huggingface_hub import CommitOperationDelete, HfApi
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

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


def test_files_come_back_as_they_were_sent_and_history_is_kept(api: HfApi, repo: str) -> None:
    put(api, repo, "README.md", b"# A card")
    first = put(api, repo)
    put(api, repo, content=b"changed" * 100)
    assert get(api, repo, "README.md") == b"# A card"
    assert get(api, repo) == b"changed" * 100
    assert get(api, repo, revision=first) == CONTENT
    deletion = [CommitOperationDelete("data/", is_folder=True)]
    api.create_commit(repo, deletion, commit_message="Delete", repo_type="dataset")
    assert api.list_repo_files(repo, repo_type="dataset") == ["README.md"]
    assert sorted(api.list_repo_files(repo, repo_type="dataset", revision=first)) == ["README.md", "data/one.bin"]


def test_what_does_not_exist_is_named_as_the_real_one_names_it(api: HfApi, repo: str) -> None:
    with pytest.raises(RepositoryNotFoundError):
        api.repo_info("user/nowhere", repo_type="dataset")
    with pytest.raises(RevisionNotFoundError):
        api.repo_info(repo, repo_type="dataset", revision="no-such-branch")
    with pytest.raises(EntryNotFoundError):
        list(api.list_repo_tree(repo, "data", repo_type="dataset"))


@pytest.mark.usefixtures("loopback_hub")
def test_datasets_are_pushed_and_loaded(repo: str, synthetic_arrow: SyntheticArrow) -> None:
    dataset = load_from_disk(str(synthetic_arrow(rows=10)))
    dataset.push_to_hub(repo, num_shards=3)
    dataset.push_to_hub(repo, num_shards=2)
    loaded = load_dataset(repo, split="train")
    assert (loaded["id"][:], loaded.features) == (dataset["id"][:], dataset.features)
    assert [row["id"] for row in load_dataset(repo, split="train", streaming=True)] == dataset["id"][:]


def test_it_listens_on_this_machine_alone(loopback_hub: LoopbackHub) -> None:
    (hub,) = (one for one in psutil.process_iter() if str(loopback_hub.folder / "contents") in _command_of(one))
    listening = [one.laddr for one in hub.net_connections(kind="inet") if one.status == psutil.CONN_LISTEN]
    assert [*map(tuple, listening)] == [("127.0.0.1", urlsplit(loopback_hub.url).port)]
    # Its memory is none of a test's.
    assert hub not in psutil.Process().children(recursive=True)


def test_it_answers_those_who_have_its_token(loopback_hub: LoopbackHub, repo: str) -> None:
    assert loopback_hub.token not in repr(loopback_hub)
    stranger = HfApi(endpoint=loopback_hub.url, token="hf_other")
    for use in (
        lambda: stranger.create_repo("user/mine", repo_type="dataset"),
        lambda: stranger.list_repo_files(repo, repo_type="dataset"),
        lambda: put(stranger, repo),
    ):
        with pytest.raises(HfHubHTTPError, match="401"):
            use()
    for key in ("", "?key=hf_other"):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"{loopback_hub.url}/lfs/{'0' * 64}{key}")


def _command_of(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def test_it_ends_with_the_one_who_started_it() -> None:
    code = (
        "import os\n"
        "from leakcheck_incidents.synthetic.hub import loopback\n"
        "with loopback.running() as hub:\n"
        "    print(hub.folder / 'contents', hub.url, flush=True)\n"
        "    os._exit(1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600)
    contents, url = done.stdout.split()
    left = [one for one in psutil.process_iter() if contents in _command_of(one)]
    assert psutil.wait_procs(left, timeout=600)[1] == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=5)
