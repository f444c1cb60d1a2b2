"""Fair share under concurrent claims: no claim waits for another, and no share is passed over."""

import asyncio
from collections import Counter

from shiftwork import Queue
from tests.races.fleet import Stop, handles, hire, together

NAMES = ("alice", "bob", "carol", "dave")


async def flood(url: str, count: int) -> None:
    """Fill the queue before other handles open, since these may notice a changed setting a second late."""
    async with Queue.open(url) as queue:
        await queue.settings.set("fair_share.by", "created_by")
        await queue.settings.set("fair_share.shares", 64)
        for name in NAMES:
            await queue.submit_many([{"type": "code", "created_by": name}] * count)


async def test_concurrent_claims_take_from_every_share_without_duplicates(store_url: str) -> None:
    claimers, each = 8, 15
    await flood(store_url, 100)
    async with handles(store_url, 4) as queues:
        await hire(queues[0], *(f"agent-{number}" for number in range(claimers)))

        async def claim(number: int) -> list[tuple[str, str]]:
            taken = []
            for _ in range(each):
                (one,) = await queues[number % 4].claim(f"agent-{number}")
                taken.append((one.id, str(one.task().created_by)))
            return taken

        answers = [one for answer in await together(*map(claim, range(claimers))) for one in answer]
        assert len({id_ for id_, _ in answers}) == claimers * each
        shares = Counter(name for _, name in answers)
        assert min(shares[name] for name in NAMES) >= claimers * each // len(NAMES) // 2


async def test_claim_stalled_with_the_round_robin_lock_delays_no_other(postgres_url: str) -> None:
    await flood(postgres_url, 10)
    async with handles(postgres_url, 2) as (slow, quick):
        await hire(quick, "slow", "quick")
        stop = Stop(slow, "save_turns")
        stalled = asyncio.create_task(slow.claim("slow"))
        await stop.wait()
        authors = [(await quick.claim("quick"))[0].task().created_by for _ in range(30)]
        assert set(authors) == set(NAMES)
        stop.resume()
        assert len(await stalled) == 1
