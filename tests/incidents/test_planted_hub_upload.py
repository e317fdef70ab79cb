"""Regressions of incident 3 turn the tests of its fixed arm red, and refactorings do not."""

from __future__ import annotations

import pytest

from planting import Change, judge_change, red_findings
from projects import Project

_SEND = """        addition = CommitOperationAdd(piece.path, path)
        self._api.preupload_lfs_files(self._repo, [addition], repo_type="dataset")
        return addition
"""
# Fewer and smaller shards: a leak still grows five times as fast as allowed.
_SMALL = {
    "test_hub_upload.py": [
        ("SIZES = [2, 4, 8]", "SIZES = [1, 2, 4]"),
        ('"file_size": 2 << 20', '"file_size": 1 << 20'),
    ]
}
_PEAK = ("test_peak[fixed]", "rss", "over_budget")

REGRESSIONS = [
    (
        Change(
            "the tables of all shards are kept for a retry",
            {
                "shards.py": [
                    (
                        "            yield pa.concat_tables(group)\n            group, size = [], 0",
                        "            yield _keep(pa.concat_tables(group))\n            group, size = [], 0",
                    ),
                    (
                        "    if group:\n        yield pa.concat_tables(group)\n",
                        "    if group:\n        yield _keep(pa.concat_tables(group))\n\n\n_KEPT: list[pa.Table] = []\n\n\ndef _keep(table: pa.Table) -> pa.Table:\n    _KEPT.append(table)\n    return table\n",
                    ),
                ]
            }
            | _SMALL,
            "test_peak",
        ),
        _PEAK,
    ),
    (
        Change(
            "the whole split is embedded first",
            {
                "shards.py": [
                    (
                        '    rows = dataset.with_format("arrow")\n',
                        '    rows = embed_table_storage(dataset.with_format("arrow")[:])\n',
                    ),
                    ("embed_table_storage(rows[row : row + 1])", "rows.slice(row, 1)"),
                ]
            }
            | _SMALL,
            "test_peak",
        ),
        _PEAK,
    ),
    (
        Change(
            "the bytes of all shards are prepared ahead",
            {
                "uploader.py": [
                    (
                        "            for piece in self._pieces:\n                with written(self._dataset, piece, Path(folder)) as path:\n                    additions.append(self._send(piece, path))\n",
                        '            ready: list[tuple[Shard, bytes]] = []\n            for piece in self._pieces:\n                with written(self._dataset, piece, Path(folder)) as path:\n                    ready.append((piece, path.read_bytes()))\n            for piece, content in ready:\n                path = Path(folder, "shard")\n                path.write_bytes(content)\n                additions.append(self._send(piece, path))\n',
                    )
                ]
            }
            | _SMALL,
            "test_peak",
        ),
        _PEAK,
    ),
    (
        Change(
            "a whole shard is one group",
            {
                "shards.py": [
                    (
                        "_GROUP_ROWS: Final = 100\n_GROUP_SIZE: Final = 4 << 20",
                        "_GROUP_ROWS: Final = 1 << 40\n_GROUP_SIZE: Final = 1 << 40",
                    )
                ]
            },
            "test_two_shards",
        ),
        ("test_two_shards[fixed]", "rss", "over_budget"),
    ),
    (
        Change(
            "the groups of a shard are listed",
            {"shards.py": [("in _groups(dataset, shard):", "in list(_groups(dataset, shard)):")]},
            "test_two_shards",
        ),
        ("test_two_shards[fixed]", "rss", "over_budget"),
    ),
    (
        Change(
            "the files of all shards are kept until the commit",
            {"shards.py": [("        path.unlink(missing_ok=True)\n", "        pass\n")]},
            "test_two_shards",
        ),
        ("test_two_shards[fixed]", "gauge:shard_files", "over_budget"),
    ),
    (
        Change(
            "a temporary file is opened for each shard and not closed",
            {
                "shards.py": [
                    (
                        "    path = folder / Path(shard.path).name\n",
                        "    path = Path(tempfile.mkstemp(dir=folder)[1])\n",
                    ),
                    ("import re\n", "import re\nimport tempfile\n"),
                ]
            },
            "test_left_behind",
            ("--leakcheck-iterations=30", "--leakcheck-max-time=600"),
        ),
        ("test_left_behind[fixed]", "fd", "leak"),
    ),
]
REFACTORINGS = [
    Change(
        "operations have bytes, which the client drops once they are sent",
        {"fixed.py": [(_SEND, _SEND.replace("(piece.path, path)", "(piece.path, path.read_bytes())"))]} | _SMALL,
        "test_peak",
    ),
    Change(
        "a commit for each shard",
        {
            "uploader.py": [
                (
                    "additions.append(self._send(piece, path))",
                    "done = api.upload_file(\n"
                    "    path_or_fileobj=path, path_in_repo=piece.path, repo_id=repo, repo_type='dataset'\n)",
                ),
                ('return api.create_commit(repo, changes, commit_message=message, repo_type="dataset")', "return done"),
            ]
        }
        | _SMALL,
        "test_peak",
    ),
]


@pytest.mark.laboratory
@pytest.mark.parametrize(("change", "red"), REGRESSIONS, ids=lambda one: one.what if isinstance(one, Change) else "")
def test_a_regression_is_red(project: Project, change: Change, red: tuple[str, str, str]) -> None:
    ran = judge_change(project, "hub_upload", change)
    assert red in red_findings(ran), ran.text


@pytest.mark.laboratory
@pytest.mark.parametrize("change", REFACTORINGS, ids=lambda change: change.what)
def test_a_refactoring_is_green(project: Project, change: Change) -> None:
    ran = judge_change(project, "hub_upload", change)
    assert ran.findings, ran.text
    assert {one["verdict"] for one in ran.findings} == {"ok"}, ran.text
