"""Handles the replies of workers: results in `stream:result`, and reports in `stream:dlq`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from shiftwork.compat.bridges.redis import fields, lua_scripts
from shiftwork.compat.bridges.redis.bridge_context import BridgeContext, Entry
from shiftwork.compat.bridges.redis.fields import GROUP, READERS, Malformed, Result
from shiftwork.compat.bridges.redis.stream_state import StreamState
from shiftwork.compat.external import foreign_results
from shiftwork.compat.external.foreign_results import WorkerReply
from shiftwork.engine import read
from shiftwork.model import check, ids
from shiftwork.model.errors import InputError, NotFound

log = logging.getLogger("shiftwork.compat.bridges")


class StreamEntry(NamedTuple):
    """An entry written by a worker."""

    stream: str
    message_id: str
    fields: dict[str, str]


async def read_entries(context: BridgeContext, *, again: bool = False, wait_ms: int | None = None) -> list[StreamEntry]:
    """Read new entries, or with `again` those that a dead bridge read and did not acknowledge."""
    start = "0" if again else ">"
    found = await context.read({context.streams.result: start, context.streams.dlq: start}, READERS, wait_ms=wait_ms)
    return [StreamEntry(stream, *entry) for stream, entries in found.items() for entry in entries]


async def handle_results(context: BridgeContext, entries: Sequence[StreamEntry], stream_state: StreamState) -> int:
    """Apply each entry once; returns how many had an effect."""
    parsed = [await _parse(context, entry) for entry in entries]
    replies = [each for each in parsed if each is not None]
    outcomes = await context.run(foreign_results.receive, replies, stream_state.delivered) if replies else []
    for each, outcome in zip(replies, outcomes, strict=True):
        if outcome == "late":
            log.info("late: %s of %s about %s", each.message_id, each.worker, ids.show_task(each.task_id))
    accepted = {each.message_id for each, outcome in zip(replies, outcomes, strict=True) if outcome != "late"}
    await _acknowledge(context, entries, accepted)
    return outcomes.count("accepted")


async def _acknowledge(context: BridgeContext, entries: Sequence[StreamEntry], accepted: set[str]) -> None:
    """Acknowledge after the commit. An accepted report is deleted: the queue writes its own dead letter."""
    async with context.redis.pipeline(transaction=True) as pipe:
        for entry in entries:
            pipe.xack(entry.stream, READERS, entry.message_id)
            if entry.stream == context.streams.dlq and entry.message_id in accepted:
                pipe.xdel(entry.stream, entry.message_id)
        await pipe.execute()


async def trim(context: BridgeContext, keep: int) -> None:
    """Keep this many results, and all that are not handled yet."""
    await context.call(lua_scripts.TRIM, [context.streams.result], READERS, keep)


async def _parse(context: BridgeContext, entry: StreamEntry) -> WorkerReply | None:
    """Parse an entry; None if there is nothing to do. An invalid one is dead-lettered."""
    try:
        parse = fields.letter_in if entry.stream == context.streams.dlq else fields.result_in
        report = parse(entry.fields)
        return None if report is None else await _reply(context, entry, report)
    except (Malformed, InputError, NotFound) as error:
        if entry.fields:  # otherwise it was removed before it could be read
            await refuse(context, entry.stream, (entry.message_id, entry.fields), str(error))
        return None


async def _reply(context: BridgeContext, entry: StreamEntry, report: Result) -> WorkerReply:
    store, workspace = context.queue.engine.store, context.bridge.workspace
    uuid = await store.read(lambda tx: read.find(tx, workspace, check.name(report.task_id, "task_id"), exact=True))
    worker = None if report.worker is None else check.name(report.worker, "worker")
    if report.data is not None:
        foreign_results.as_result(report.data)
    error = check.text(report.error, "error")
    return WorkerReply(entry.stream, entry.message_id, uuid, worker, report.succeeded, report.data, error, report.retry)


async def refuse(context: BridgeContext, stream: str, entry: Entry, why: str) -> None:
    """Acknowledge an invalid entry, and dead-letter it with the reason."""
    message_id, content = entry
    log.warning("malformed entry %s of %s: %s", message_id, stream, why)
    await context.run(foreign_results.refuse, stream, message_id, why)
    letter = fields.refused_out(content, stream, why, context.queue.now())
    if context.role == "orchestrator":  # otherwise the dead letter is a worker's report
        letter = fields.marked(letter)
    group = GROUP if stream == context.streams.task else READERS
    parts = [part for field in letter.items() for part in field]
    await context.call(lua_scripts.REFUSE, [stream, context.streams.dlq], group, message_id, *parts)
    if stream == context.streams.dlq:
        await context.redis.xdel(stream, message_id)
