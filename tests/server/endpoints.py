"""A call for every endpoint that changes something or has a path parameter, prepared so that it succeeds once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from shiftwork import Assignment, Queue
from shiftwork.batches import batch_claims
from shiftwork.server.endpoint import Endpoint
from shiftwork.server.routes import ENDPOINTS
from tests.conformance.steps import dead_letter, give_folder

BY_NAME = {endpoint.name: endpoint for endpoint in ENDPOINTS}


class Call(NamedTuple):
    """What to send to an endpoint."""

    names: dict[str, str] = {}
    body: Any = None
    query: dict[str, str] = {}

    def path(self, endpoint: Endpoint, **more: str) -> str:
        path = endpoint.path.format(**{name: quote(value, safe="") for name, value in self.names.items()})
        asked = urlencode({**self.query, **more})
        return f"{path}?{asked}" if asked else path


Arrange = Callable[[Queue], Awaitable[Call]]
CALLS: dict[str, Arrange] = {}


def call(*names: str) -> Callable[[Arrange], Arrange]:
    """Register a coroutine that prepares a call of the endpoints with these names."""

    def keep(arrange: Arrange) -> Arrange:
        CALLS.update(dict.fromkeys(names, arrange))
        return arrange

    return keep


async def waiting(queue: Queue, **fields: Any) -> str:
    return (await queue.submit({"type": "noop", **fields})).id


async def held(queue: Queue, *, start: bool = True, **fields: Any) -> Assignment:
    """Claim a task for an otherwise idle agent."""
    await waiting(queue, target_agent_id="ada", **fields)
    (claim,) = await queue.claim("ada", start=start)
    return claim


def under(claim: Assignment, **fields: Any) -> Call:
    return Call({"task_id": claim.id}, {"token": claim.token, **fields})


@call("claims_request")
async def _claim(queue: Queue) -> Call:
    await waiting(queue)
    return Call({}, {"agent_id": "ada"})


@call("start")
async def _start(queue: Queue) -> Call:
    return under(await held(queue, start=False))


@call("heartbeat")
async def _heartbeat(queue: Queue) -> Call:
    return under(await held(queue), usage={"cost_usd": 1, "tokens_in": 5})


@call("claims_progress", "complete", "fail", "release", "claims_pin_session", "claims_current_token")
async def _under_a_claim(queue: Queue) -> Call:
    return under(await held(queue))


@call("claims_verdict")
async def _verdict(queue: Queue) -> Call:
    claim = await held(queue, output={"validation": "test-pass"})
    await queue.complete(claim.token, "patch")
    return under(claim, passed=True, evidence={"exit_code": 0})


@call("claims_message")
async def _message(queue: Queue) -> Call:
    return under(await held(queue), kind="text", text="reading")


@call("spawn")
async def _spawn(queue: Queue) -> Call:
    return under(await held(queue), tasks=[{"type": "noop"}], wait=True)


@call("waits_request")
async def _wait(queue: Queue) -> Call:
    return under(await held(queue), tasks=[await waiting(queue)])


@call("waits_signal")
async def _signal(queue: Queue) -> Call:
    await queue.waits.wait((await held(queue)).token, "go", signal="go")
    return Call({}, {"name": "go", "data": {"n": 1}})


@call("approvals_answer")
async def _answer(queue: Queue) -> Call:
    claim = await held(queue)
    await queue.waits.wait(claim.token, "sure", question="Are you sure?")
    return Call({"task_id": claim.id}, {"value": "yes"})


@call("approvals_approve", "approvals_reject")
async def _a_guarded_task(queue: Queue) -> Call:
    await queue.settings.set("guards", [{"type": "noop"}])
    return Call({"task_id": await waiting(queue)}, {"note": "seen"})


@call("batch_start")
async def _start_many(queue: Queue) -> Call:
    return Call({}, {"tokens": [(await held(queue, start=False)).token]})


@call("batch_release")
async def _release_many(queue: Queue) -> Call:
    return Call({}, {"tokens": [(await held(queue)).token]})


@call("batch_heartbeat")
async def _heartbeat_many(queue: Queue) -> Call:
    return Call({}, {"heartbeats": [{"token": (await held(queue)).token, "usage": {"cost_usd": 1}}]})


@call("batch_complete")
async def _complete_many(queue: Queue) -> Call:
    return Call({}, {"reports": [{"token": (await held(queue)).token, "data": 1}]})


@call("batch_fail")
async def _fail_many(queue: Queue) -> Call:
    return Call({}, {"problems": [{"token": (await held(queue)).token, "reason": "crash"}]})


@call("steps_begin")
async def _begin_step(queue: Queue) -> Call:
    return under(await held(queue), name="plan")


@call("steps_complete", "steps_list")
async def _complete_step(queue: Queue) -> Call:
    return under(await held(queue), name="plan", result={"n": 1}, usage={"cost_usd": 1})


@call("effects_begin", "effects_of_task")
async def _begin_effect(queue: Queue) -> Call:
    return under(await held(queue), name="charge")


@call("effects_finish")
async def _finish_effect(queue: Queue) -> Call:
    claim = await held(queue)
    await queue.effects.begin(claim.token, key="deploy")
    return under(claim, key="deploy", result={"n": 1})


@call("effects_resolve")
async def _resolve_effect(queue: Queue) -> Call:
    claim = await held(queue)
    await queue.effects.begin(claim.token, key="deploy")
    await queue.fail(claim.token, "effect_unknown")
    return Call({}, {"key": "deploy", "happened": True, "result": {"n": 1}})


@call("submit")
async def _submit(_queue: Queue) -> Call:
    return Call({}, {"type": "noop"})


@call("get", "explain", "tasks_history", "tasks_logs", "cancel")
async def _a_task(queue: Queue) -> Call:
    return Call({"task_id": await waiting(queue)}, {})


@call("tell")
async def _tell(queue: Queue) -> Call:
    return Call({"task_id": await waiting(queue)}, {"text": "hurry"})


@call("tasks_instructions")
async def _instructions(queue: Queue) -> Call:
    task = await waiting(queue)
    await queue.tell(task, "hurry")
    return Call({"task_id": task})


@call("claims_inbox")
async def _inbox(queue: Queue) -> Call:
    claim = await held(queue)
    await queue.tell(claim.id, "hurry")
    return under(claim)


@call("claims_acknowledge")
async def _acknowledge(queue: Queue) -> Call:
    claim = await held(queue)
    await queue.tell(claim.id, "hurry")
    return under(claim, seq=1)


@call("claims_log")
async def _log(queue: Queue) -> Call:
    claim = await held(queue)
    return Call({"task_id": claim.id}, {"token": claim.token, "lines": [{"text": "hello"}]})


@call("batch_log")
async def _logs(queue: Queue) -> Call:
    return Call({}, {"logs": [{"token": (await held(queue)).token, "lines": [{"text": "hello"}]}]})


@call("bulk_page")
async def _bulk(queue: Queue) -> Call:
    await waiting(queue)
    return Call({}, {"action": "cancel", "where": {"status": "ready"}})


@call("batch_get", "batch_cancel")
async def _some_tasks(queue: Queue) -> Call:
    return Call({}, {"task_ids": [await waiting(queue)]})


@call("tasks_update")
async def _update(queue: Queue) -> Call:
    return Call({"task_id": await waiting(queue)}, {"priority": 9})


@call("tasks_rerun", "result")
async def _an_ended_task(queue: Queue) -> Call:
    claim = await held(queue)
    await queue.complete(claim.token, {"n": 1})
    return Call({"task_id": claim.id})


@call("tasks_rerun_issue")
async def _rerun_issue(queue: Queue) -> Call:
    claim = await held(queue, issue_id="issue 7")
    await queue.complete(claim.token)
    return Call({"issue_id": "issue 7"}, {})


@call("tasks_count_by_tag")
async def _a_tag(queue: Queue) -> Call:
    await waiting(queue, tags=["red"])
    return Call({"tag": "red"})


@call("submit_dag")
async def _submit_dag(_queue: Queue) -> Call:
    return Call({}, _dag())


def _dag() -> dict[str, Any]:
    return {"tasks": [{"type": "noop", "key": "a"}, {"type": "noop", "dependencies": ["a"]}]}


async def _a_dag(queue: Queue) -> dict[str, str]:
    made = await queue.submit_dag(_dag())
    return {"dag_id": made[0].dag_id or ""}


@call("dag_result")
async def _ended_dag(queue: Queue) -> Call:
    (made,) = await queue.submit_dag({"tasks": [{"type": "noop", "target_agent_id": "ada"}]})
    (claim,) = await queue.claim("ada", start=True)
    await queue.complete(claim.token)
    return Call({"dag_id": made.dag_id or ""})


@call("dags_get", "dags_cancel")
async def _whole_dag(queue: Queue) -> Call:
    return Call(await _a_dag(queue), {})


@call("budgets_set")
async def _set_budget(queue: Queue) -> Call:
    return Call({}, {"kind": "dag", "id": (await _a_dag(queue))["dag_id"], "ceiling_usd": 5})


@call("dags_update")
async def _update_dag(queue: Queue) -> Call:
    return Call(await _a_dag(queue), {"title": "other"})


@call("dags_add_tasks")
async def _add_to_dag(queue: Queue) -> Call:
    return Call(await _a_dag(queue), {"tasks": [{"type": "noop"}]})


@call("agents_register")
async def _register(_queue: Queue) -> Call:
    return Call({}, {"id": "bob", "types": ["noop"]})


@call("agents_get", "agents_heartbeat", "agents_deregister")
async def _an_agent(queue: Queue) -> Call:
    await queue.agents.register(id="bob/2")
    return Call({"agent_id": "bob/2"})


@call("agents_update")
async def _update_agent(queue: Queue) -> Call:
    await queue.agents.register(id="bob")
    return Call({"agent_id": "bob"}, {"status": "draining", "budget_remaining_usd": 5})


@call("runtimes_heartbeat")
async def _beat_runtime(queue: Queue) -> Call:
    return Call({"runtime_id": "ada"}, {"holding": [(await held(queue)).token]})


@call("runtimes_recover", "runtimes_report_gone")
async def _a_runtime(queue: Queue) -> Call:
    await held(queue)
    return Call({"runtime_id": "ada"})


@call("dead_letters_review")
async def _review(queue: Queue) -> Call:
    return Call({"task_id": await dead_letter(queue)}, {"decision": "retry"})


@call("dead_letters_reviews")
async def _reviews(queue: Queue) -> Call:
    task_id = await dead_letter(queue)
    await queue.dead_letters.review(task_id, "abandon", note="hopeless")
    return Call({"task_id": task_id})


@call("dead_letters_redrive")
async def _redrive(queue: Queue) -> Call:
    await dead_letter(queue)
    (letter,) = await queue.dead_letters.list()
    return Call({}, {"signature": letter.signature})


@call("control_pause")
async def _pause(_queue: Queue) -> Call:
    return Call({}, {"type": "noop", "reason": "lunch"})


@call("snapshots_take", "snapshots_list")
async def _snapshot(queue: Queue) -> Call:
    give_folder(queue)
    return Call()


@call("quotas_set")
async def _set_quota(_queue: Queue) -> Call:
    return Call({"workspace": "some/where"}, {"max_tasks": 5})


@call("types_save")
async def _save_type(_queue: Queue) -> Call:
    return Call({"name": "some/thing"}, {"payload_schema": {"type": "object"}, "result_schema": None})


@call("types_get", "types_remove")
async def _type(queue: Queue) -> Call:
    await queue.types.save("some/thing", payload_schema={"type": "object"})
    return Call({"name": "some/thing"})


@call("types_declare")
async def _declare(_queue: Queue) -> Call:
    return Call({}, {"agent_id": "ada", "types": [{"name": "some/thing", "options": {"max_attempts": 2}}]})


@call("control_resume")
async def _resume(queue: Queue) -> Call:
    await queue.control.pause("noop")
    return Call({}, {"type": "noop"})


@call("control_purge")
async def _purge(queue: Queue) -> Call:
    await waiting(queue)
    return Call({}, {"type": "noop"})


@call("agents_rebalance")
async def _rebalance(queue: Queue) -> Call:
    await queue.agents.register(id="idle")
    await queue.agents.register(id="ada", max_concurrent_tasks=2)
    for _ in range(2):
        await held(queue, start=False)
    return Call()


@call("alerts_acknowledge")
async def _an_alert(queue: Queue) -> Call:
    await queue.agents.register(id="bob")
    await queue.agents.set_status("bob", "failed")
    (alert,) = await queue.alerts.list()
    return Call({"seq": str(alert.seq)})


WINDOWS = [{"name": "five_hour", "unit": "tokens", "capacity": 1000}]


@call("accounts_set")
async def _set_account(_queue: Queue) -> Call:
    return Call({"provider": "some/where", "account": "a/b"}, {"windows": WINDOWS})


@call("accounts_remove")
async def _remove_account(queue: Queue) -> Call:
    await queue.accounts.set("some/where", "a/b", windows=WINDOWS)
    return Call({"provider": "some/where", "account": "a/b"})


async def _held_with_account(queue: Queue) -> Assignment:
    await queue.agents.register(id="otto", provider="anthropic", accounts=["a/b"])
    await queue.submit(type="noop", target_agent_id="otto")
    return (await queue.claim("otto", start=True))[0]


@call("accounts_renew")
async def _renew_account(queue: Queue) -> Call:
    claim = await _held_with_account(queue)
    await queue.fail(claim.token, None, "401 Unauthorized", data={"status": 401})
    return Call({"provider": "anthropic", "account": "a/b"})


@call("accounts_report")
async def _report_quota(queue: Queue) -> Call:
    claim = await _held_with_account(queue)
    window = {"window": "five_hour", "utilization": 0.5}
    return Call({"task_id": claim.id}, {"token": claim.token, "windows": [window]})


@call("batches_show")
async def _batch(queue: Queue) -> Call:
    engine, workspace = queue.engine, queue.workspace
    request = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    await queue.submit(type="ask", payload={"provider": "openai", "request": request}, urgency="batch")
    await engine.store.run(lambda tx: batch_claims.gather(tx, engine, workspace, "openai"))
    return Call({"batch_id": (await queue.batches.list())[0].id})


@call("breakers_reset", "breakers_trip")
async def _a_breaker(queue: Queue) -> Call:
    await queue.submit(type="noop/1")
    await queue.breakers.trip("noop/1")
    return Call({"type": "noop/1"})


@call("breakers_configure")
async def _configure_breakers(_queue: Queue) -> Call:
    return Call({}, {"defaults": {"failureThreshold": 5}, "overrides": {"noop": {"halfOpenAfter": 9}}})


@call("cooldowns_set")
async def _cool_down(_queue: Queue) -> Call:
    return Call({"key": "provider:x,model:a/b"}, {"seconds": 60, "reason": "tired"})


@call("cooldowns_lift")
async def _lift_cooldown(queue: Queue) -> Call:
    return Call({"key": (await queue.cooldowns.set("model:a/b", 60)).key})


@call("limits_set")
async def _set_limit(_queue: Queue) -> Call:
    return Call({"key": "model:a/b"}, {"concurrency": 2, "requests": 9, "window_sec": 60})


@call("limits_remove")
async def _remove_limit(queue: Queue) -> Call:
    return Call({"key": (await queue.limits.set("model:a/b", concurrency=2)).key})


@call("settings_apply")
async def _change_settings(_queue: Queue) -> Call:
    return Call({}, {"set": {"max_attempts": 7}})


@call("tokens_create")
async def _create_token(_queue: Queue) -> Call:
    return Call({}, {"name": "ci", "scopes": ["submit"]})


@call("tokens_revoke")
async def _a_token(queue: Queue) -> Call:
    return Call({"token_id": (await queue.tokens.create("ci", ["submit"])).id})


@call("move_clock")
async def _move_clock(_queue: Queue) -> Call:
    return Call({}, {"advance_sec": 5})


@call("artifacts_add")
async def _put_artifact(_queue: Queue) -> Call:
    return Call({}, {"n": 1}, {"name": "numbers.json"})


@call("artifacts_put_known")
async def _put_known_artifact(_queue: Queue) -> Call:
    body = {"n": 1}
    sha256 = hashlib.sha256(json.dumps(body).encode()).hexdigest()
    return Call({"artifact_id": f"artifact:sha256-{sha256}"}, body)


@call("artifacts_attach")
async def _attach_artifact(queue: Queue) -> Call:
    claim = await held(queue)
    return Call({"task_id": claim.id}, {"n": 1}, {"token": claim.token, "name": "numbers.json"})


@call("artifacts_get", "artifacts_info")
async def _an_artifact(queue: Queue) -> Call:
    return Call({"artifact_id": (await queue.artifacts.put(b"theirs")).id})


@call("artifacts_list", "artifacts_inputs")
async def _a_task_with_inputs(queue: Queue) -> Call:
    kept = await queue.artifacts.put(b"theirs")
    return Call({"task_id": await waiting(queue, spec={"context_refs": [kept.id]})})


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


def named() -> list[Endpoint]:
    """Return the endpoints with a path parameter, except hooks, which need a signature instead of a token."""
    return [endpoint for endpoint in ENDPOINTS if "{" in endpoint.path and endpoint.scope is not None]


def changing() -> list[Endpoint]:
    """Return the endpoints that change something; some others only read, but take a body."""
    return [endpoint for endpoint in ENDPOINTS if endpoint.changes and endpoint.scope not in {None, "read"}]
