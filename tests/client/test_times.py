"""Datetimes and timedeltas go through a server as they are given."""

from datetime import UTC, datetime, timedelta

from shiftwork import Client, NewTask

FAR = datetime(2036, 1, 31, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


async def test_client_takes_datetimes_and_timedeltas(shop: Client) -> None:
    settings = {"heartbeat_timeout_sec": timedelta(seconds=77)}
    made = await shop.submit(type="code", run_at=FAR, expires_at=FAR + MINUTE, timeout_sec=MINUTE, settings=settings)
    task = await shop.get(made.id)
    assert (task.run_at, task.expires_at, task.timeout_sec) == (FAR.timestamp(), FAR.timestamp() + 60, 60)
    await shop.submit_many([NewTask(type="docs", deadline=FAR, retry={"initial_delay_sec": MINUTE})])
    assert (await shop.tasks.list(since=FAR)).tasks == []
    (held,) = await shop.claim("worker", wait=timedelta(seconds=1), start=True)
    assert held.task().deadline == FAR.timestamp()
    (later,) = await shop.spawn(held.token, [NewTask(type="code", delay=MINUTE)])
    assert (await shop.get(later.id)).hold == "scheduled"
    assert (await shop.waits.wait(held.token, "nap", until=FAR)).until == FAR.timestamp()
    changed = await shop.settings.set("heartbeat_timeout_sec", timedelta(seconds=90))
    assert {each.key: each.value for each in changed}["heartbeat_timeout_sec"] == 90
    await shop.tasks.update(made.id, {"run_at": FAR - MINUTE})
    assert (await shop.get(made.id)).run_at == FAR.timestamp() - 60
