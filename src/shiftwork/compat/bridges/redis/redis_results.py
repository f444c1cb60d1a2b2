"""Handles what workers write back: results in `stream:result`, and reports in `stream:dlq`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from shiftwork.compat.bridges.redis import fields, scripts
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
    """An entry that someone wrote to us."""

    stream: str
    message_id: str
    fields: dict[str, str]


async def read_words(context: BridgeContext, *, again: bool = False, wait_ms: int | None = None) -> list[StreamEntry]:
    """New entries, or (`again`) those that were read and not acknowledged, since a bridge died."""
    start = "0" if again else ">"
    found = await context.read({context.streams.result: start, context.streams.dlq: start}, READERS, wait_ms=wait_ms)
    return [StreamEntry(stream, *entry) for stream, entries in found.items() for entry in entries]


async def handle_results(context: BridgeContext, words: Sequence[StreamEntry], stream_state: StreamState) -> int:
    """Let each have its effect, once; how many had one."""
    understood = [await _understand(context, word) for word in words]
    replies = [each for each in understood if each is not None]
    outcomes = await context.run(foreign_results.receive, replies, stream_state.delivered) if replies else []
    for each, outcome in zip(replies, outcomes, strict=True):
        if outcome == "late":
            log.info("late: %s of %s about %s", each.message_id, each.worker, ids.show_task(each.task_id))
    accepted = {each.message_id for each, outcome in zip(replies, outcomes, strict=True) if outcome != "late"}
    await _acknowledge(context, words, accepted)
    return outcomes.count("accepted")


async def _acknowledge(context: BridgeContext, words: Sequence[StreamEntry], accepted: set[str]) -> None:
    """After the commit. A worker's report makes room for the dead letter that the queue writes itself."""
    async with context.redis.pipeline(transaction=True) as pipe:
        for word in words:
            pipe.xack(word.stream, READERS, word.message_id)
            if word.stream == context.streams.dlq and word.message_id in accepted:
                pipe.xdel(word.stream, word.message_id)
        await pipe.execute()


async def trim(context: BridgeContext, keep: int) -> None:
    """Keep this many results to be looked at, and all that no one has heard yet."""
    await context.call(scripts.TRIM, [context.streams.result], READERS, keep)


async def _understand(context: BridgeContext, word: StreamEntry) -> WorkerReply | None:
    """None where there is nothing to do, or nothing that could be done; the latter goes to the dead letters."""
    try:
        report = fields.letter_in(word.fields) if word.stream == context.streams.dlq else fields.result_in(word.fields)
        return None if report is None else await _message(context, word, report)
    except (Malformed, InputError, NotFound) as error:
        if word.fields:  # else it was removed before it could be read
            await refuse(context, word.stream, (word.message_id, word.fields), str(error))
        return None


async def _message(context: BridgeContext, word: StreamEntry, report: Result) -> WorkerReply:
    store, workspace = context.queue.engine.store, context.bridge.workspace
    uuid = await store.read(lambda tx: read.find(tx, workspace, check.name(report.task_id, "task_id"), exact=True))
    worker = None if report.worker is None else check.name(report.worker, "worker")
    if report.data is not None:
        foreign_results.as_result(report.data)
    error = check.text(report.error, "error")
    return WorkerReply(word.stream, word.message_id, uuid, worker, report.succeeded, report.data, error, report.retry)


async def refuse(context: BridgeContext, stream: str, entry: Entry, why: str) -> None:
    """Acknowledge an entry that cannot be understood, and put it among the dead letters with the reason."""
    message_id, found = entry
    log.warning("malformed entry %s of %s: %s", message_id, stream, why)
    await context.run(foreign_results.refuse, stream, message_id, why)
    letter = fields.refused_out(found, stream, why, context.queue.now())
    if context.role == "orchestrator":  # else the letter is a worker's report to its orchestrator
        letter = fields.marked(letter)
    group = GROUP if stream == context.streams.task else READERS
    parts = [part for field in letter.items() for part in field]
    await context.call(scripts.REFUSE, [stream, context.streams.dlq], group, message_id, *parts)
    if stream == context.streams.dlq:
        await context.redis.xdel(stream, message_id)
