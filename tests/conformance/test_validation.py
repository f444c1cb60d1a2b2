"""Outputs are validated by pattern, by tests or by a judge, and decisions are documented."""

from typing import Any

import pytest

from shiftwork import Completion, Queue, Usage
from shiftwork.model.errors import InputError, LeaseLost, ShiftworkError, WrongState
from shiftwork.model.task import NewVerdict
from shiftwork.testing import MovedClock, pass_time
from tests.conformance.steps import events_named, sql, states, take, viewed

URL = {"validation": "regex", "validation_schema": r"https?://\S+"}
TESTS = {"type": "code", "validation": "test-pass", "validation_schema": "make test"}
JUDGED = {"validation": "llm-judge", "validation_schema": "Is this summary accurate and complete?"}
EVIDENCE = {"exit_code": 1, "output": "2 failed", "duration_sec": 3.5}


async def submit_result(queue: Queue, output: dict[str, Any], data: Any = "done", **fields: Any) -> str:
    """A task of agent `ada`, submitted; its token."""
    await queue.submit({"type": "code", "output": output, "target_agent_id": "ada", **fields})
    token = (await take(queue, "ada")).token
    await queue.complete(token, data)
    return token


def task_of(token: str) -> str:
    return token.partition(".")[0]


@pytest.mark.requirement("F-047", "F-236")
@pytest.mark.parametrize(
    ("result", "status"),
    [
        ({"data": "see https://example.org/a"}, "completed"),
        ({"data": "see example.org"}, "retrying"),
        ({"text": "see http://example.org"}, "completed"),
        ({"data": "https://example.org", "text": "no address"}, "retrying"),
        ({"data": {"links": ["https://example.org"]}}, "completed"),
        ({"data": {"links": []}}, "retrying"),
        ({}, "retrying"),
    ],
)
async def test_output_must_match_its_pattern(queue: Queue, result: dict[str, Any], status: str) -> None:
    task_id = (await queue.submit(type="research", output=URL)).id
    outcome = await queue.complete((await take(queue)).token, **result)
    assert outcome.status == status
    (attempt,) = await queue.tasks.attempts(task_id)
    assert attempt.verdict is not None
    assert (attempt.verdict.method, attempt.verdict.passed, attempt.verdict.by) == (
        "regex",
        status == "completed",
        "queue",
    )
    if status == "retrying":
        assert (attempt.reason, attempt.error) == ("invalid_output", r"output: https?://\S+ is not found in it")
        assert (await states(queue, task_id))[-4:] == ["running", "validating", "failed", "retrying"]


async def test_pattern_can_be_given_in_an_object(queue: Queue) -> None:
    await queue.submit(type="research", output={"validation": "regex", "validation_schema": {"pattern": "^ok$"}})
    assert (await queue.complete((await take(queue)).token, "ok")).status == "completed"


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(a|a)*b", "(.*a){12}", "([a-z]+)*!"])
async def test_no_pattern_takes_exponential_time(queue: Queue, pattern: str) -> None:
    """A backtracking engine would practically never finish the first of these."""
    await queue.submit(type="x", output={"validation": "regex", "validation_schema": pattern}, max_attempts=1)
    outcome = await queue.complete((await take(queue)).token, "a" * 30_000 + "?")
    assert outcome.status == ("dead_lettered" if pattern != "(.*a){12}" else "completed")


async def test_text_too_long_for_its_pattern_is_not_accepted(queue: Queue) -> None:
    await queue.submit(type="x", output={"validation": "regex", "validation_schema": "a{1,500}"}, max_attempts=1)
    task_id = (await take(queue)).id
    await queue.complete(f"{task_id}.1", "a" * 2_000_000)
    assert "2000000 bytes" in str((await queue.get(task_id)).last_error)


@pytest.mark.parametrize(
    ("method", "schema", "what"),
    [
        ("regex", "(", "is not a usable pattern"),
        ("regex", "(?=a)b", "is not a usable pattern"),
        ("regex", r"(a)\1", "is not a usable pattern"),
        ("regex", "(a{1000}){1000}", "is not a usable pattern"),
        ("regex", "", "regex takes a pattern"),
        ("regex", {"pattern": 5}, "regex takes a pattern"),
        ("regex", {"pattern": "a", "flags": "i"}, "regex takes a pattern"),
        ("test-pass", " ", "test-pass takes a command"),
        ("test-pass", {"command": []}, "test-pass takes a command"),
        ("test-pass", {"command": "make", "timeout_sec": 0}, "test-pass takes a command"),
        ("test-pass", {"command": "make", "shell": True}, "test-pass takes a command"),
    ],
)
async def test_unusable_validation_schema_is_refused_at_submit(
    queue: Queue, method: str, schema: Any, what: str
) -> None:
    with pytest.raises(InputError, match=what) as refused:
        await queue.submit(type="x", output={"validation": method, "validation_schema": schema})
    assert refused.value.where == "output.validation_schema"
    assert (await queue.tasks.list()).tasks == []


@pytest.mark.requirement("F-047")
@pytest.mark.parametrize("method", ["json-schema", "test-pass", "llm-judge", "regex", "none"])
async def test_each_validation_method_works_without_a_schema(queue: Queue, method: str) -> None:
    task_id = (await queue.submit(type="x", output={"validation": method})).id
    output = (await queue.get(task_id)).output
    assert output is not None
    assert output["validation"] == method
    outcome = await queue.complete((await take(queue)).token, "anything")
    assert outcome.status == ("validating" if method in {"test-pass", "llm-judge"} else "completed")


@pytest.mark.requirement("F-047", "F-234")
@pytest.mark.parametrize("passed", [True, False])
async def test_verdict_can_come_with_the_result(queue: Queue, *, passed: bool) -> None:
    task_id = (await queue.submit(type="code", output=TESTS)).id
    child = (await queue.submit(type="deploy", dependencies=[task_id])).id
    verdict = {"passed": passed, "evidence": EVIDENCE}
    outcome = await queue.complete((await take(queue, "ada")).token, "a patch", verdict=verdict)
    assert outcome.status == ("completed" if passed else "retrying")
    assert (await queue.get(child)).status == ("ready" if passed else "pending")
    (attempt,) = await queue.tasks.attempts(task_id)
    assert attempt.verdict is not None
    assert (attempt.verdict.method, attempt.verdict.by) == ("test-pass", "agent:ada")
    assert (attempt.verdict.passed, attempt.verdict.evidence) == (passed, EVIDENCE)
    if not passed:
        assert (attempt.reason, attempt.error) == ("invalid_output", "the tests did not pass: exit code 1")


@pytest.mark.requirement("F-063", "F-232", "F-234")
@pytest.mark.parametrize("passed", [True, False])
async def test_output_without_a_verdict_waits_for_it(queue: Queue, clock: MovedClock, *, passed: bool) -> None:
    token = await submit_result(queue, TESTS, {"patch": 1}, timeout_sec=60)
    task = await queue.get(task_of(token))
    assert (task.status, task.claim.agent_id) == ("validating", "ada")
    assert task.result is not None
    assert (task.result.status, task.result.data, task.result.completed_at) == (None, {"patch": 1}, None)
    clock.advance(59)
    outcome = await queue.claims.verdict(token, passed=passed, evidence=EVIDENCE, note="see the log")
    assert outcome.status == ("completed" if passed else "retrying")
    task = await queue.get(task_of(token))
    assert task.result is not None
    assert task.result.verdict is not None
    assert (task.result.data, task.result.verdict.passed) == ({"patch": 1}, passed)
    assert (task.result.verdict.reasons, task.result.verdict.evidence) == (["see the log"], EVIDENCE)
    rest = ["completed"] if passed else ["failed", "retrying"]
    assert (await states(queue, task.id))[-len(rest) - 2 :] == ["running", "validating", *rest]
    assert await events_named(queue, "task.validating") == [task.id]
    assert await sql(queue, "select * from outputs") == []


async def test_repeated_verdict_takes_effect_once(queue: Queue) -> None:
    token = await submit_result(queue, TESTS)
    again = await queue.complete(token, "done")
    assert (again.status, again.repeated) == ("validating", True)
    assert (await queue.claims.verdict(token, passed=True)).repeated is False
    outcome = await queue.claims.verdict(token, passed=True)
    assert (outcome.status, outcome.repeated) == ("completed", True)
    assert len(await queue.tasks.attempts(task_of(token))) == 1
    rejected = await submit_result(queue, TESTS)
    assert (await queue.claims.verdict(rejected, passed=False)).status == "retrying"
    outcome = await queue.claims.verdict(rejected, passed=False)
    assert (outcome.status, outcome.repeated) == ("retrying", True)


async def test_verdict_can_come_with_a_repeated_result(queue: Queue) -> None:
    token = await submit_result(queue, TESTS, "first")
    assert (await queue.complete(token, "second", verdict={"passed": True})).status == "completed"
    assert (await queue.result(task_of(token))).data == "first"


async def test_verdict_that_is_not_expected_is_refused(queue: Queue) -> None:
    await queue.submit(type="code", output=TESTS)
    token = (await take(queue, "ada")).token
    with pytest.raises(WrongState):
        await queue.claims.verdict(token, passed=True)
    with pytest.raises(LeaseLost):
        await queue.claims.verdict(f"{task_of(token)}.9", passed=True)
    for output in (URL, JUDGED, {"validation": "json-schema", "validation_schema": {}}):
        held = await queue.submit(type="other", output=output, target_agent_id="bob")
        with pytest.raises(InputError, match="not by its agent"):
            await queue.complete((await take(queue, "bob")).token, "https://a", verdict={"passed": True})
        assert (await queue.get(held.id)).status == "running"
        await queue.cancel(held.id)
    judged = await submit_result(queue.in_workspace("judged"), JUDGED)
    with pytest.raises(WrongState, match="llm-judge"):
        await queue.in_workspace("judged").claims.verdict(judged, passed=True)


async def test_batch_of_results_reports_every_kind_of_outcome(queue: Queue) -> None:
    await queue.agents.register(id="ada", max_concurrent_tasks=9)
    for output in (None, URL, URL, TESTS, TESTS, JUDGED):
        await queue.submit({"type": "x", **({"output": output} if output else {})})
    held = await queue.claim("ada", 6, start=True)
    results = [
        ("any", None),
        ("http://a", None),
        ("none", None),
        ("t", None),
        ("t", NewVerdict(passed=True)),
        ("j", None),
    ]
    reports = [
        Completion(data, verdict=new_verdict, token=h.token)
        for h, (data, new_verdict) in zip(held, results, strict=True)
    ]
    outcomes = await queue.batch.complete([*reports, Completion(1, token=f"{held[0].id}.7")])
    assert [o.status for o in outcomes] == [
        *("completed", "completed", "retrying", "validating", "completed", "validating"),
        None,
    ]
    assert isinstance(outcomes[-1].error, LeaseLost)


async def test_missing_verdict_fails_the_attempt_after_its_time_limit(queue: Queue, clock: MovedClock) -> None:
    token = await submit_result(queue, TESTS, {"patch": 1}, timeout_sec=600, settings={"heartbeat_timeout_sec": 30})
    await pass_time(queue, clock, 599)
    assert (await queue.get(task_of(token))).status == "validating"
    await pass_time(queue, clock, 2)
    task = await queue.get(task_of(token))
    assert (task.failure_reason, task.attempts) == ("timeout", 1)
    assert task.last_error == "Timeout: there was no verdict within 601s"
    assert task.result is not None
    assert task.result.data == {"patch": 1}
    with pytest.raises(LeaseLost):
        await queue.claims.verdict(token, passed=True)


async def test_task_without_time_limit_waits_an_hour_for_its_verdict(queue: Queue, clock: MovedClock) -> None:
    await queue.settings.set("timeout_sec", None)
    token = await submit_result(queue, TESTS)
    await pass_time(queue, clock, 3599)
    assert (await queue.get(task_of(token))).status == "validating"
    await pass_time(queue, clock, 2)
    assert (await queue.get(task_of(token))).failure_reason == "timeout"


async def test_validating_task_occupies_no_slot_and_no_claim(queue: Queue, clock: MovedClock) -> None:
    await queue.agents.register(id="ada", max_concurrent_tasks=1)
    await queue.submit(type="code", output=TESTS)
    held = await take(queue, "ada", runtime_id="laptop")
    await queue.complete(held.token)
    (agent,) = await queue.agents.list()
    assert (agent.current_tasks, agent.idle) == (0, True)
    assert [(runtime.id, runtime.held) for runtime in await queue.runtimes.list()] == [("laptop", 0)]
    beat = await queue.runtimes.heartbeat("laptop", [])
    assert (beat.unnamed, beat.lost) == ([], [])
    assert await queue.runtimes.report_gone("laptop") == []
    assert await queue.runtimes.recover("laptop") == []
    await pass_time(queue, clock, 1000)  # longer than any silence
    assert (await queue.get(held.id)).status == "validating"
    await queue.submit(type="code")
    assert await queue.claim("ada")


async def test_validating_task_occupies_no_limit_slot(queue: Queue) -> None:
    await queue.limits.set("type:code", concurrency=1)
    token = await submit_result(queue, TESTS)
    await queue.submit(type="code")
    await take(queue, "bob")
    assert (await queue.claims.verdict(token, passed=True)).status == "completed"
    await queue.submit(type="code")
    assert await queue.claim("carol") == []  # the place is bob's


async def test_author_can_heartbeat_charge_and_fail_a_validating_task(queue: Queue) -> None:
    token = await submit_result(queue, TESTS, {"patch": 1})
    assert (await queue.heartbeat(token, usage={"cost_usd": 0.5})).action == "continue"
    with pytest.raises(WrongState):
        await queue.release(token)
    assert (await queue.fail(token, "crash", "the tests cannot run here")).status == "retrying"
    task = await queue.get(task_of(token))
    assert (task.cost_usd, task.last_error) == (0.5, "the tests cannot run here")
    assert task.result is not None
    assert task.result.data == {"patch": 1}


async def test_explain_names_the_missing_verdict(queue: Queue) -> None:
    token = await submit_result(queue, TESTS)
    found = await queue.explain(task_of(token))
    assert [hold.kind for hold in found.holds] == ["verdict"]
    judged = await submit_result(queue, JUDGED)
    found = await queue.explain(task_of(judged))
    assert found.holds[0].tasks == [(await queue.get(task_of(judged))).judge_task_id]


REPORT = {"what": "JWT", "why": "no sessions"}


async def refused(queue: Queue, token: str, **result: Any) -> ShiftworkError:
    with pytest.raises(InputError) as error:
        await queue.complete(token, "done", **result)
    return error.value


@pytest.mark.requirement("L-030", "L-031")
async def test_result_without_decision_report_is_refused_and_task_continues(loki: Queue) -> None:
    task_id = (await loki.submit(type="eng-backend")).id
    token = (await take(loki)).token
    for report in (None, {}, {"why": ""}):
        error = await refused(loki, token, decision_report=report)
        assert (error.code, error.where) == ("report_required", "decision_report")
    task = await loki.get(task_id)
    assert (task.status, task.incomplete, task.result, task.completed_at) == ("running", True, None, None)
    assert (await viewed(loki, "loki", task_id))["incomplete"] is True
    assert (await loki.status()).counts == {"running": 1}
    assert await events_named(loki, "task.incomplete") == [task_id]
    assert (await loki.complete(token, "done", decision_report=REPORT)).status == "completed"
    task = await loki.get(task_id)
    assert (task.status, task.incomplete) == ("completed", False)


@pytest.mark.requirement("L-030")
async def test_missing_report_ends_with_the_claim_timeout(loki: Queue, clock: MovedClock) -> None:
    task_id = (await loki.submit(type="eng-backend", timeout_sec=30)).id
    await refused(loki, (await take(loki)).token)
    await pass_time(loki, clock, 60)
    task = await loki.get(task_id)
    assert (task.status, task.incomplete) == ("ready", False)
    await take(loki, "another")
    assert (await loki.get(task_id)).incomplete is False  # that was the attempt before


async def test_missing_report_can_fail_the_attempt(queue: Queue) -> None:
    await queue.settings.change({"require_decision_report": True, "on_missing_report": "fail"}, type="code")
    task_id = (await queue.submit(type="code")).id
    assert (await queue.complete((await take(queue)).token, 1)).status == "retrying"
    task = await queue.get(task_id)
    assert (task.failure_reason, task.last_error) == ("invalid_output", "there is no decision report")
    await queue.submit(type="docs")
    assert (await queue.complete((await take(queue)).token, 1)).status == "completed"


async def test_task_setting_can_require_a_report(queue: Queue) -> None:
    await queue.submit(type="code", settings={"require_decision_report": True})
    token = (await take(queue)).token
    assert (await refused(queue, token, usage={"cost_usd": 0.25})).code == "report_required"
    assert (await queue.get(task_of(token))).cost_usd == 0.25  # spent is spent
    assert (await queue.complete(token, 1, decision_report=REPORT)).status == "completed"
    assert (await queue.get(task_of(token))).cost_usd == 0.25


async def test_report_is_required_as_soon_as_the_setting_changes(queue: Queue) -> None:
    await queue.submit(type="code")
    token = (await take(queue)).token
    await queue.settings.set("require_decision_report", True)
    await refused(queue, token)
    await queue.settings.unset("require_decision_report")
    assert (await queue.get(task_of(token))).incomplete is False
    assert (await queue.complete(token, "done")).status == "completed"


async def test_report_and_schema_are_both_required(loki: Queue) -> None:
    await loki.submit(type="code", output=URL)
    token = (await take(loki)).token
    assert (await refused(loki, token)).code == "report_required"
    assert (await loki.complete(token, "no address", decision_report=REPORT)).status == "retrying"


async def test_report_is_required_after_a_review(queue: Queue) -> None:
    await queue.submit(type="code", settings={"require_decision_report": True})
    token = (await take(queue)).token
    await queue.fail(token, "crash", retry=False)
    await queue.dead_letters.review(task_of(token), "modify_and_retry", change={"payload": {"n": 2}})
    assert (await refused(queue, (await take(queue)).token)).code == "report_required"


DOUBLING = {
    "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)} | {"d40": {"type": "string"}},
    "$ref": "#/$defs/d0",
}
"""2.8 KB that take 2^40 evaluations of a number."""


async def test_schema_that_expands_too_far_is_refused_at_submit(queue: Queue) -> None:
    task: dict[str, Any] = {"type": "x", "output": {"validation": "json-schema", "validation_schema": DOUBLING}}
    for submitted in (queue.submit(task), queue.submit_dag({"tasks": [task]})):
        with pytest.raises(InputError) as refused:
            await submitted
        assert (refused.value.code, refused.value.where) == ("invalid_input", "output.validation_schema")
        assert "Use fewer" in refused.value.hint
    assert await queue.claim("ada") == []


async def test_question_with_a_schema_that_expands_too_far_is_refused(queue: Queue) -> None:
    await queue.submit(type="x")
    token = (await take(queue)).token
    with pytest.raises(InputError) as refused:
        await queue.waits.wait(token, "which", question="Which one?", schema=DOUBLING)
    assert refused.value.where == "schema"
    assert "Use fewer" in refused.value.hint


async def test_trigger_whose_task_has_a_schema_that_expands_too_far_is_refused(queue: Queue) -> None:
    task = {"type": "x", "output": {"validation": "json-schema", "validation_schema": DOUBLING}}
    with pytest.raises(InputError, match="not a usable JSON Schema"):
        await queue.triggers.save("bad", on={"kind": "hook"}, task=task)


async def test_schema_stored_before_it_was_refused_fails_the_output(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr("shiftwork.validation.policy.check_schema", lambda *_: None)
        asked = {"validation": "json-schema", "validation_schema": DOUBLING}
        task_id = (await queue.submit(type="x", output=asked, max_attempts=1)).id
        token = (await take(queue)).token
    assert (await queue.complete(token, 1)).status == "dead_lettered"
    assert "its schema is not usable" in str((await queue.get(task_id)).last_error)


async def test_pattern_stored_before_it_was_refused_fails_the_output(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr("shiftwork.validation.policy.check_output", lambda _: None)
        asked = {"validation": "regex", "validation_schema": r"\w" * 20_000}
        task_id = (await queue.submit(type="x", output=asked, max_attempts=1)).id
        token = (await take(queue)).token
    assert (await queue.complete(token, "words")).status == "dead_lettered"
    assert "is not a usable pattern" in str((await queue.get(task_id)).last_error)


async def test_slow_validations_are_submitted_in_separate_transactions(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in its own transaction here; together they are answered as one batch, and charged once."""
    monkeypatch.setattr("shiftwork.validation.schema.MAX_STEPS_TOGETHER", 1)
    asked = {"validation": "json-schema", "validation_schema": {"items": {"type": "integer"}}}
    made = await queue.submit_many([{"type": "x", "output": asked} for _ in range(4)])
    tokens = [(await take(queue, agent)).token for agent in ("ada", "bob", "cyd", "dan")]
    usage = Usage(cost_usd=0.5)
    results = [[1], ["a"], [2], [3]]
    reports = [Completion(data, usage=usage, token=token) for token, data in zip(tokens, results, strict=True)]
    outcomes = await queue.batch.complete([*reports, reports[0]])
    assert [outcome.status for outcome in outcomes] == ["completed", "retrying", "completed", "completed", "completed"]
    assert [outcome.error for outcome in outcomes] == [None] * 5
    tasks = [await queue.get(task.id) for task in made]
    assert sum(task.cost_usd for task in tasks) == pytest.approx(4 * 0.5)
