from shiftwork import Queue


async def test_a_task_is_claimed_and_completed(queue: Queue) -> None:
    submitted = await queue.submit(type="code")
    (assignment,) = await queue.claim("coder", start=True)
    await queue.complete(assignment.token, {"ok": True})
    assert (await queue.get(submitted.id)).status == "completed"
