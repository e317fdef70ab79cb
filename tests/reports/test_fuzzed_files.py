"""Files that are damaged at random, by a seed: each costs a status and a message, never a traceback."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from pytest_leakcheck.baseline.known_leaks import Baseline, KnownLeak, to_text
from pytest_leakcheck.cli import main
from pytest_leakcheck.model.culprit import CreationPath, Culprit, Owner, Remainder, Share, Site
from pytest_leakcheck.model.decoding import encode
from pytest_leakcheck.model.finding import Causes, Finding, UnjudgedGrowth, Verdict
from pytest_leakcheck.model.recording import Law, Point, Recording, Scaled, Series, UserPhase
from pytest_leakcheck.model.resources import Resource
from pytest_leakcheck.report.json_file import FirstLine, LastLine, Session, to_line
from pytest_leakcheck.watch.history import Row
from variants import variants

Command: TypeAlias = Callable[[str], list[str]]
SITE = Site("/project/shop.py", 3, "fill", "CACHE.append(1)")
# What a damaged or hostile file may have in place of any value.
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 3, 2**63, 10**30, 1e308, float("nan"), float("inf"), "", "fd", "x" * 300, "\udcff\x1b[2J\u202e",
    "::error::", "<script>", "../../etc/passwd", [], [[]], {}, {"": ""}, [0], ["fd"], "ok", "leak", "gauge:x", "process",
)  # fmt: skip


def report_text() -> str:
    culprit = Culprit(
        "fd",
        CreationPath((SITE, SITE), SITE, "call", "client"),
        SITE,
        Owner("shop.CACHE", "module shop", (), "list", 1.0),
        unresolved={"owner": "no time was left"},
        ran_out_of_time=True,
        share=Share(CreationPath((SITE,), SITE), 10, 20, "x"),
        companion="thread",
    )
    verdicts = (Verdict("fd", "leak", 1.0, 17, 17, colour="red"), Verdict("rows", "ok", floor=0.1, colour="green"))
    series = (Series("fd", tuple(range(18))), Series("process", (0,) * 18), Series("object", (0, 1), (1,)))
    recording = Recording("t.py::a", series, 6, 1.0, limits={"fd": 1024}, environment={"python": "3.11"})
    held = {"fd": (Remainder("/dev/null", 3),)}
    grown = Finding(
        "t.py::a", verdicts, {"fd": "0"}, (UnjudgedGrowth("heap", 1.0, 3),), held, recording, {"fd": "why"}, culprit
    )
    points = tuple(
        Point(size, (Recording("t.py::b", (), peaks={"rss": size}, phases=(UserPhase("a", {"rss": 3}),)),), 5, 1.0)
        for size in (1, 2, 4)
    )
    law = Law("O(n)", 1.0, (0.9, 1.1), 1.0, (0.9, 1.1), 3, 1)
    over = (Verdict("rss", "over_budget", level=4, peak=True, law=law, explicit=True, colour="red"),)
    recorded = Recording("t.py::b", (), peaks={"rss": 4})
    scaled = Finding("t.py::b", over, {}, (), {}, recorded, {}, scaled=Scaled("n", "", points))
    green = Finding("t.py::c", (Verdict("fd", "ok", floor=0.1, colour="green"),), {}, (), {}, recording, {})
    found = (grown, scaled, green)
    first = FirstLine({"rows": Resource("rows", "count", "rows")})
    last = LastLine(Session("2 tests"), Causes(found).list())
    return to_line(first) + "".join(map(to_line, found)) + to_line(last)


def ledger_text() -> str:
    rows = [Row(1.0, 1, 42, "python train.py", 1.0)]
    for at in range(2, 9):
        values = {"fd": at, "rss": at << 20, "fd of python 42": at, "rss of python 42": at << 20}
        rows.append(Row(float(at), step=at, values=values, limits={"fd of python 42": (64, "ulimit -n 64")}))
    rows += [Row(9.5, new={"fd of python 42": {"/dev/null": 3}}, notes=("a note",)), Row(10.0, ended="over")]
    return "".join(json.dumps(encode(row)) + "\n" for row in rows)


def baseline_text() -> str:
    known = KnownLeak("a-fd", "fd", "leak", 1.0, "shop.CACHE", "shop.py:fill", ("t.py::a",), "2026-11-26", "why")
    other = KnownLeak("b", "rows", "leak", 2.5, "", "", (), "", expires="2027-01-31", only={"python": ">=3.11"})
    return to_text(Baseline((known, other), {"comment": "x"}))


def mutations(text: str, chance: random.Random) -> Iterator[str]:
    """Yield damaged texts without end: values replaced, removed and doubled, or characters."""
    lines = text.splitlines(keepends=True)
    whole = text.startswith("{\n")
    while True:
        if chance.random() < 0.2:
            at, length = chance.randrange(len(text)), chance.choice((1, 1, 1, 30, len(text)))
            yield text[:at] + chance.choice(("", "\0", "[" * 5000, '"', "9" * 400, "}\n")) + text[at + length :]
            continue
        at = chance.randrange(len(lines))
        data = json.loads(text if whole else lines[at])
        for _time in range(chance.choice((1, 1, 1, 2, 5))):
            mutate(data, chance)
        changed = json.dumps(data)
        yield changed if whole else "".join((*lines[:at], changed + "\n", *lines[at + 1 :]))


def mutate(data: Any, chance: random.Random) -> None:
    places: list[tuple[Any, Any]] = []
    todo = [data]
    while todo:
        one = todo.pop()
        keys = list(one) if isinstance(one, dict) else list(range(len(one)))
        places += [(one, key) for key in keys]
        todo += [one[key] for key in keys if isinstance(one[key], dict | list)]
    if not places:
        return
    parent, key = chance.choice(places)
    how = chance.random()
    if how < 0.6:
        parent[key] = deepcopy(chance.choice(VALUES))
    elif how < 0.75:
        del parent[key]
    elif how < 0.9 and isinstance(parent, list):
        parent.insert(0, deepcopy(parent[key]))
    else:
        # A copy: a value within itself is no JSON.
        parent[key] = deepcopy(chance.choice(places)[0])


@pytest.mark.parametrize("count", variants([200], [20_000]))
@pytest.mark.parametrize(
    ("text", "command"),
    [
        (report_text, lambda file: ["report", "--no-open", "--no-source", file]),
        (report_text, lambda file: ["compare", file, file]),
        (report_text, lambda file: ["explain", "d51d4f", file]),
        (ledger_text, lambda file: ["report", "--no-open", file]),
        (baseline_text, lambda file: ["baseline", "list", file]),
        (baseline_text, lambda file: ["baseline", "merge", file, file]),
    ],
    ids=["report", "compare", "explain", "ledger", "list", "merge"],
)
def test_a_damaged_file_ends_with_a_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: Callable[[], str], command: Command, count: int
) -> None:
    path = tmp_path / "file.json"
    path.write_text(text())
    assert main(command(str(path))) == 0
    made = mutations(text(), random.Random(58))
    seen = set()
    for _file in range(count):
        path.write_text(damaged := next(made), encoding="utf-8", errors="surrogatepass")
        try:
            seen.add(main(command(str(path))))
        except Exception as error:
            raise AssertionError(damaged) from error
    capsys.readouterr()
    assert seen == {0, 2}
