"""The Loki document on circuit breakers and rate limits from top to bottom, over HTTP, with its own names."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from shiftwork.compat.loki_breaker_file import parse
from tests.acceptance.loki import STANDS_AT, WORKSPACE, Loki, served
from tests.server.watching import watch
from tests.unit.test_loki_breaker_file import BLOCK


@pytest.fixture
async def loki(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Loki]:
    async with served(store_url, monkeypatch) as server:
        yield server


def at(seconds: float) -> str:
    """Return a time of the test clock as answers write it."""
    return datetime.fromtimestamp(STANDS_AT + seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


FRESH = {"state": "closed", "failures": 0, "lastFailure": None, "openedAt": None, "halfOpenAt": None}


@pytest.mark.requirement("L-001")
async def test_queue_dead_letters_and_breakers_are_reachable(loki: Loki) -> None:
    done = await loki.enqueue()
    await loki.complete(await loki.claim())
    await loki.dead_letter(1, "ops-devops")
    assert (await loki.ask(f"GET /api/tasks/{done['id']}"))["status"] == "completed"
    assert [letter["type"] for letter in (await loki.ask("GET /api/dead-letters"))["dead_letters"]] == ["ops-devops"]
    assert (await loki.ask("GET /api/breakers"))["circuitBreakers"].keys() == {"eng-backend", "ops-devops"}


@pytest.mark.requirement("L-105", "L-106", "L-107", "L-108", "L-109", "L-110")
async def test_breaker_state_has_documented_fields(loki: Loki) -> None:
    await loki.enqueue()
    assert await loki.ask("GET /api/breakers") == {"circuitBreakers": {"eng-backend": FRESH}}
    await loki.claim()
    await loki.pass_time(10)
    await loki.dead_letter(1)
    assert await loki.breaker() == {**FRESH, "failures": 1, "lastFailure": at(10)}
    await loki.dead_letter(4)
    opened = {**FRESH, "state": "open", "failures": 5, "lastFailure": at(10), "openedAt": at(10)}
    assert await loki.breaker() == opened
    await loki.enqueue()
    await loki.pass_time(60)
    await loki.claim()
    assert await loki.breaker() == {**opened, "state": "half-open", "halfOpenAt": at(70)}


@pytest.mark.requirement("L-111", "L-112", "L-113", "L-047")
async def test_breaker_passes_the_documented_states(loki: Loki) -> None:
    await loki.enqueue()
    await loki.complete(await loki.claim())
    await loki.dead_letter(5)
    for _ in range(2):
        await loki.enqueue()
    await loki.enqueue("eng-frontend")
    assert await loki.claim("a1", "eng-backend") is None
    assert (await loki.claim("a1"))["type"] == "eng-frontend"
    await loki.pass_time(60)
    assert (await loki.claim("a1", "eng-backend"))["type"] == "eng-backend"
    assert await loki.claim("a2", "eng-backend") is None


@pytest.mark.requirement("L-114", "L-115", "L-116", "L-117", "L-118", "L-119")
@pytest.mark.parametrize(("type_", "threshold"), [("eng-backend", 5), ("ops-security", 3), ("biz-marketing", 10)])
async def test_breaker_configuration_applies_per_type(loki: Loki, type_: str, threshold: int) -> None:
    settings = (await loki.read(f"/api/settings?type={type_}"))["settings"]
    rule = {each["key"].removeprefix("circuit_breaker."): each["value"] for each in settings}
    assert (rule["failure_threshold"], rule["cooldown_seconds"], rule["half_open_after"]) == (threshold, 300, 60)
    await loki.dead_letter(threshold - 1, type_)
    assert (await loki.breaker(type_))["state"] == "closed"
    await loki.dead_letter(1, type_)
    assert (await loki.breaker(type_))["state"] == "open"
    await loki.enqueue(type_)
    await loki.pass_time(59)
    assert await loki.claim("a1", type_) is None
    await loki.pass_time(1)
    assert await loki.claim("a1", type_) is not None


@pytest.mark.requirement("L-114")
async def test_changed_breaker_configuration_applies_at_once(loki: Loki) -> None:
    text = BLOCK.replace("failureThreshold: 5", "failureThreshold: 2").replace("halfOpenAfter: 60", "halfOpenAfter: 9")
    config = msgspec.to_builtins(parse(text))
    reply = await loki.api.call("PUT", f"/api/breakers/config?workspace={WORKSPACE}", config)
    assert reply.status == 200, reply
    await loki.dead_letter(2)
    assert (await loki.breaker())["state"] == "open"
    await loki.enqueue()
    await loki.pass_time(9)
    assert await loki.claim() is not None
    await loki.dead_letter(2, "ops-security")
    assert (await loki.breaker("ops-security"))["state"] == "closed"
    await loki.dead_letter(1, "ops-security")
    assert (await loki.breaker("ops-security"))["state"] == "open"


@pytest.mark.requirement("L-120", "L-121", "L-122", "L-123")
async def test_check_circuit_breaker_blocks_claims_until_half_open(loki: Loki) -> None:
    await loki.dead_letter(4)
    await loki.enqueue(maxRetries=1)
    await loki.fail(await loki.claim())  # closed with one failure less than the threshold: it proceeds
    for _ in range(3):
        await loki.enqueue()
    await loki.pass_time(30)
    assert (await loki.claim(), (await loki.breaker())["state"]) == (None, "open")
    await loki.pass_time(31)
    assert await loki.claim("a1") is not None
    assert ((await loki.breaker())["state"], await loki.claim("a2")) == ("half-open", None)


@pytest.mark.requirement("L-068", "L-124", "L-125")
async def test_on_task_success_resets_the_breaker(loki: Loki) -> None:
    await loki.dead_letter(3)
    await loki.enqueue()
    await loki.complete(await loki.claim())
    assert ((await loki.breaker())["state"], (await loki.breaker())["failures"]) == ("closed", 0)
    await loki.dead_letter(5)
    for _ in range(2):
        await loki.enqueue()
    await loki.pass_time(60)
    await loki.complete(await loki.claim())
    assert ((await loki.breaker())["state"], (await loki.breaker())["failures"]) == ("closed", 0)
    assert await loki.claim() is not None


@pytest.mark.requirement("L-074", "L-126", "L-127", "L-128", "L-129", "L-130")
async def test_on_task_failure_opens_the_breaker_at_the_threshold(loki: Loki) -> None:
    for failures in range(1, 6):
        assert "Circuit breaker OPEN for eng-backend" not in await loki.alerts()
        await loki.dead_letter(1)
        assert (await loki.breaker())["failures"] == failures
    assert (await loki.alerts())[-1] == "Circuit breaker OPEN for eng-backend"
    await loki.enqueue()
    await loki.pass_time(61)
    await loki.fail(await loki.claim())  # only retried, and still the answer to the test
    found = await loki.breaker()
    assert (found["state"], found["openedAt"], found["failures"]) == ("open", at(61), 6)
    await loki.enqueue()
    await loki.pass_time(59)
    assert await loki.claim() is None
    await loki.pass_time(1)
    assert await loki.claim() is not None


@pytest.mark.requirement("L-131")
async def test_saved_breaker_survives_a_restart(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(store_url, monkeypatch) as loki:
        await loki.dead_letter(5)
        before = await loki.breaker()
    async with served(store_url, monkeypatch) as loki:
        assert (await loki.breaker(), before["state"]) == (before, "open")
        await loki.enqueue()
        assert await loki.claim() is None


@pytest.mark.requirement("L-132", "L-133", "L-134", "L-135", "L-136", "L-137")
@pytest.mark.parametrize(
    ("error", "limited"),
    [
        ("RATE LIMIT reached", True),
        ("HTTP 429", True),
        ("Too Many Requests", True),
        ("Quota exceeded", True),
        ("Retry-After: 30", True),
        ("disk full", False),
    ],
)
async def test_detect_rate_limit_recognises_documented_errors(loki: Loki, error: str, *, limited: bool) -> None:
    await loki.enqueue()
    after = await loki.fail(await loki.claim(), error)
    assert (after["retries"], bool((await loki.read("/api/cooldowns"))["cooldowns"])) == (int(not limited), limited)


@pytest.mark.requirement("L-138", "L-139", "L-140", "L-141", "L-142")
async def test_handle_rate_limit_delays_reporter_and_other_agents(loki: Loki, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "shiftwork")
    await loki.enqueue()
    task = await loki.claim("a1")
    checkpoint = {"files": ["file1.ts"], "step": 3}
    async with watch(loki.api.http, loki.api.url, f"?workspace={WORKSPACE}") as others:
        await loki.fail(task, "Rate limit reached, retry-after: 30", data=checkpoint)
        while (outcome := await others.message())["event"] != "SLOWDOWN":
            pass
    assert (outcome["event"], outcome["data"]["wait"]) == ("SLOWDOWN", 15)
    assert "Rate limit hit for a1, waiting 30s" in caplog.messages
    saved = await loki.ask(f"GET /api/tasks/{task['id']}")
    assert (saved["result"]["output"], saved["retries"], saved["availableAt"]) == (checkpoint, 0, at(30))
    claimed: list[Any] = []
    for _ in range(2):
        await loki.enqueue()
    for moment, agent, gets in ((14, "a2", False), (15, "a2", True), (29, "a1", False), (30, "a1", True)):
        await loki.pass_time(moment - await loki.now())
        last = await loki.claim(agent)
        assert (last is not None) is gets, (moment, agent)
        claimed.append(last)
    # Its retry is looked for at its moment, 30 s, and at the latest every five seconds.
    await loki.pass_time(5)
    assert task["id"] in {claimed[-1]["id"], (await loki.claim("a1"))["id"]}


@pytest.mark.requirement("L-139", "L-143", "L-144")
async def test_rate_limit_backoff_doubles_up_to_an_hour_with_jitter(loki: Loki) -> None:
    await loki.enqueue()
    waits = []
    for _ in range(8):
        after = await loki.fail(await loki.claim(), "429")
        waits.append(datetime.fromisoformat(after["availableAt"]).timestamp() - STANDS_AT - await loki.now())
        await loki.pass_time(waits[-1] + 1)
    for wait, plain in zip(waits, [60, 120, 240, 480, 960, 1920, 3600, 3600], strict=True):
        assert plain <= round(wait, 3) <= plain * 1.1
    assert len({round(wait / plain, 6) for wait, plain in zip(waits, [60, 120, 240, 480], strict=False)}) > 1
