"""What a program loses under a runner of coroutines: asyncio's, trio's, anyio's; and by a client with a connection.

The runner's own line, which calls all of it, is wrong.
"""

from __future__ import annotations

import asyncio
import os
import socket

import anyio
import trio

from cases.case import drain, leak

FILES: list[int] = []
SOCKETS: list[trio.socket.SocketType] = []
OPENED: list[anyio.AsyncFile[str]] = []


async def read_settings(*, close: bool) -> None:
    await asyncio.sleep(0)
    number = os.open(os.devnull, os.O_RDONLY)
    FILES.append(number)
    if close:
        os.close(FILES.pop())


async def ask_resolver(*, close: bool) -> None:
    await trio.lowlevel.checkpoint()
    asking = trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    SOCKETS.append(asking)
    if close:
        SOCKETS.pop().close()


async def read_file(*, close: bool) -> None:
    file = await anyio.open_file(os.devnull)
    OPENED.append(file)
    if close:
        await OPENED.pop().aclose()


def close_socket(one: trio.socket.SocketType) -> None:
    """Close the socket itself: trio's own method needs a running loop."""
    os.close(one.detach())


class Client:
    """Asks a server, and keeps its connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self) -> bytes:
        self.writer.write(b"?")
        return await self.reader.read(1)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(1))
    writer.close()
    await writer.wait_closed()


async def fetch(*, close: bool) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = await Client.connect(server.sockets[0].getsockname()[1])
    await client.ask()
    CLIENTS.append(client)
    if close:
        await CLIENTS.pop().close()
    server.close()
    await server.wait_closed()


def disconnect(client: Client) -> None:
    """Close the socket of a client whose loop is closed."""
    client.writer.get_extra_info("socket")._sock.close()


CLIENTS: list[Client] = []

CASES = (
    leak("runner_of_asyncio", "fd", lambda: asyncio.run(read_settings(close=False)),
         lambda: asyncio.run(read_settings(close=True)), drain(FILES, os.close),
         line="os.open(os.devnull", owner=".FILES"),
    leak("runner_of_trio", "fd", lambda: trio.run(lambda: ask_resolver(close=False)),
         lambda: trio.run(lambda: ask_resolver(close=True)), drain(SOCKETS, close_socket),
         line="trio.socket.socket(", owner=".SOCKETS"),
    leak("runner_of_anyio", "fd", lambda: anyio.run(lambda: read_file(close=False)),
         lambda: anyio.run(lambda: read_file(close=True)), drain(OPENED, lambda one: one.wrapped.close()),
         line="await anyio.open_file(", owner=".OPENED"),
    leak("runner_of_client", "fd object", lambda: asyncio.run(fetch(close=False)),
         lambda: asyncio.run(fetch(close=True)), drain(CLIENTS, disconnect),
         line="await asyncio.open_connection(", owner=".CLIENTS"),
)  # fmt: skip
