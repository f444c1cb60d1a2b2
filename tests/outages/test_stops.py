"""A server stopped for longer than a lease: its live agents keep their tasks."""

import signal

from shiftwork import Client, Queue
from tests.server import processes
from tests.worker.steps import beat_fast, until

LEASE_SEC = 4.0


async def test_stopped_server_does_not_reclaim_from_live_agents(store_url: str) -> None:
    async with Queue.open(store_url) as queue:
        await beat_fast(queue, LEASE_SEC)
        await queue.submit_many([{"type": "code", "retry": {"initial_delay_sec": 3600}}] * 8)
    async with await processes.start(store_url) as server, await Client.open(server.url) as client:
        held = [(await client.claim(f"agent-{number}", start=True))[0] for number in range(8)]
        async with Queue.open(store_url) as queue:
            await until_rounds_run(queue)
            server.process.send_signal(signal.SIGSTOP)
            stopped_at = queue.now()
            await until(lambda: queue.now() > stopped_at + LEASE_SEC + 1)
            server.process.send_signal(signal.SIGCONT)
            for each in held:
                await client.heartbeat(each.token)
            assert (await queue.status()).counts == {"running": 8}
            quiet_since = queue.now()

            async def taken_back() -> bool:
                return (await queue.status()).counts == {"retrying": 8}

            await until(taken_back)
            assert queue.now() >= quiet_since + LEASE_SEC - 1


async def until_rounds_run(queue: Queue) -> None:
    async def run() -> bool:
        return any(job.name == "health" for job in await queue.control.maintenance())

    await until(run)
