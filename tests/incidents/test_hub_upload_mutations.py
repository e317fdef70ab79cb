"""Incident 3: each line of the uploader that matters is broken in turn, and what watches it must notice."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from datasets import Dataset, load_dataset, load_from_disk
from datasets.table import embed_table_storage
from huggingface_hub import HfApi

from leakcheck_incidents.hub_upload import fixed, plan, repository, shards, workplace
from leakcheck_incidents.synthetic.hub.faults import Fault
from leakcheck_incidents.synthetic.hub.loopback import LoopbackHub

if TYPE_CHECKING:
    from leakcheck_incidents.material import SyntheticArrow

pytest_plugins = "leakcheck_incidents.material"
# huggingface_hub 2.4 itself hands a body to httpx2 in a way that is going out of use there.
pytestmark = [pytest.mark.laboratory, pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")]

MIB = 1 << 20


@dataclass(frozen=True)
class Place:
    """What a check works with."""

    hub: LoopbackHub
    api: HfApi
    repo: str
    temporary: Path
    arrow: SyntheticArrow
    patch: pytest.MonkeyPatch

    def dataset(self, **table: Any) -> Dataset:
        return load_from_disk(str(self.arrow(**table)))

    def upload(self, dataset: Dataset, shards: int, repo: str = "") -> None:
        fixed.upload(dataset, repo or self.repo, shards=shards, api=self.api)

    def table(self, repo: str = "") -> list[dict[str, Any]]:
        read = load_dataset(repo or self.repo, split="train", download_mode="force_redownload")
        rows: list[dict[str, Any]] = read.with_format("arrow")[:].to_pylist()
        return rows


def rows_of(dataset: Dataset) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = embed_table_storage(dataset.with_format("arrow")[:]).to_pylist()
    return rows


# The checks.


def the_memory_does_not_grow(place: Place) -> None:
    def peak(count: int) -> int:
        dataset = place.dataset(rows=24, file_size=MIB, nested=False, nulls=0).select(range(2 * count))
        tracemalloc.start()
        try:
            place.upload(dataset, count, f"{place.repo}-{count}")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    place.upload(place.dataset(rows=4), 2)
    few, many = peak(3), peak(12)
    assert many < few + 2 * MIB, (few, many)


def one_file_at_a_time(place: Place) -> None:
    seen: list[int] = []

    class Bar:
        def update(self) -> None:
            seen.append(len(list(place.temporary.rglob("*.parquet"))))

    place.patch.setattr(fixed, "progress", lambda _plan: contextlib.nullcontext(Bar()))
    place.upload(place.dataset(rows=8), 4)
    assert seen == [0, 0, 0, 0]


def nothing_is_left(place: Place) -> None:
    place.upload(place.dataset(rows=8), 4)
    assert list(place.temporary.iterdir()) == []


def same(found: Any, expected: Any) -> None:
    # Of an `assert` pytest would work out the differences of megabytes, for minutes.
    if found != expected:
        pytest.fail("other rows came back")


def rows_come_back(place: Place) -> None:
    for number, dataset in enumerate((place.dataset(rows=23), place.dataset(rows=23).shuffle(seed=1))):
        place.upload(dataset, 4, f"{place.repo}-{number}")
        same(place.table(f"{place.repo}-{number}"), rows_of(dataset))


def groups_come_back(place: Place) -> None:
    dataset = place.dataset(rows=230, file_size=300)
    assert plan.planned(dataset, place.repo, "train", 2).shards[0].group < 115
    place.upload(dataset, 2)
    same(place.table(), rows_of(dataset))


def shards_are_named_as_load_dataset_expects(place: Place) -> None:
    place.upload(place.dataset(rows=8), 2)
    names = place.api.list_repo_files(place.repo, repo_type="dataset")
    assert names == ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]


def former_shards_go(place: Place) -> None:
    place.upload(place.dataset(rows=8), 4)
    place.upload(place.dataset(rows=8), 2)
    assert [row["id"] for row in place.table()] == list(range(8))


def other_files_stay(place: Place) -> None:
    place.api.create_repo(place.repo, repo_type="dataset")
    for name in ("data/train-00000-of-00001.txt", "data/test-00000-of-00001.parquet", "data/training.parquet"):
        place.api.upload_file(path_or_fileobj=b"x", path_in_repo=name, repo_id=place.repo, repo_type="dataset")
    place.upload(place.dataset(rows=8), 2)
    assert len(place.api.list_repo_files(place.repo, repo_type="dataset")) == 5


def there_is_one_commit(place: Place) -> None:
    place.upload(place.dataset(rows=8), 4)
    assert sum(f"{place.repo}/commit/" in one.line for one in place.hub.requests()) == 1


def regular_files_are_uploaded(place: Place) -> None:
    place.hub.fail(Fault("regular", times=1000, on="/preupload/"))
    place.upload(place.dataset(rows=8), 4)
    place.hub.fail()
    assert [row["id"] for row in place.table()] == list(range(8))


def leftovers_go_first(_place: Place) -> None:
    with workplace.workplace("here") as folder:
        pass
    folder.mkdir()
    (folder / "left.parquet").touch()
    with workplace.workplace("here") as again:
        assert again == folder
        assert list(again.iterdir()) == []


def two_do_not_share_a_place(_place: Place) -> None:
    with workplace.workplace("here"), pytest.raises(RuntimeError), workplace.workplace("here"):
        pass


def files_beside_are_in_the_plan(place: Place) -> None:
    beside, within = (place.dataset(rows=6, file_size=MIB, embedded=embedded) for embedded in (False, True))
    sizes = [[shard.size for shard in plan.planned(one, "user/x", "train", 2).shards] for one in (beside, within)]
    for there, here in zip(*sizes, strict=True):
        assert 0.98 * here < there < 1.02 * here


@dataclass(frozen=True)
class Mutation:
    """One line, what it becomes, and the check that must notice."""

    module: ModuleType
    line: str
    becomes: str
    check: Callable[[Place], None]


MUTATIONS = {
    "keep the bytes": Mutation(
        fixed,
        "CommitOperationAdd(shard.path, path)\n                api.preupload_lfs_files(repo, [addition],",
        "CommitOperationAdd(shard.path, path.read_bytes())\n"
        "                api.preupload_lfs_files(repo, [addition], free_memory=False,",
        the_memory_does_not_grow,
    ),
    "a shard at once": Mutation(
        shards, "range(shard.first, shard.last, shard.group)", "[shard.first]", groups_come_back
    ),
    "skip the unlink": Mutation(shards, "path.unlink(missing_ok=True)", "pass", one_file_at_a_time),
    "leave the folder": Mutation(workplace, "shutil.rmtree(folder)", "pass", nothing_is_left),
    "leave what was left": Mutation(workplace, "left.unlink()", "pass", leftovers_go_first),
    "share the lock": Mutation(workplace, "fcntl.LOCK_EX", "fcntl.LOCK_SH", two_do_not_share_a_place),
    "ignore the indices mapping": Mutation(
        shards,
        'dataset.with_format("arrow")',
        'Dataset(dataset.data, dataset.info).with_format("arrow")',
        rows_come_back,
    ),
    "do not embed": Mutation(shards, "return embed_table_storage(table)", "return table", rows_come_back),
    "lose the rows that do not come out even": Mutation(shards, "+ min(number, more)", "", rows_come_back),
    "run into the next shard": Mutation(
        shards, "min(first + shard.group, shard.last)", "first + shard.group", groups_come_back
    ),
    "four digits": Mutation(shards, "{self.number:05d}", "{self.number:04d}", shards_are_named_as_load_dataset_expects),
    "leave former shards": Mutation(fixed, ", *outdated(api, plan)", "", former_shards_go),
    "take other files for shards": Mutation(repository, "is_shard(path, plan.split) and ", "", other_files_stay),
    "commit each": Mutation(fixed, 'addition._upload_mode == "regular"', "addition._upload_mode", there_is_one_commit),
    "forget regular files": Mutation(
        fixed, 'addition._upload_mode == "regular"', "addition._upload_mode is None", regular_files_are_uploaded
    ),
    "plan without the files": Mutation(
        plan, " + sum(path.stat().st_size for path in beside)", "", files_beside_are_in_the_plan
    ),
}


@pytest.fixture
def place(
    loopback_hub: LoopbackHub, synthetic_arrow: SyntheticArrow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    api = HfApi(endpoint=loopback_hub.url, token=loopback_hub.token)
    repo = f"user/{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:12]}"
    yield Place(loopback_hub, api, repo, temporary, synthetic_arrow, monkeypatch)
    loopback_hub.fail()
    shutil.rmtree(temporary)


def mutate(mutation: Mutation, patch: pytest.MonkeyPatch) -> None:
    """Put the broken functions and classes in the place of the whole ones, wherever the uploader has them from."""
    source = inspect.getsource(mutation.module)
    assert source.count(mutation.line) == 1, f"{mutation.line!r} is there {source.count(mutation.line)} times"
    # A module of its own name, so that what is made of it is told apart from nothing.
    broken: dict[str, Any] = {"__name__": mutation.module.__name__}
    exec(compile(source.replace(mutation.line, mutation.becomes), mutation.module.__file__ or "", "exec"), broken)
    for module in (fixed, plan, repository, shards, workplace):
        for name, value in list(vars(module).items()):
            if getattr(value, "__module__", "") == mutation.module.__name__ and name in broken:
                patch.setattr(module, name, broken[name])


@pytest.mark.parametrize(
    "check", dict.fromkeys(one.check for one in MUTATIONS.values()), ids=lambda check: check.__name__
)
def test_the_uploader_passes(check: Callable[[Place], None], place: Place) -> None:
    check(place)


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_one_is_noticed(name: str, place: Place) -> None:
    mutate(MUTATIONS[name], place.patch)
    with pytest.raises((AssertionError, pytest.fail.Exception, OSError, ValueError, LookupError)):
        MUTATIONS[name].check(place)
