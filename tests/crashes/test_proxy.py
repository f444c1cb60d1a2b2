"""The proxy of `prove` closes its connections in any state."""

import asyncio
import random

from shiftwork.prove.proxy import Proxy


async def test_proxy_closes_although_a_task_that_waited_for_a_connection_was_cancelled() -> None:
    """All tasks that wait for the end of a connection share one future."""
    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        proxy = Proxy(host, port, random.Random(1), http=False)
        _, writer = await proxy._connect()
        ending = asyncio.create_task(proxy._end(writer))
        await asyncio.sleep(0)  # it waits now
        ending.cancel()
        await proxy.close()
        assert not proxy._ends
