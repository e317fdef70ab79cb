"""The first run of each test is real; what it sends is then changed."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from mutations import mutate, replace_file
from pytest_leakcheck.plugin.isolation import engines
from pytest_leakcheck.runner.processes.supervisor import ProcessEnd, Start

RANDOM, SECRET = random.Random(int(os.environ["SEED"])), Path("SECRET").absolute()
REAL = engines.supervisor.run  # type: ignore[attr-defined]
SENT: dict[object, tuple[list[str], ProcessEnd]] = {}
TRIED: list[object] = []


def run(start: Start, folder: Path, watch: Any) -> ProcessEnd:
    task = json.loads((folder / "start").read_text())
    key = task["test"].partition("[")[0], task["sizing"] and task["sizing"]["size"]
    names = [f"messages-{rank}" for rank in range(start.ranks)]
    if key not in SENT:
        ended: ProcessEnd = REAL(start, folder, watch)
        SENT[key] = [(folder / name).read_text() for name in names], ended
        return ended
    texts, ended = SENT[key]
    for name, text in zip(names, texts):
        (folder / name).write_text(mutate(text, RANDOM), errors="surrogatepass")
    if RANDOM.random() < 0.2:
        replace_file(folder / RANDOM.choice([*names, "stack-0", "failures"]), RANDOM, SECRET)
    elif start.ranks > 1:
        (folder / "failures").write_text(mutate('{"0": 1, "1": -9}', RANDOM), errors="surrogatepass")
    TRIED.append(key)
    return ended


engines.supervisor.run = run  # type: ignore[attr-defined]


def audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "import" and arguments[0] == "evil" or event == "open" and str(arguments[0]) == str(SECRET):
        os.write(2, f"BREACH {event} {arguments}".encode())


sys.addaudithook(audit)


def pytest_sessionfinish() -> None:
    Path("tried").write_text(str(len(TRIED)))
