"""Calls for the endpoints of triggers, sinks and deliveries."""

from __future__ import annotations

from typing import Any

from shiftwork import Queue
from tests.server.calls import Call, call

CRON = {"kind": "cron", "at": "@daily"}


async def armed_trigger(queue: Queue) -> str:
    return (await queue.triggers.save("nightly", on=CRON, task={"type": "noop"})).trigger.name


@call("triggers_save")
async def _save_trigger(_queue: Queue) -> Call:
    return Call({"name": "nightly"}, {"on": CRON, "task": {"type": "noop"}})


@call("triggers_get", "triggers_remove", "triggers_pause", "triggers_firings")
async def _of_trigger(queue: Queue) -> Call:
    return Call({"name": await armed_trigger(queue)})


@call("triggers_fire", "triggers_preview")
async def _fire_trigger(queue: Queue) -> Call:
    return Call({"name": await armed_trigger(queue)}, {"reason": "now"})


@call("triggers_resume")
async def _resume_trigger(queue: Queue) -> Call:
    return Call({"name": (await queue.triggers.pause(await armed_trigger(queue))).name})


async def emitted(queue: Queue, **fields: Any) -> str:
    """Create a sink that is never contacted."""
    known = {"name": "ops", "kind": "webhook", "address": "https://example.com/in", **fields}
    return (await queue.sinks.add(**known)).sink.name


@call("sinks_add")
async def _add_sink(_queue: Queue) -> Call:
    wants = {"alerts": ["dead_lettered"], "events": ["task.*"], "types": ["noop"]}
    return Call({}, {"name": "ops", "kind": "webhook", "address": "https://example.com/in", "wants": wants})


@call("sinks_get", "sinks_remove", "sinks_test", "sinks_list")
async def _of_sink(queue: Queue) -> Call:
    return Call({"sink": await emitted(queue)})


@call("sinks_update")
async def _update_sink(queue: Queue) -> Call:
    return Call({"sink": await emitted(queue)}, {"wants": {"severity": "critical"}})


@call("sinks_pause")
async def _pause_sink(queue: Queue) -> Call:
    return Call({"sink": await emitted(queue)}, {"reason": "holiday"})


@call("sinks_resume")
async def _resume_sink(queue: Queue) -> Call:
    return Call({"sink": (await queue.sinks.pause(await emitted(queue))).name})


@call("deliveries_get", "deliveries_redeliver", "deliveries_list")
async def _of_delivery(queue: Queue) -> Call:
    return Call({"delivery_id": (await queue.sinks.test(await emitted(queue))).id})


@call("deliveries_redeliver_dead")
async def _redeliver_dead(queue: Queue) -> Call:
    return Call({}, {"sink": await emitted(queue)})
