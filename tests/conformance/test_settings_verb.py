"""Settings: what is in force, where it comes from, and how it changes while the queue runs."""

from typing import Any

import pytest

from shiftwork import Queue
from shiftwork.model.errors import InputError, UnknownSetting
from shiftwork.settings.model import InForce
from shiftwork.testing import MovedClock
from tests.conformance.steps import take, viewed


async def in_force(queue: Queue, key: str, type_: str | None = None) -> InForce:
    (found,) = [setting for setting in await queue.settings.list(type_) if setting.key == key]
    return found


async def test_every_setting_shows_value_source_and_meaning(queue: Queue) -> None:
    settings = await queue.settings.list()
    assert len({setting.key for setting in settings}) == len(settings) > 100
    assert all(setting.meaning for setting in settings)
    assert {setting.source for setting in settings} == {"default"}
    assert (await in_force(queue, "max_attempts")).value == 3


async def test_setting_is_resolved_from_task_type_workspace_profile_and_default(
    queue: Queue,
) -> None:
    async def attempts(**fields: Any) -> int:
        return (await queue.get((await queue.submit(type="code", **fields)).id)).max_attempts

    seen = [await attempts()]
    await queue.settings.use_profile("redis")
    await queue.settings.set("idempotency.source", "none")
    seen.append(await attempts())
    await queue.settings.set("max_attempts", 5)
    seen.append(await attempts())
    await queue.settings.set("max_attempts", 6, type="code")
    seen.append(await attempts())
    seen.append(await attempts(max_attempts=7))
    assert seen == [3, 4, 5, 6, 7]
    assert (await in_force(queue, "max_attempts", "code")).source != (await in_force(queue, "max_attempts")).source


async def test_setting_can_be_unset(queue: Queue) -> None:
    await queue.settings.use_profile("redis")
    await queue.settings.set("max_attempts", 9)
    await queue.settings.unset("max_attempts")
    assert (await in_force(queue, "max_attempts")).value == 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", "three"),
        ("ordering", "random"),
        ("retry.strategy", "schedule"),
        ("cancel.from", ["nowhere"]),
        ("warning_at", 0.99),
    ],
)
async def test_invalid_setting_value_is_refused(queue: Queue, key: str, value: object) -> None:
    before = await queue.settings.list()
    with pytest.raises(InputError) as refused:
        await queue.settings.set(key, value)
    assert key.partition(".")[0] in (refused.value.where or "")
    assert await queue.settings.list() == before


async def test_unknown_setting_is_refused_with_nearest_name(queue: Queue) -> None:
    with pytest.raises(UnknownSetting) as refused:
        await queue.settings.set("max_atempts", 3)
    assert "max_attempts" in refused.value.facts["nearest"]


async def test_setting_change_is_recorded_with_its_actor(queue: Queue) -> None:
    await queue.as_caller("human:ada").settings.set("max_attempts", 5, type="code")
    (event,) = [e for e in (await queue.events()).events if e.verb == "settings_changed"]
    assert (event.actor, event.data) == ("human:ada", {"scope": "code", "key": "max_attempts", "value": 5})


async def test_another_process_uses_changed_settings(queue: Queue, clock: MovedClock, store_url: str) -> None:
    await queue.settings.use_profile("aegis")
    await queue.settings.set("claim_ttl_sec", 7)
    async with Queue.open(store_url, clock=clock) as second:
        assert (await in_force(second, "claim_ttl_sec")).value == 7
        assert (await in_force(second, "max_attempts")).value == 2


async def test_each_workspace_has_its_own_settings(queue: Queue) -> None:
    other = queue.in_workspace("other")
    await other.settings.use_profile("loki")
    assert (await in_force(other, "ordering")).value == "static"
    assert (await in_force(queue, "ordering")).value == "effective"


async def test_coscientist_configuration_can_be_read(coscientist: Queue) -> None:
    expected = {
        "max_queue_size": 10000,
        "priority_quotas.high": 1000,
        "priority_quotas.medium": 5000,
        "priority_quotas.low": 4000,
        "agent_timeout_sec": 300,
        "heartbeat_interval_sec": 30,
        "max_attempts": 3,
        "retry.backoff_multiplier": 2,
        "retry.max_delay_sec": 300,
        "maintenance.snapshot_sec": 60,
        "starvation_threshold_sec": 3600,
        "warning_at": 0.8,
        "critical_at": 0.95,
        "claim_ttl_sec": 5,
        "timeout_grace": 1.2,
        "dependency_wait_sec": 300,
        "operation_max_sec": 30,
        "maintenance.dead_letter_sec": 300,
        "maintenance.metrics_sec": 30,
        "maintenance.stale_sec": 600,
    }
    values = {setting.key: setting.value for setting in await coscientist.settings.list()}
    assert {key: values[key] for key in expected} == expected
    for key in expected:
        await coscientist.settings.set(key, values[key] + 1 if key not in {"warning_at", "critical_at"} else 0.9)
    changed = {setting.key: setting.value for setting in await coscientist.settings.list()}
    assert not [key for key in expected if changed[key] == expected[key]]


@pytest.mark.requirement("L-116")
async def test_loki_breaker_settings_can_be_read_with_overrides(loki: Queue) -> None:
    values = {setting.key: setting.value for setting in await loki.settings.list()}
    shown = [values[f"circuit_breaker.{key}"] for key in ("failure_threshold", "cooldown_seconds", "half_open_after")]
    assert shown == [5, 300, 60]
    assert (await in_force(loki, "circuit_breaker.failure_threshold", "ops-security")).value == 3
    assert (await in_force(loki, "circuit_breaker.failure_threshold", "biz-marketing")).value == 10


@pytest.mark.requirement("R-019", "R-020", "R-026")
async def test_redis_protocol_numbers_can_be_read(streams: Queue) -> None:
    values = {setting.key: setting.value for setting in await streams.settings.list()}
    assert (values["heartbeat_timeout_sec"], values["heartbeat_interval_sec"]) == (300, 30)
    task_id = (await streams.submit(type="tool", idempotency_key="k")).id
    assert (await viewed(streams, "redis", task_id))["max_retries"] == 3
    assert (await take(streams)).heartbeat_interval_sec == 30


async def test_type_settings_never_change_the_workspace(queue: Queue) -> None:
    with pytest.raises(InputError) as error:
        await queue.settings.change({}, type="code", profile="aegis")
    assert error.value.where == "type"
    with pytest.raises(InputError):
        await queue.settings.change({"max_attempts": 7}, type="")
    with pytest.raises(InputError):
        await queue.settings.set("max_attempts", 7, type="")
    assert (await queue.settings.profile(), (await in_force(queue, "max_attempts")).value) == ("standard", 3)
