"""Tasks are found by words and combined filters, whether they are indexed yet or not."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.engine.engine import Engine
from shiftwork.engine.event_log import Stretch
from shiftwork.maintenance.loop import run_once
from shiftwork.model.errors import BadText, InputError, TooLarge
from shiftwork.search import index, maintenance
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import dead_letter, finish, sql, take

Settle = Callable[[], Awaitable[None]]


async def found(queue: Queue, search: str, **filters: Any) -> list[str | None]:
    return [task.title for task in (await queue.tasks.list(search=search, **filters)).tasks]


async def indexed(queue: Queue) -> int:
    """Return the index entries, after indexing everything."""
    await run_once(queue.engine, force=True)
    (row,) = await sql(queue, "select count(*) as total from search_entries")
    return int(row["total"])


@pytest.fixture(params=[False, True], ids=["fresh", "indexed"])
async def settle(request: pytest.FixtureRequest, queue: Queue) -> Settle:
    """Run the test with and without indexing first."""

    async def wait() -> None:
        if request.param:
            await indexed(queue)
            assert await queue.engine.store.read(index.read_mark) > 0

    return wait


async def test_words_of_title_payload_tags_and_type_find_a_task(queue: Queue, settle: Settle) -> None:
    await queue.submit(
        type="review",
        title="Flaky login test",
        payload={"repo": "acme/shop", "lines": [4711, "first\nsecond"], "deep": {"Größe": "Überlauf"}},
        tags=["ci-nightly"],
        spec={"prompt": "Find out why the session expires"},
        issue_id="SHOP-17",
    )
    await queue.submit(type="code", title="Something else", payload={"repo": "acme/docs"})
    await settle()
    for words in (
        "flaky",
        "LOGIN flak",
        "acme shop",
        "4711",
        "second",
        "größe",
        "ÜBERLAUF",
        "nightly",
        "session expires",
    ):
        assert await found(queue, words) == ["Flaky login test"], words
    assert await found(queue, "shop-17") == ["Flaky login test"]
    assert await found(queue, "review") == ["Flaky login test"]
    assert await found(queue, "acme") == ["Flaky login test", "Something else"]
    assert await found(queue, "acme", newest=True, limit=1) == ["Something else"]
    assert await found(queue, "login else") == []
    assert await found(queue, "ogin") == []


async def test_short_word_matches_only_whole_words(queue: Queue, settle: Settle) -> None:
    await queue.submit(type="code", title="go home")
    await queue.submit(type="code", title="golden gate")
    await settle()
    assert await found(queue, "go") == ["go home"]
    assert await found(queue, "gol") == ["golden gate"]


async def test_errors_of_attempts_are_found(queue: Queue, settle: Settle) -> None:
    await queue.submit(type="code", title="broken", max_attempts=1)
    token = (await take(queue)).token
    await queue.fail(token, "agent_error", error="connection to db-7 refused")
    await settle()
    assert await found(queue, "refused db") == ["broken"]
    assert await found(queue, "refused", reason="agent_error") == ["broken"]
    assert await found(queue, "refused", reason="timeout") == []


async def test_changed_words_replace_old_ones(queue: Queue, settle: Settle) -> None:
    task_id = (await queue.submit(type="code", title="one", tags=["before"])).id
    await indexed(queue)
    await queue.tasks.update(task_id, {"tags": ["after"]})
    await settle()
    assert await found(queue, "before") == []
    assert await found(queue, "after") == ["one"]


async def test_modified_dead_letter_is_found_by_its_new_payload(queue: Queue) -> None:
    task_id = await dead_letter(queue)
    await indexed(queue)
    await queue.dead_letters.review(task_id, "modify_and_retry", change={"payload": {"file": "fixed.txt"}})
    assert [task.id for task in (await queue.tasks.list(search="fixed")).tasks] == [task_id]
    await indexed(queue)
    assert [task.id for task in (await queue.tasks.list(search="fixed")).tasks] == [task_id]


async def test_search_combines_with_filters_and_pages(queue: Queue, settle: Settle) -> None:
    made = await queue.submit_many([{"type": "ab"[n % 2], "title": f"needle {n}"} for n in range(10)])
    await finish(queue)
    await settle()
    assert await found(queue, "needle", status="completed") == ["needle 0"]
    assert await found(queue, "needle", status="ready,completed", type="a") == [f"needle {n}" for n in (0, 2, 4, 6, 8)]
    assert await queue.tasks.count(search="needle", type="b") == {"ready": 5}
    assert await queue.tasks.count(search="needle") == {"ready": 9, "completed": 1}
    seen, after = [], None
    while True:
        page = await queue.tasks.list(search="needle", after=after, limit=3)
        seen += [task.id for task in page.tasks]
        after = page.next
        if after is None:
            break
    assert seen == [each.id for each in made]


async def test_search_stays_in_its_workspace(queue: Queue, settle: Settle) -> None:
    other = queue.in_workspace("other")
    await other.submit(type="code", title="secret plan")
    await queue.submit(type="code", title="plan")
    await settle()
    assert await found(queue, "plan") == ["plan"]
    assert await found(queue, "secret") == []
    assert await found(other, "plan") == ["secret plan"]


@pytest.mark.parametrize(
    "search",
    [
        '"', "' or 1=1 --", "needle' | 'x", "needle:*", "needle & !other", "NEAR(needle, x)", "needle NOT x", "needle*",
        "{words}: needle", "-needle", "needle)", "(needle", "needle \\", "needle ^x", "AND", "OR", "words:needle",
    ],
)  # fmt: skip
async def test_operators_are_treated_as_words(queue: Queue, settle: Settle, search: str) -> None:
    await queue.submit(type="code", title="needle")
    await queue.submit(type="code", title="words near not and or needle x other 1")
    await settle()
    if not any(letter.isalnum() for letter in search):
        with pytest.raises(InputError, match="needs a letter or a digit"):
            await found(queue, search)
    else:
        assert set(await found(queue, search)) <= {"needle", "words near not and or needle x other 1"}
    assert await found(queue, "needle NOT x") == ["words near not and or needle x other 1"]


@pytest.mark.parametrize(
    ("search", "error"),
    [("", InputError), (" ", InputError), ("a\0b", BadText), ("\ud800", BadText), ("x" * 501, (InputError, TooLarge)),
     (" ".join(f"w{n}" for n in range(17)), InputError)],
    ids=["empty", "blank", "nul", "surrogate", "long", "many"],
)  # fmt: skip
async def test_unusable_search_is_refused(queue: Queue, search: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        await queue.tasks.list(search=search)
    with pytest.raises(error):
        await queue.tasks.count(search=search)


async def test_many_long_words_are_cut_and_found(queue: Queue) -> None:
    await queue.submit(type="code", title="long", payload={"text": " ".join(f"word{n}" for n in range(5_000))})
    await queue.submit(type="code", title="wide", payload={"text": "y" * 10_000, "é": "\U0001f600 gro\u00df"})
    assert await indexed(queue) == 2
    assert await found(queue, "word17") == ["long"]
    assert await found(queue, "y" * 100) == ["wide"]
    assert await found(queue, "gross") == ["wide"]


async def test_removed_tasks_leave_the_index(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("archive_after_sec", 60)
    await queue.settings.set("purge.mode", "delete")
    await queue.submit(type="code", title="archived")
    await finish(queue)
    await queue.submit(type="code", title="purged")
    kept = (await queue.submit(type="other", title="kept")).id
    assert await indexed(queue) == 3
    await queue.control.purge(type="code", status=["ready"])
    await pass_time(queue, clock, 61)
    assert await indexed(queue) == 1
    assert [row["total"] for row in await sql(queue, "select count(*) as total from search_words")] == [1]
    assert await found(queue, "archived") == await found(queue, "purged") == []
    assert (await queue.get(kept[-8:])).title == "kept"


async def test_purged_task_is_not_written_by_an_indexer_that_read_it_before(queue: Queue) -> None:
    await queue.settings.set("purge.mode", "delete")
    task_id = (await queue.submit(type="code", title="gone")).id
    store = queue.engine.store
    await store.run(lambda tx: maintenance.elect(tx, queue.engine))
    last, after = (await queue.events("now")).next, await store.read(index.read_mark)
    texts = await store.read(lambda tx: maintenance.changed_texts(tx, after, Stretch(last, last)))
    read = [index.entry(row) for row in texts]
    assert len(read) == 1
    await queue.control.purge(type="code")
    assert await store.run(lambda tx: index.write(tx, after, last, read)) == 1
    assert await sql(queue, "select task_id from search_entries") == []
    assert task_id not in str(await queue.tasks.list())


async def test_two_indexers_read_each_event_once(queue: Queue) -> None:
    await queue.submit(type="code", title="one")
    store = queue.engine.store
    await store.run(lambda tx: maintenance.elect(tx, queue.engine))
    last, after = (await queue.events("now")).next, await store.read(index.read_mark)
    texts = await store.read(lambda tx: maintenance.changed_texts(tx, after, Stretch(last, last)))
    read = [index.entry(row) for row in texts]
    assert await store.run(lambda tx: index.write(tx, after, last, read)) == 1
    assert await store.run(lambda tx: index.write(tx, after, last, read)) is None
    assert await maintenance.fill(queue.engine) == {}


async def test_index_waits_for_a_quiet_queue(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends when its time is up and the log still grows; a log that rests is read to its end."""
    monkeypatch.setattr(maintenance, "TURN_SEC", 0.0)
    monkeypatch.setattr(maintenance, "PAGE", 10)
    await queue.submit_many([{"type": "code", "title": f"needle {n}"} for n in range(100)])
    await queue.engine.store.run(lambda tx: maintenance.elect(tx, queue.engine))
    fill_page = maintenance._fill_page

    async def busy(engine: Engine, page: int) -> int | None:
        written = await fill_page(engine, page)
        await queue.submit_many([{"type": "code"}] * (maintenance.BUSY + 1))
        return written

    with monkeypatch.context() as patch:
        patch.setattr(maintenance, "_fill_page", busy)
        assert await maintenance.fill(queue.engine) == {"indexed": 10}
    assert await maintenance.fill(queue.engine) == {"indexed": 90 + maintenance.BUSY + 1}
    page = await queue.tasks.list(search="needle", limit=200)
    assert (page.index_lag, len(page.tasks)) == (0, 100)


async def test_lag_of_the_index_is_shown(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "FRESH", 3)
    await queue.submit_many([{"type": "code", "title": f"needle {n}"} for n in range(5)])
    page = await queue.tasks.list(search="needle")
    assert page.index_lag == 2
    assert [task.title for task in page.tasks] == ["needle 2", "needle 3", "needle 4"]
    await indexed(queue)
    page = await queue.tasks.list(search="needle")
    assert (page.index_lag, len(page.tasks)) == (0, 5)


async def test_filters_take_states_with_commas_and_reasons(queue: Queue) -> None:
    await queue.submit(type="code", max_attempts=1)
    await queue.fail((await take(queue)).token, "timeout")
    await queue.submit(type="code")
    await queue.submit(type="other")
    listed = await queue.tasks.list(status="ready,dead_lettered", type="code")
    assert [task.status for task in listed.tasks] == ["dead_lettered", "ready"]
    assert len((await queue.tasks.list(status=["ready, dead_lettered"])).tasks) == 3
    assert [task.status for task in (await queue.tasks.list(reason="timeout")).tasks] == ["dead_lettered"]
    assert await queue.tasks.count() == {"ready": 2, "dead_lettered": 1}
    assert await queue.tasks.count(type="code", status="ready") == {"ready": 1}
    with pytest.raises(InputError, match="no status 'redy'"):
        await queue.tasks.list(status="ready,redy")


async def test_burst_is_indexed_once_it_is_over_or_old(
    queue: Queue, clock: MovedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "BURST", 10)
    await queue.engine.store.run(lambda tx: maintenance.elect(tx, queue.engine))
    await maintenance.fill(queue.engine)
    for _ in range(5):
        clock.advance(1)
        await queue.submit_many([{"type": "code"}] * 10)
        assert await maintenance.fill(queue.engine) == {}
    clock.advance(1)
    await queue.submit_many([{"type": "code"}] * 10)
    assert await maintenance.fill(queue.engine) == {"indexed": 60}
    clock.advance(1)
    await queue.submit_many([{"type": "code"}] * 10)
    assert await maintenance.fill(queue.engine) == {}
    clock.advance(1)
    assert await maintenance.fill(queue.engine) == {"indexed": 10}
