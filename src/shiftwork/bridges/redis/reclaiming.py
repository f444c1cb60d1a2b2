"""Taking entries back from workers that were silent for the visibility timeout."""

from __future__ import annotations

from typing import Literal

from shiftwork.bridges.redis.desk import PAGE, Desk
from shiftwork.bridges.redis.fields import GROUP
from shiftwork.bridges.redis.results import refuse
from shiftwork.bridges.redis.sight import Sight, after

Way = Literal["xautoclaim", "xclaim"]
XAUTOCLAIM_SINCE = (6, 2)


async def way_of(desk: Desk) -> Way:
    """XAUTOCLAIM where the server has it."""
    version = str((await desk.redis.info("server"))["redis_version"])
    known = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    return "xautoclaim" if known >= XAUTOCLAIM_SINCE else "xclaim"


async def recover(desk: Desk, way: Way, visibility_sec: float) -> int:
    """Make what was idle for so long ours; the next look at the stream finds it here. How many."""
    idle = int(visibility_sec * 1000)
    return await (_xautoclaim if way == "xautoclaim" else _xclaim)(desk, idle)


async def _xautoclaim(desk: Desk, idle: int) -> int:
    start, found = "0-0", 0
    while True:
        answer = await desk.redis.xautoclaim(desk.streams.task, GROUP, desk.us, idle, start, count=PAGE, justid=False)
        start, found = answer[0], found + len(answer[1])
        if start == "0-0":
            return found


async def _xclaim(desk: Desk, idle: int) -> int:
    """By hand, for servers before 6.2, whose XPENDING does not filter either."""
    first, found = "-", 0
    while True:
        page = await desk.redis.xpending_range(desk.streams.task, GROUP, first, "+", PAGE)
        late = [each["message_id"] for each in page if each["time_since_delivered"] >= idle]
        if late:
            # Only what is still idle: whoever came back meanwhile keeps its entry.
            found += len(await desk.redis.xclaim(desk.streams.task, GROUP, desk.us, idle, late))
        if len(page) < PAGE:
            return found
        first = after(page[-1]["message_id"])


async def refuse_strays(desk: Desk, sight: Sight) -> int:
    """Dead-letter the entries taken back that no offer of ours stands behind: else they stay pending for good."""
    taken_back = {message_id for message_id, consumer in sight.pending.items() if consumer == desk.us}
    if not taken_back:
        return 0
    offered = {row["message_id"] for row in await desk.rows("open_published", bridge=desk.bridge.name)}
    # An entry may have been written by a bridge that died before it could store the message id.
    strays = sorted(taken_back - offered - set(await desk.redis.hvals(desk.streams.published)))
    for message_id in strays:
        found = await desk.redis.xrange(desk.streams.task, message_id, message_id)
        if found:
            await refuse(desk, desk.streams.task, found[0], "no task of this queue was offered in it")
        else:
            await desk.redis.xack(desk.streams.task, GROUP, message_id)
    return len(strays)
