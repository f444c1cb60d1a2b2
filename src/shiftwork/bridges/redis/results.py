"""What workers write back: results in `stream:result`, and reports in `stream:dlq`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from shiftwork.bridges.redis import fields, scripts
from shiftwork.bridges.redis.desk import Desk, Entry
from shiftwork.bridges.redis.fields import GROUP, READERS, Malformed, Result
from shiftwork.bridges.redis.sight import Sight
from shiftwork.core import ids
from shiftwork.core.errors import InputError, NotFound
from shiftwork.queue import check, read
from shiftwork.queue.bridged import heard
from shiftwork.queue.bridged.heard import Said

log = logging.getLogger("shiftwork.bridges")


class Word(NamedTuple):
    """An entry that somebody wrote to us."""

    stream: str
    message_id: str
    fields: dict[str, str]


async def read_words(desk: Desk, *, again: bool = False, wait_ms: int | None = None) -> list[Word]:
    """New entries, or (`again`) those that were read and not acknowledged, since a bridge died."""
    start = "0" if again else ">"
    found = await desk.read({desk.streams.result: start, desk.streams.dlq: start}, READERS, wait_ms=wait_ms)
    return [Word(stream, *entry) for stream, entries in found.items() for entry in entries]


async def hear(desk: Desk, words: Sequence[Word], sight: Sight) -> int:
    """Let each have its effect, once; how many had one."""
    understood = [await _understand(desk, word) for word in words]
    said = [each for each in understood if each is not None]
    outcomes = await desk.run(heard.hear, said, sight.delivered) if said else []
    for each, outcome in zip(said, outcomes, strict=True):
        if outcome == "late":
            log.info("late: %s of %s about %s", each.message_id, each.worker, ids.show_task(each.task_id))
    accepted = {each.message_id for each, outcome in zip(said, outcomes, strict=True) if outcome != "late"}
    await _acknowledge(desk, words, accepted)
    return outcomes.count("accepted")


async def _acknowledge(desk: Desk, words: Sequence[Word], accepted: set[str]) -> None:
    """After the commit. A worker's report makes room for the dead letter that the queue writes itself."""
    async with desk.redis.pipeline(transaction=True) as pipe:
        for word in words:
            pipe.xack(word.stream, READERS, word.message_id)
            if word.stream == desk.streams.dlq and word.message_id in accepted:
                pipe.xdel(word.stream, word.message_id)
        await pipe.execute()


async def trim(desk: Desk, keep: int) -> None:
    """Keep so many results to be looked at, and all that nobody has heard yet."""
    await desk.call(scripts.TRIM, [desk.streams.result], READERS, keep)


async def _understand(desk: Desk, word: Word) -> Said | None:
    """None where there is nothing to do, or nothing that could be done; the latter goes to the dead letters."""
    try:
        report = fields.letter_in(word.fields) if word.stream == desk.streams.dlq else fields.result_in(word.fields)
        return None if report is None else await _said(desk, word, report)
    except (Malformed, InputError, NotFound) as error:
        if word.fields:  # else it was removed before it could be read
            await refuse(desk, word.stream, (word.message_id, word.fields), str(error))
        return None


async def _said(desk: Desk, word: Word, report: Result) -> Said:
    store, workspace = desk.queue.engine.store, desk.bridge.workspace
    uuid = await store.read(lambda tx: read.find(tx, workspace, check.name(report.task_id, "task_id")))
    worker = None if report.worker is None else check.name(report.worker, "worker")
    if report.data is not None:
        heard.as_result(report.data)
    error = check.text(report.error, "error")
    return Said(word.stream, word.message_id, uuid, worker, report.succeeded, report.data, error, report.retry)


async def refuse(desk: Desk, stream: str, entry: Entry, why: str) -> None:
    """Acknowledge an entry that cannot be understood, and put it among the dead letters with the reason."""
    message_id, found = entry
    log.warning("malformed entry %s of %s: %s", message_id, stream, why)
    await desk.run(heard.refuse, stream, message_id, why)
    letter = fields.refused_out(found, stream, why, desk.queue.now())
    if desk.role == "orchestrator":  # else the letter is a worker's report to its orchestrator
        letter = fields.marked(letter)
    group = GROUP if stream == desk.streams.task else READERS
    parts = [part for field in letter.items() for part in field]
    await desk.call(scripts.REFUSE, [stream, desk.streams.dlq], group, message_id, *parts)
    if stream == desk.streams.dlq:
        await desk.redis.xdel(stream, message_id)
