"""A process that sends batches is killed at each point: no work is sent twice, and none is lost."""

import json
import os
from collections.abc import Iterator

import pytest

from shiftwork import Queue
from shiftwork.testing import MovedClock
from tests.batches.fake_provider import FakeProvider
from tests.batches.steps import GATHER_SEC, statuses, submit, turn
from tests.crashes.fork_server import ForkServer
from tests.crashes.test_kill import until_alone
from tests.machine import tables

HOUR = 3600.0
DEEP = os.environ.get("SHIFTWORK_DEEP") == "1"


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer("tests.batches.batch_process", SHIFTWORK_PRIVATE_SINKS="1") as started:
        yield started


@pytest.mark.timeout(300)
@pytest.mark.parametrize("provider", ["anthropic", "openai"])
async def test_death_at_any_point_neither_repeats_nor_loses_work(
    server: ForkServer, store_url: str, fake: FakeProvider, clock: MovedClock, provider: str
) -> None:
    fake.ends_at_once = True
    points: list[str | None] = [None]
    for number, deadly in enumerate(points):  # the first run says which points there are
        workspace, asked = f"w{number}", [f"{number} good", f"{number} error", f"{number} expires"]
        async with Queue.open(store_url, clock=clock) as queue:
            tasks = await submit(queue.in_workspace(workspace), *asked, provider=provider)
        clock.advance(GATHER_SEC)
        with server.start("run_job", store_url, fake.environment(), clock(), deadly) as child:
            if deadly is None:
                passed = json.loads(child.read_line())
                points += [each for each in passed if DEEP or store_url.startswith("sqlite") or "commit" not in each]
            assert child.wait() == (0 if deadly is None else -9), f"it did not die at {deadly}"
        await until_alone(store_url)
        async with Queue.open(store_url, clock=clock) as opened:
            queue = opened.in_workspace(workspace)
            for _ in range(3):
                await turn(opened, clock, HOUR)
            ends = await statuses(queue, tasks)
            assert ends == ["completed", "retrying", "ready"], f"killed at {deadly}"
            good, failed = await queue.get(tasks[0]), await queue.get(tasks[1])
            assert good.cost_usd > 0
            assert failed.attempts == 1
            assert [fake.prompts().count(prompt) for prompt in asked] == [1, 1, 1], f"killed at {deadly}"
            assert [batch.status for batch in await queue.batches.list()] == ["ended"]
            tables.check(await tables.look(queue), None)
    marked = {"before posting a batch", "after posting a batch", "after reading a batch"}
    marked |= {"after uploading a batch"} if provider == "openai" else set()
    assert marked <= {str(point).removeprefix("batches: ") for point in points}


async def test_death_after_a_batch_is_cancelled_is_harmless(
    server: ForkServer, store_url: str, fake: FakeProvider, clock: MovedClock
) -> None:
    async with Queue.open(store_url, clock=clock) as queue:
        tasks = await submit(queue, "one")
        await turn(queue, clock, GATHER_SEC)
        await queue.cancel(tasks[0])
    assert server.run("run_job", store_url, fake.environment(), clock(), "batches: after cancelling a batch") == -9
    await until_alone(store_url)
    fake.end()
    async with Queue.open(store_url, clock=clock) as queue:
        await turn(queue, clock, 60)
        assert [batch.status for batch in await queue.batches.list()] == ["ended"]
        assert await statuses(queue, tasks) == ["cancelled"]
