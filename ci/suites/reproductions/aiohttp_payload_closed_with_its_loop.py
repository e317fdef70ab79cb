"""aiohttp: a payload that is closed just before its event loop ends stays in `aiohttp.payload._CLOSE_FUTURES`.

The future removes itself when it is done, which a closed loop never reports. It retains the loop. `asyncio.run` waits for
the threads of the loop, so it does not leak.
"""

import asyncio
import gc
from pathlib import Path

from aiohttp import payload

ITERATIONS = 200
FILE = Path(__file__)


async def serve() -> None:
    """Close a file as a response does that was sent."""
    await payload.BufferedReaderPayload(FILE.open("rb")).close()  # noqa: ASYNC230 - nothing else runs in the loop


def count() -> int:
    """Return how many event loops exist."""
    gc.collect()
    return sum(isinstance(one, asyncio.BaseEventLoop) for one in gc.get_objects())


before = count()
for _ in range(ITERATIONS):
    loop = asyncio.new_event_loop()
    loop.run_until_complete(serve())
    loop.close()
del loop
own, futures = count(), len(payload._CLOSE_FUTURES)
for _ in range(ITERATIONS):
    asyncio.run(serve())
print(
    f"{ITERATIONS} iterations: {before} -> {own} event loops ({futures} futures); with asyncio.run: {own} -> {count()}"
)
