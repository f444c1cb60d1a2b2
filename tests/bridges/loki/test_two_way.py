"""Two-way mode: the queue applies what scripts write into the files, and no task is claimed twice."""

import asyncio
import fcntl
import json
import os
import threading
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.compat.bridges.loki.bridge import Bridge
from shiftwork.model.errors import AgentUnavailable, ConflictError, FolderUnavailable, LockTimeout
from shiftwork.testing import MovedClock, pass_time
from tests.bridges.loki.dot_loki import DotLoki, bridged, claimed, dead, enqueue, plain, start_bridge
from tests.bridges.loki.test_files import TASK
from tests.conformance.steps import REPORT, take

RESULT = {"status": "success", "output": "built", "decisionReport": REPORT}


async def history(queue: Queue, task_id: str) -> list[tuple[str, str]]:
    return [(event.verb, event.actor) for event in (await queue.tasks.history(task_id)).events]


@pytest.mark.requirement("L-054", "L-056", "L-059")
async def test_claim_by_the_documented_script_is_accepted(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    first, second = await enqueue(loki, 1), await enqueue(loki, 2)
    await bridge.run_until_stable()
    before = folder.tasks("pending")
    assert await folder.claim("script-1") == plain(first)
    after = folder.tasks("pending")
    assert {name for name in after[0] if after[0][name] != before[0][name]} == {"claimedBy", "claimedAt"}
    assert (after[0]["claimedBy"], after[1]) == ("script-1", before[1])
    await bridge.run_until_stable()
    held = await loki.get(first)
    assert (held.status, held.claim.agent_id) == ("running", "script-1")
    assert (folder.where(first), folder.one(first)["claimedBy"]) == (["in-progress"], "script-1")
    assert await folder.claim("script-2") == plain(second)
    assert await folder.claim("script-3") is None


async def test_claim_by_moving_the_task_is_accepted(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    task_id = await enqueue(loki)
    await bridge.run_until_stable()
    folder.move(task_id, "in-progress", claimedBy="a1", claimedAt="2026-01-01T00:00:00Z")
    assert (await bridge.run_until_stable()).taken == {"claimed": 1}
    assert (await loki.get(task_id)).claim.agent_id == "a1"


async def test_result_in_the_files_completes_the_task(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    task_id = await enqueue(loki)
    child = await enqueue(loki, 2, dependencies=[task_id])
    await bridge.run_until_stable()
    assert await folder.claim("script-1") == plain(task_id)
    await bridge.run_until_stable()
    folder.move(task_id, "completed", completedAt="2026-01-01T00:00:00Z", result=RESULT)
    assert (await bridge.run_until_stable()).taken == {"completed": 1}
    task = await loki.get(task_id)
    assert task.result is not None
    assert (task.status, task.result.data, task.result.decision_report) == ("completed", "built", REPORT)
    assert (await history(loki, task_id))[-1] == ("completed", "agent:script-1")
    assert folder.one(child)["claimedBy"] is None  # its dependency is met, so scripts may take it


async def test_task_claimed_and_completed_between_two_scans_is_completed(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    task_id = await enqueue(loki)
    await bridge.run_until_stable()
    await folder.claim("script-1")
    folder.move(task_id, "completed", result=RESULT)
    assert (await bridge.run_until_stable()).taken == {"completed": 1}
    assert [verb for verb, _ in await history(loki, task_id)] == ["submitted", "claimed", "completed"]


async def test_failure_in_the_files_is_retried_by_queue_rules(loki: Queue, folder: DotLoki, clock: MovedClock) -> None:
    bridge, task_id = await claimed(loki, folder)
    folder.move(task_id, "pending", retries=1, lastError="no database")  # with its old claim, as the document has it
    assert (await bridge.run_until_stable()).taken == {"failed": 1}
    shown = folder.one(task_id)
    assert (shown["status"], shown["retries"], shown["lastError"]) == ("pending", 1, "no database")
    assert (shown["claimedBy"], await folder.claim("script-2")) == ("shiftwork", None)  # not before its time
    await pass_time(loki, clock, 66)
    await bridge.run_until_stable()
    assert await folder.claim("script-2") == plain(task_id)


async def test_dead_letters_cancellations_and_revivals_in_files_are_applied(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    letter, doomed, unwanted = await dead(loki, 3), await enqueue(loki, 1), await enqueue(loki, 2)
    await bridge.run_until_stable()
    await folder.claim("script-1")
    folder.move(doomed, "dead-letter", retries=3, lastError="beyond repair")
    folder.move(unwanted, "cancelled", cancelReason="obsolete")
    folder.move(letter, "pending", retries=0, claimedBy=None)
    assert (await bridge.run_until_stable()).taken == {"dead-lettered": 1, "cancelled": 1, "retried": 1}
    assert ((await loki.get(doomed)).status, (await loki.get(doomed)).last_error) == ("dead_lettered", "beyond repair")
    assert (await loki.get(unwanted)).cancel_reason == "obsolete"
    assert ((await loki.get(letter)).status, (await loki.get(letter)).attempts) == ("ready", 0)
    assert "**retry**" in next((folder.path / "logs" / "decisions").iterdir()).read_text()


async def test_new_task_in_the_file_is_submitted(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    await bridge.run_until_stable()
    folder.put("pending", {**TASK, "id": "own-1", "priority": 9}, {**TASK, "payload": {"n": 2}})
    assert (await bridge.run_until_stable()).taken == {"submitted": 2}
    assert ((await loki.get("own-1")).priority, len(folder.ids("pending"))) == (10, 2)


def refusals(folder: DotLoki) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder.path / "logs" / "shiftwork-refused.jsonl").read_text().splitlines()]


async def test_result_without_decision_report_is_refused_and_kept(loki: Queue, folder: DotLoki) -> None:
    bridge, task_id = await claimed(loki, folder)
    folder.move(task_id, "completed", result={"status": "success", "output": "built"})
    assert (await bridge.run_until_stable()).refused == 1
    assert (folder.where(task_id), folder.one(task_id)["incomplete"]) == (["in-progress"], True)
    (refused,) = refusals(folder)
    assert (refused["file"], refused["task"]["result"]["output"]) == ("completed.json", "built")
    assert "report_required" in refused["why"]


async def test_claim_of_a_cancelled_task_is_refused(loki: Queue, folder: DotLoki) -> None:
    """Cancelling takes no lock: a script can claim a task that was just cancelled."""
    bridge = await bridged(loki, folder, two_way=True)
    task_id = await enqueue(loki)
    await bridge.run_until_stable()
    await loki.cancel(task_id)
    assert await folder.claim("script-1") == plain(task_id)
    report = await bridge.run_until_stable()
    assert (report.taken, report.refused) == ({}, 1)
    assert "script-1 claimed it too late" in refusals(folder)[0]["why"]
    assert (folder.where(task_id), (await loki.get(task_id)).status) == (["cancelled"], "cancelled")


async def test_write_about_an_older_attempt_changes_nothing(loki: Queue, folder: DotLoki, clock: MovedClock) -> None:
    bridge, task_id = await claimed(loki, folder)
    stale = folder.one(task_id)
    await pass_time(loki, clock, 3601)  # its time is up
    assert (await take(loki, "a2")).id == task_id
    await bridge.run_until_stable()
    folder.move(task_id, "completed", **{**stale, "result": RESULT})
    assert (await bridge.run_until_stable()).taken == {}
    task = await loki.get(task_id)
    assert (task.status, task.claim.agent_id, folder.where(task_id)) == ("running", "a2", ["in-progress"])


async def test_outdated_files_are_not_taken_for_script_changes(loki: Queue, folder: DotLoki, clock: MovedClock) -> None:
    """While no bridge ran, one task was retried and another revived: both are in the files where they were before."""
    letter, retried = await dead(loki, 1), await enqueue(loki, 2)
    held = await take(loki, "a1")
    await (await bridged(loki, folder, two_way=True)).run_until_stable()
    await loki.fail(held.token, "crash", "boom")
    await pass_time(loki, clock, 66)
    await loki.dead_letters.review(letter, "retry")
    assert (folder.where(retried), folder.where(letter)) == (["in-progress"], ["dead-letter"])
    report = await (await bridged(loki, folder, two_way=True)).run_until_stable()
    assert (report.taken, report.refused) == ({}, 0)
    assert [(await loki.get(task_id)).status for task_id in (retried, letter)] == ["ready", "ready"]
    assert (folder.where(retried), folder.where(letter)) == (["pending"], ["pending"])


async def test_workspace_has_only_one_folder(loki: Queue, folder: DotLoki) -> None:
    await loki.settings.set("claim_folder", "/somewhere/else/.loki")
    with pytest.raises(ConflictError, match="is bridged with /somewhere/else"):
        await Bridge(loki, folder.path, 1, two_way=True).open()


@pytest.mark.requirement("L-039", "L-059")
async def test_own_claim_is_in_the_file_when_it_is_answered(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    first, second = await enqueue(loki, 1), await enqueue(loki, 2)
    await bridge.run_until_stable()
    before = folder.tasks("pending")
    assert (await take(loki, "a1")).id == first
    after = folder.tasks("pending")
    assert (after[0]["claimedBy"], after[1]) == ("a1", before[1])
    assert await folder.claim("script-1") == plain(second)


@pytest.mark.requirement("L-039")
async def test_task_claimed_by_a_script_is_not_assigned_before_the_scan(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    first, second = await enqueue(loki, 1), await enqueue(loki, 2)
    await bridge.run_until_stable()
    assert await folder.claim("script-1") == plain(first)
    assert [a.id for a in await loki.claim("a1", 5)] == [second]
    assert (await loki.get(first)).claim.agent_id == "script-1"
    await bridge.run_until_stable()
    assert (folder.ids("pending"), len(folder.ids("in-progress"))) == ([], 2)


@pytest.mark.requirement("L-039")
async def test_task_moved_by_a_script_is_not_assigned_before_the_scan(loki: Queue, folder: DotLoki) -> None:
    """The documented Python moves the tasks it claims, and can finish before the bridge scans."""
    bridge = await bridged(loki, folder, two_way=True)
    held, done, unwanted, free = [await enqueue(loki, number) for number in range(4)]
    await bridge.run_until_stable()
    folder.move(held, "in-progress", claimedBy="script-1")
    folder.move(done, "completed", claimedBy="script-2", result=RESULT)
    folder.move(unwanted, "cancelled", cancelReason="obsolete")
    assert [a.id for a in await loki.claim("a1", 5)] == [free]
    assert (await bridge.run_until_stable()).taken == {"completed": 1, "cancelled": 1}
    states = [(await loki.get(task_id)).status for task_id in (held, done, unwanted, free)]
    assert states == ["running", "completed", "cancelled", "running"]
    assert (await loki.get(held)).claim.agent_id == "script-1"


async def test_bridge_stopped_while_writing_keeps_the_lock_until_written(
    loki: Queue, folder: DotLoki, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the file would later overwrite what a script has written in the meantime."""
    bridge = await bridged(loki, folder, two_way=True)
    task_id = await enqueue(loki, 1)
    await bridge.run_until_stable()
    await enqueue(loki, 2, priority=90)
    fsync, writing, released = os.fsync, threading.Event(), threading.Event()

    def slow(file: int) -> None:
        writing.set()
        released.wait()
        fsync(file)

    monkeypatch.setattr(os, "fsync", slow)
    stopped = asyncio.ensure_future(bridge.run_pass())
    await asyncio.to_thread(writing.wait)
    stopped.cancel()
    try:
        assert not (await asyncio.wait({stopped}, timeout=0.05))[0]
    finally:
        released.set()
    with pytest.raises(asyncio.CancelledError):
        await stopped
    monkeypatch.undo()
    assert await folder.claim("script-1") == plain(task_id)
    assert folder.one(task_id)["claimedBy"] == "script-1"


@pytest.mark.requirement("L-039")
async def test_claim_times_out_without_the_lock(loki: Queue, folder: DotLoki) -> None:
    (limit,) = [setting for setting in await loki.settings.list() if setting.key == "lock_timeout_sec"]
    assert limit.value == 10
    bridge = await bridged(loki, folder, two_way=True)
    task_id = await enqueue(loki)
    await bridge.run_until_stable()
    await loki.settings.set("lock_timeout_sec", 0.05)
    with (folder.path / "state" / "locks" / "queue.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LockTimeout):
            await loki.claim("a1")
        assert (await loki.get(task_id)).status == "ready"
    assert len(await loki.claim("a1")) == 1


async def test_claim_waiting_for_the_lock_succeeds(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    await enqueue(loki)
    await bridge.run_until_stable()
    with (folder.path / "state" / "locks" / "queue.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        claiming = asyncio.ensure_future(loki.claim("a1"))
        assert not (await asyncio.wait({claiming}, timeout=0.05))[0]
    assert len(await claiming) == 1


async def test_claim_is_refused_while_the_file_is_unreadable(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    task_id = await enqueue(loki)
    await bridge.run_until_stable()
    whole = folder.file("pending").read_text()
    folder.file("pending").write_text(whole[:40])
    with pytest.raises(FolderUnavailable):
        await loki.claim("a1")
    await bridge.run_until_stable()
    assert (folder.file("pending").read_text(), (await loki.get(task_id)).status) == (whole[:40], "ready")
    folder.file("pending").write_text(whole)
    assert [a.id for a in await loki.claim("a1")] == [task_id]


async def test_missing_folder_is_reported_at_claim(loki: Queue, folder: DotLoki) -> None:
    await enqueue(loki)
    await loki.settings.set("claim_folder", str(folder.path))
    with pytest.raises(FolderUnavailable, match="claim where the folder is"):
        await loki.claim("a1")
    await loki.settings.unset("claim_folder")
    assert len(await loki.claim("a1")) == 1


async def test_empty_claim_leaves_the_file_unchanged(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    await enqueue(loki)
    await bridge.run_until_stable()
    before = folder.tasks("pending")
    assert await loki.claim("a1", types=["ops-devops"]) == []
    await loki.agents.set_status("a1", "draining")
    with pytest.raises(AgentUnavailable):
        await loki.claim("a1")
    assert folder.tasks("pending") == before


@pytest.mark.parametrize(
    "odd",
    [
        {"id": "", "claimedBy": "a"},
        {"id": "\x00", "claimedBy": "a"},
        {"id": "x" * 300, "claimedBy": "\x00"},
        {"claimedBy": 7},
        {"id": "unknown", "claimedBy": "a", "fence": "one"},
        {"id": "unknown", "claimedBy": ["a"], "retries": "many"},
    ],
)
async def test_invalid_entries_in_the_file_do_not_block_claims(
    loki: Queue, folder: DotLoki, odd: dict[str, Any]
) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    first, second = await enqueue(loki, 1), await enqueue(loki, 2)
    await bridge.run_until_stable()
    folder.put("pending", odd)
    folder.change(second, claimedBy="n" * 300)
    assert (await take(loki, "a1")).id == first
    await bridge.run_until_stable()
    assert folder.where(first) == ["in-progress"]
    assert folder.where(second) == ["pending"]


async def test_invalid_results_are_refused_and_kept(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    made = [await enqueue(loki, number) for number in range(4)]
    await bridge.run_until_stable()
    folder.move(made[0], "completed", result="fine")
    folder.move(made[1], "completed", result={"status": "success", "decisionReport": "because"})
    folder.move(made[2], "completed", result={"status": "success", "colour": "red"})
    folder.move(made[3], "dead-letter", lastError={"code": 7})
    assert (await bridge.run_until_stable()).refused == 3
    assert len(refusals(folder)) == 3
    assert ((await loki.get(made[3])).status, (await loki.get(made[3])).last_error) == ("dead_lettered", '{"code":7}')


async def test_tasks_not_claimable_now_are_marked_for_scripts(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    free = await enqueue(loki, 1)
    await loki.submit(type="eng-backend", payload={"n": 2}, dependencies=[free])
    await loki.submit(type="eng-backend", payload={"n": 3}, target_agent_id="ada")
    await loki.submit(type="ops-devops", payload={"n": 4})
    capable = {"constraints": {"required_capabilities": ["docker"]}}
    await loki.submit(type="eng-backend", payload={"n": 5}, spec=capable)
    await loki.control.pause("ops-devops")
    await bridge.run_until_stable()
    assert len(folder.ids("pending")) == 5
    assert [task["id"] for task in folder.tasks("pending") if task["claimedBy"] is None] == [plain(free)]
    await loki.control.resume("ops-devops")
    await bridge.run_until_stable()
    assert len([task for task in folder.tasks("pending") if task["claimedBy"] is None]) == 2


async def test_one_probe_is_offered_after_an_open_breaker(loki: Queue, folder: DotLoki, clock: MovedClock) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    for number in range(5):
        await dead(loki, number)
    trial, _ = await enqueue(loki, 10), await enqueue(loki, 11)
    await bridge.run_until_stable()
    assert await folder.claim("script-1") is None
    await pass_time(loki, clock, 61)
    await bridge.run_until_stable()
    assert (await folder.claim("script-1"), await folder.claim("script-2")) == (plain(trial), None)
    await bridge.run_until_stable()
    assert (await loki.breakers.list("eng-backend"))[0].state == "half-open"
    folder.move(trial, "completed", result=RESULT)
    await bridge.run_until_stable()
    assert (await loki.breakers.list("eng-backend"))[0].state == "closed"
    assert await folder.claim("script-2") is not None


async def test_running_bridge_can_be_stopped_at_once(store_url: str, folder: DotLoki) -> None:
    for _ in range(3):
        bridge = await start_bridge(store_url, folder)
        bridge.terminate()
        assert await bridge.wait() == 0
