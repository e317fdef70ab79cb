"""asyncio: the file of a Unix socket stays after its server was closed."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from tempfile import gettempdir

import pytest

RELEASES = ("python==3.11.2", "python==3.12.1")

NUMBERS = count()


async def serve_briefly(path: Path) -> None:
    server = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), path)
    server.close()
    await server.wait_closed()


def new_path() -> Path:
    return Path(gettempdir(), f"socket-{next(NUMBERS)}")


@pytest.mark.leakcheck
def test_leaky() -> None:
    asyncio.run(serve_briefly(new_path()))


@pytest.mark.leakcheck
def test_control() -> None:
    path = new_path()
    asyncio.run(serve_briefly(path))
    path.unlink(missing_ok=True)


@pytest.mark.leakcheck
def test_kept() -> None:
    new_path().touch()
