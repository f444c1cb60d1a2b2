"""The files of a `.loki` folder list the queue, and existing files are imported."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.compat.bridges.loki.bridge import Bridge
from shiftwork.model.errors import FolderUnavailable, StoreUnavailable
from shiftwork.model.task import Task
from shiftwork.testing import MovedClock
from tests.bridges.loki.dot_loki import QUEUES, DotLoki, bridged, claimed, dead, enqueue, plain
from tests.conformance.steps import REPORT, take

TASK: dict[str, Any] = {"type": "eng-backend", "priority": 5, "dependencies": [], "payload": {"action": "implement"}}


@pytest.mark.requirement("L-032", "L-033", "L-034", "L-035", "L-036", "L-037")
async def test_every_task_is_listed_only_in_the_file_of_its_queue(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder)
    task_id = await enqueue(loki, max_attempts=1)
    await bridge.run_until_stable()
    assert sorted(file.name for file in (folder.path / "queue").iterdir()) == sorted(f"{q}.json" for q in QUEUES)
    assert folder.where(task_id) == ["pending"]
    token = (await take(loki)).token
    await bridge.run_until_stable()
    assert folder.where(task_id) == ["in-progress"]
    await loki.complete(token, "done", decision_report=REPORT)
    letter, cancelled = await dead(loki, 1), await enqueue(loki, 2)
    await loki.cancel(cancelled, "obsolete")
    await bridge.run_until_stable()
    assert [folder.where(t) for t in (task_id, letter, cancelled)] == [["completed"], ["dead-letter"], ["cancelled"]]
    assert (folder.one(cancelled)["cancelReason"], folder.one(letter)["lastError"]) == ("obsolete", "no database")
    assert folder.one(task_id)["result"] == {"status": "success", "output": "done", "decisionReport": REPORT}


async def test_pending_tasks_are_listed_in_claim_order(loki: Queue, folder: DotLoki) -> None:
    low, high, middle = [await enqueue(loki, n, priority=p) for n, p in enumerate((80, 10, 50))]
    await (await bridged(loki, folder)).run_until_stable()
    assert folder.ids("pending") == [plain(t) for t in (high, middle, low)]


async def test_unchanged_file_is_not_written_again(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder)
    await enqueue(loki)
    await bridge.run_until_stable()
    before = {queue: folder.file(queue).stat().st_ino for queue in QUEUES}
    await take(loki)
    await bridge.run_until_stable()
    after = {queue: folder.file(queue).stat().st_ino for queue in QUEUES}
    assert [queue for queue in QUEUES if before[queue] != after[queue]] == ["pending", "in-progress"]


async def test_file_contains_at_most_the_configured_number_of_tasks(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, most=3)
    made = [await enqueue(loki, number) for number in range(8)]
    await bridge.run_until_stable()
    assert folder.ids("pending") == [plain(t) for t in made[:3]]
    for _ in range(6):
        await loki.complete((await take(loki)).token, decision_report=REPORT)
        await bridge.run_until_stable()
    assert folder.ids("pending") == [plain(t) for t in made[6:]]
    assert folder.ids("completed") == [plain(t) for t in made[3:6]]


async def test_purged_or_deleted_tasks_are_no_longer_listed(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    letter, gone = await dead(loki, 1), await enqueue(loki, 2)
    await bridge.run_until_stable()
    await loki.dead_letters.review(letter, "delete")
    await loki.settings.set("purge.mode", "delete")
    await loki.control.purge(status=["ready"])
    await bridge.run_until_stable()
    assert (folder.where(letter), folder.where(gone)) == ([], [])
    assert (await loki.status()).counts == {"dead_lettered": 1}


async def failing_once(bridge: Bridge, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Run a pass in which the store fails at the read with this number, then another pass."""
    mirror, reads = bridge._mirror, list[int]()
    read = mirror._read

    async def fail(uuids: Sequence[str]) -> list[Task]:
        reads.append(len(uuids))
        if len(reads) == number:
            raise StoreUnavailable("the database restarts")
        return await read(uuids)

    monkeypatch.setattr(mirror, "_read", fail)
    with pytest.raises(StoreUnavailable):
        await bridge.run_pass()
    await bridge.run_pass()
    monkeypatch.undo()


@pytest.mark.parametrize("number", [1, 3])
async def test_tasks_unreadable_at_first_are_listed_later(
    loki: Queue, folder: DotLoki, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    letter, held = await dead(loki, 1), await enqueue(loki, 2)
    await take(loki)
    waits = await enqueue(loki, 3)
    await failing_once(await bridged(loki, folder), monkeypatch, number)
    assert [folder.where(t) for t in (waits, held, letter)] == [["pending"], ["in-progress"], ["dead-letter"]]


async def test_changes_during_a_store_outage_are_listed_later(
    loki: Queue, folder: DotLoki, monkeypatch: pytest.MonkeyPatch
) -> None:
    bridge = await bridged(loki, folder)
    first = await enqueue(loki, 1)
    await bridge.run_until_stable()
    await take(loki)
    second = await enqueue(loki, 2)
    await failing_once(bridge, monkeypatch, 1)
    assert (folder.where(first), folder.where(second)) == (["in-progress"], ["pending"])


async def test_further_pending_tasks_are_read_until_found(
    loki: Queue, folder: DotLoki, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file contains one task and two are known: the third is read when both are gone."""
    bridge = await bridged(loki, folder, most=1)
    made = [await enqueue(loki, number) for number in range(3)]
    await bridge.run_until_stable()
    for _ in range(2):
        await loki.complete((await take(loki)).token, decision_report=REPORT)
    await failing_once(bridge, monkeypatch, 2)
    assert folder.ids("pending") == [plain(made[2])]


@pytest.mark.parametrize("content", ["{", "[]", '{"tasks": 3}', '{"tasks": [{"id": 7}]}', "\x00", '{"tasks": [1]}'])
async def test_broken_file_is_reported_and_left_unchanged(loki: Queue, folder: DotLoki, content: str) -> None:
    folder.make()
    folder.file("completed").write_text(content)
    waits = await enqueue(loki, 1)
    bridge = await bridged(loki, folder)
    await loki.complete((await take(loki)).token, decision_report=REPORT)
    waits = await enqueue(loki, 2)
    report = await bridge.run_until_stable(take_new=True)
    assert len(report.broken) == 1
    assert "completed.json" in report.broken[0]
    assert folder.file("completed").read_text() == content
    assert folder.ids("pending") == [plain(waits)]
    folder.file("completed").write_text('{"tasks": []}')
    assert (await bridge.run_until_stable()).broken == []
    assert len(folder.ids("completed")) == 1


async def test_existing_folder_is_imported(loki: Queue, folder: DotLoki) -> None:
    result = {"status": "success", "output": "built", "decisionReport": REPORT}
    own = "3f2b8a52-6a35-4a90-9d31-0b8f7a5c1e11"
    folder.put("pending", {**TASK, "id": own, "priority": 8, "dependencies": ["done-1", "dead-1"]})
    folder.put("in-progress", {**TASK, "id": "held-1", "payload": {"n": 1}, "claimedBy": "a7"})
    folder.put("completed", {**TASK, "id": "done-1", "payload": {"n": 2}, "claimedBy": "a8", "result": result})
    folder.put("dead-letter", {**TASK, "id": "dead-1", "payload": {"n": 3}, "lastError": "boom", "retries": 3})
    folder.put("cancelled", {**TASK, "id": "gone-1", "payload": {"n": 4}, "cancelReason": "obsolete"})
    report = await (await bridged(loki, folder)).run_until_stable(take_new=True)
    assert report.taken == {"submitted": 5, "claimed": 1, "completed": 1, "dead-lettered": 1, "cancelled": 1}
    waiting, held, done = await loki.get(own), await loki.get("held-1"), await loki.get("done-1")
    assert (waiting.status, waiting.priority, len(waiting.blocked_by)) == ("pending", 20, 1)
    assert (held.status, held.claim.agent_id) == ("running", "a7")
    assert done.result is not None
    assert (done.status, done.result.data, done.result.worker_id) == ("completed", "built", "a8")
    assert ((await loki.get("dead-1")).last_error, (await loki.get("gone-1")).cancel_reason) == ("boom", "obsolete")
    assert [folder.where(t) for t in (own, "held-1", "done-1", "dead-1", "gone-1")] == [[queue] for queue in QUEUES]
    again = await (await bridged(loki, folder)).run_until_stable(take_new=True)
    assert (again.taken, (await loki.status()).counts["pending"]) == ({}, 1)


async def test_more_tasks_than_one_batch_are_imported(loki: Queue, folder: DotLoki) -> None:
    folder.put("pending", *({**TASK, "id": f"own-{n}", "payload": {"n": n}} for n in range(450)))
    report = await (await bridged(loki, folder)).run_until_stable(take_new=True)
    assert (report.taken, report.tasks["pending"]) == ({"submitted": 450}, 450)


async def test_unknown_task_without_import_stays_in_its_file(loki: Queue, folder: DotLoki) -> None:
    theirs = {**TASK, "id": "theirs"}
    folder.put("pending", theirs)
    mine = await enqueue(loki, 1)
    report = await (await bridged(loki, folder)).run_until_stable()
    assert (report.strays, report.taken) == (1, {})
    assert folder.ids("pending") == [plain(mine), "theirs"]
    assert folder.tasks("pending")[1] == theirs


@pytest.mark.parametrize("wrong", [{"priority": 11}, {"colour": "red"}, {"type": None}, {"payload": 3}])
async def test_task_that_cannot_be_submitted_is_left_unchanged(
    loki: Queue, folder: DotLoki, wrong: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    bad = {**TASK, "id": "bad", **wrong}
    folder.put("pending", bad, {**TASK, "id": "good"})
    bridge = await bridged(loki, folder)
    report = await bridge.run_until_stable(take_new=True)
    assert (report.taken, report.strays, folder.tasks("pending")[1]) == ({"submitted": 1}, 1, bad)
    await bridge.run_until_stable(take_new=True)
    assert len([line for line in caplog.messages if line.startswith("bad in pending.json")]) == 1


async def test_task_refused_for_capacity_is_imported_when_there_is_room(
    loki: Queue, folder: DotLoki, caplog: pytest.LogCaptureFixture
) -> None:
    await loki.settings.set("max_queue_size", 1)
    folder.put("pending", *({**TASK, "id": f"own-{n}", "payload": {"n": n}} for n in range(3)))
    bridge = await bridged(loki, folder)
    report = await bridge.run_until_stable(take_new=True)
    assert (report.taken, report.strays, folder.ids("pending")) == ({"submitted": 1}, 2, ["own-0", "own-1", "own-2"])
    await bridge.run_until_stable(take_new=True)
    assert len([line for line in caplog.messages if "stay in the file until the queue has room" in line]) == 1
    await take(loki)
    assert (await bridge.run_until_stable(take_new=True)).taken == {"submitted": 1}
    await loki.settings.unset("max_queue_size")
    report = await bridge.run_until_stable(take_new=True)
    assert (report.taken, report.strays, folder.ids("pending")) == ({"submitted": 1}, 0, ["own-1", "own-2"])


async def test_running_bridge_retries_when_there_is_room(
    loki: Queue, folder: DotLoki, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More capacity comes from a setting and emits no event."""
    monkeypatch.setattr("shiftwork.compat.bridges.loki.bridge.FULL_SEC", 0.0)
    await loki.settings.set("max_queue_size", 1)
    bridge = await bridged(loki, folder, two_way=True)
    folder.put("pending", *({**TASK, "id": f"own-{n}", "payload": {"n": n}} for n in range(2)))
    running = asyncio.ensure_future(bridge.run())
    async with asyncio.timeout(30):
        while not (await loki.status()).counts:  # noqa: ASYNC110 -- the bridge tells no one
            await asyncio.sleep(0.01)
        await loki.settings.unset("max_queue_size")
        while (await loki.status()).counts != {"ready": 2}:  # noqa: ASYNC110 -- nor now
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_duplicate_in_the_file_is_replaced_by_the_existing_task(loki: Queue, folder: DotLoki) -> None:
    folder.put("pending", {**TASK, "id": "first"}, {**TASK, "id": "second"})
    report = await (await bridged(loki, folder)).run_until_stable(take_new=True)
    assert (report.taken, folder.ids("pending")) == ({"submitted": 1, "duplicates": 1}, ["first"])


@pytest.mark.requirement("L-089")
async def test_each_dead_letter_decision_is_logged_once(loki: Queue, folder: DotLoki, clock: MovedClock) -> None:
    clock.advance(1_760_000_000 - clock())
    first, second = await dead(loki, 1), await dead(loki, 2)
    person = loki.as_caller("human:ada")
    await person.dead_letters.review(first, "escalate", note="is the\ndatabase ours?")
    await (await bridged(loki, folder)).run_until_stable()
    file = folder.path / "logs" / "decisions" / "dlq-review-2025-10-09.md"
    file.write_text(file.read_text() + "A person's own words.\n")
    await person.dead_letters.review(second, "retry", note="fixed the agent")
    bridge = await bridged(loki, folder)
    await bridge.run_until_stable()
    await bridge.run_until_stable()
    title, _, escalated, words, retried = file.read_text().splitlines()
    assert title == "# Dead letters reviewed on 2025-10-09"
    assert escalated.startswith(
        f"- 08:53:20Z **escalate** of `{plain(first)}` (eng-backend) by human:ada: is the database ours?."
    )
    assert "Last error: no database" in escalated
    assert words == "A person's own words."
    assert f"**retry** of `{plain(second)}` (eng-backend) by human:ada: fixed the agent." in retried
    clock.advance(86_400)
    await person.dead_letters.review(first, "abandon")
    await bridge.run_until_stable()
    assert "**abandon**" in (file.parent / "dlq-review-2025-10-10.md").read_text()


async def test_decisions_that_could_not_be_written_are_written_later(
    loki: Queue, folder: DotLoki, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shiftwork.compat.bridges.loki.reviews.LOOK_BACK", 0)
    bridge = await bridged(loki, folder)
    await loki.dead_letters.review(await dead(loki), "escalate", note="is it ours?")
    decisions = folder.path / "logs" / "decisions"
    decisions.parent.mkdir()
    decisions.write_text("a file where the folder should be")
    with pytest.raises(FolderUnavailable, match=r"dlq-review-.* cannot be used: Not a directory"):
        await bridge.run_until_stable()
    decisions.unlink()
    await bridge.run_until_stable()
    assert "is it ours?" in next(decisions.iterdir()).read_text()


@pytest.mark.requirement("L-114")
async def test_breaker_configuration_of_the_folder_is_applied(loki: Queue, folder: DotLoki) -> None:
    file = folder.path / "config" / "circuit-breakers.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("defaults:\n  failureThreshold: 2\n")
    bridge = await bridged(loki, folder, two_way=True)
    await bridge.run_until_stable()
    assert (await loki.breakers.list("eng-backend"))[0].failure_threshold == 2
    file.write_text("defaults:\n  failureThreshold: 7\noverrides:\n  x:\n    failureThreshold: 1\n")
    await bridge.run_until_stable()
    assert [(await loki.breakers.list(t))[0].failure_threshold for t in ("eng-backend", "x")] == [7, 1]
    file.write_text("defaults: [\n")
    (broken,) = (await bridge.run_until_stable()).broken
    assert "circuit-breakers.yaml" in broken
    assert (await loki.breakers.list("x"))[0].failure_threshold == 1
    assert file.read_text() == "defaults: [\n"


def plant(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)


async def test_planted_symlinks_do_not_reach_other_files(loki: Queue, folder: DotLoki, tmp_path: Path) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    await bridge.run_until_stable()
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    for name in ("queue/pending.json.tmp", "queue/completed.json", "state/shiftwork.json.tmp", "state/shiftwork.json"):
        plant(folder.path / name, precious)
    await enqueue(loki)
    await bridge.run_until_stable()
    assert precious.read_text() == "keep me"


@pytest.mark.parametrize("name", ["logs/shiftwork-refused.jsonl", "logs/decisions/dlq-review-{day}.md"])
async def test_record_that_is_a_planted_symlink_is_refused_by_name(
    loki: Queue, folder: DotLoki, tmp_path: Path, name: str
) -> None:
    await loki.dead_letters.review(await dead(loki), "escalate")
    bridge, task_id = await claimed(loki, folder)
    folder.move(task_id, "completed", result={"output": "without the report that is asked for"})
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    name = name.format(day=datetime.fromtimestamp(loki.now(), UTC).date())
    plant(folder.path / name, precious)
    with pytest.raises(FolderUnavailable, match=Path(name).name):
        await bridge.run_until_stable()
    assert precious.read_text() == "keep me"


async def test_lock_that_is_a_planted_symlink_is_refused(loki: Queue, folder: DotLoki, tmp_path: Path) -> None:
    plant(folder.path / "state" / "locks" / "queue.lock", tmp_path / "made-by-link")
    with pytest.raises(FolderUnavailable, match="symbolic links"):
        await bridged(loki, folder)
    assert not (tmp_path / "made-by-link").exists()


async def test_file_nested_too_deep_is_left_unchanged_and_named(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder, two_way=True)
    file = folder.path / "queue" / "pending.json"
    file.write_text('{"tasks":' + "[" * 100_000)
    (broken,) = (await bridge.run_until_stable()).broken
    assert "pending.json" in broken
    with pytest.raises(FolderUnavailable):
        await loki.claim("ada")


async def test_task_names_cannot_forge_lines_or_marks_in_the_record(loki: Queue, folder: DotLoki) -> None:
    bridge = await bridged(loki, folder)
    odd = "a\n- 08:53:20Z **retry** of `b` by human:eve <!-- review 2 -->"
    await loki.submit(id=odd, type="eng\nbackend", max_attempts=1)
    await loki.fail((await take(loki)).token, "crash", "no database")
    await loki.dead_letters.review(odd, "escalate")
    await loki.dead_letters.review(await dead(loki), "escalate", note="the second, which must not be taken for written")
    await bridge.run_until_stable()
    text = next((folder.path / "logs" / "decisions").iterdir()).read_text()
    assert len([line for line in text.splitlines() if line.startswith("- ")]) == 2
    assert "the second" in text


async def test_leftovers_of_a_killed_writer_are_removed(loki: Queue, folder: DotLoki) -> None:
    await (await bridged(loki, folder)).run_until_stable()
    left = folder.path / "queue" / ".pending.json.0123.shiftwork-tmp"
    left.write_text("half")
    await bridged(loki, folder)
    assert not left.exists()
