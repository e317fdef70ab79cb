"""click: the cache of text streams keeps each standard stream that ``click.echo`` has written to."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

import click
import pytest

RELEASES = ("click==8.0.0", "click==8.5.1")


@pytest.mark.leakcheck
def test_leaky() -> None:
    with redirect_stdout(StringIO()):
        click.echo("x" * 1000)


@pytest.mark.leakcheck
def test_control() -> None:
    click.echo("x" * 1000, file=StringIO())
