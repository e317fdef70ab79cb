"""A gauge and phases, leaky and fixed."""

from __future__ import annotations

import os

import pytest

from pytest_leakcheck import Leakcheck

LEAKY = True

rows: list[int] = []
kept: list[int] = []


@pytest.mark.fd_budget(0)
def test_marked(leakcheck: Leakcheck) -> None:
    waiting = rows if LEAKY else []
    waiting.append(1)
    leakcheck.gauge("waiting", lambda: len(waiting))


@pytest.mark.fd_budget(0)
def test_phases(leakcheck: Leakcheck) -> None:
    os.close(os.open(os.devnull, os.O_RDONLY))
    leakcheck.checkpoint("probed")
    file = os.open(os.devnull, os.O_RDONLY)
    kept.append(file) if LEAKY else os.close(file)
    leakcheck.checkpoint("loaded")


def test_phases_of_a_loop(leakcheck: Leakcheck) -> None:
    for step in leakcheck.steps(fd=0):
        leakcheck.checkpoint("probed")
        file = os.open(os.devnull, os.O_RDONLY)
        kept.append(file) if LEAKY else os.close(file)
        leakcheck.checkpoint("loaded")
