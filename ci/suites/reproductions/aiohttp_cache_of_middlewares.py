"""aiohttp: a cache of 1,024 entries retains applications with middlewares, and is flat once it is full."""

import asyncio
import gc

from aiohttp import web, web_app
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.typedefs import Handler

ITERATIONS = 1200


async def serve() -> None:
    """Send a request to a new application with a middleware."""

    async def handle(_request: web.Request) -> web.Response:
        return web.Response()

    async def pass_on(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await handler(request)

    application = web.Application(middlewares=[web.middleware(pass_on)])
    application.router.add_get("/", handle)
    async with TestClient(TestServer(application)) as client:
        await client.get("/")


def run() -> str:
    """Return how many objects exist before and after."""
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(ITERATIONS):
        asyncio.run(serve())
    gc.collect()
    return f"{before:,} -> {len(gc.get_objects()):,} objects, {web_app._cached_build_middleware.cache_info().currsize} entries"


print(f"{ITERATIONS} iterations: {run()}; as many again: {run()}")
