"""The views of the documents: names, states, events and values, in both directions."""

import json
from typing import Any

import pytest

from shiftwork import views
from shiftwork.compat.views import VIEWS, aegis
from shiftwork.model import events, ids, reasons
from shiftwork.model.errors import InputError
from shiftwork.model.states import STORED, State
from shiftwork.model.task import NewTask, Task
from shiftwork.views.view import View, find
from tests.unit.view_records import AGENT, DEAD_LETTER, ID_1, ID_2, ISO, RESULT, TASK, UUID_1, UUID_2, T, task

LOKI, FACTORY, REDIS, AEGIS, COSCIENTIST = VIEWS.values()
every_view = pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
every_state = pytest.mark.parametrize("state", list(State))

# Our state and its name in each view, in their order.
STATES = {
    "created": ("pending", "CREATED", "queued", "queued", "Pending"),
    "pending": ("pending", "PENDING", "queued", "queued", "Pending"),
    "waiting_approval": ("pending", "PENDING", "waiting_approval", "queued", "Pending"),
    "ready": ("pending", "READY", "queued", "queued", "Pending"),
    "claimed": ("in-progress", "CLAIMED", "running", "dispatched", "Assigned"),
    "running": ("in-progress", "RUNNING", "running", "running", "Executing"),
    "validating": ("in-progress", "VALIDATING", "running", "running", "Executing"),
    "completed": ("completed", "COMPLETED", "succeeded", "completed", "Completed"),
    "failed": ("dead-letter", "FAILED", "failed", "failed", "Failed"),
    "retrying": ("pending", "RETRYING", "queued", "queued", "Retrying"),
    "dead_lettered": ("dead-letter", "DEAD_LETTERED", "failed", "failed", "Failed"),
    "cancelled": ("cancelled", "CANCELLED", "failed", "cancelled", "Cancelled"),
}


@every_state
def test_every_state_has_a_name_in_every_view(state: State) -> None:
    assert tuple(view.status_out(state) for view in VIEWS.values()) == STATES[state]


@every_view
@every_state
def test_task_shows_its_state_under_the_name_of_the_view(view: View, state: State) -> None:
    assert view.task_out(task(status=state.value))["status"] == view.status_out(state)


@every_view
def test_statuses_of_a_view_cover_all_stored_states_once(view: View) -> None:
    words = {view.status_out(state) for state in STORED}
    found = [state for word in words for state in view.statuses_in(word)]
    assert sorted(found) == sorted(STORED)


@pytest.mark.parametrize(
    ("view", "status", "states"),
    [
        (LOKI, "pending", {"pending", "waiting_approval", "ready", "retrying"}),
        (LOKI, "in-progress", {"claimed", "running", "validating"}),
        (LOKI, "dead-letter", {"dead_lettered", "failed"}),
        (FACTORY, "RUNNING", {"running"}),
        (FACTORY, "running", {"running"}),
        (FACTORY, "Created", set()),
        (REDIS, "unacked", {"claimed", "running", "validating"}),
        (AEGIS, "queued", {"pending", "waiting_approval", "ready", "retrying"}),
        (COSCIENTIST, "Failed", {"failed", "dead_lettered"}),
    ],
)
def test_status_filter_names_internal_states(view: View, status: str, states: set[str]) -> None:
    assert view.statuses_in(status) == states


@every_view
def test_unknown_status_is_refused_with_the_known_ones(view: View) -> None:
    with pytest.raises(InputError) as caught:
        view.statuses_in("asleep")
    assert view.status_out(State.RUNNING) in caught.value.hint


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        (LOKI, ["in-progress", "pending"]),
        (FACTORY, ["RUNNING", "FAILED", "RETRYING"]),
        (REDIS, ["running", "queued"]),
        (AEGIS, ["running", "failed", "queued"]),
        (COSCIENTIST, ["Executing", "Failed", "Retrying"]),
    ],
)
def test_retried_failure_is_shown_as_each_document_says(view: View, shown: list[str]) -> None:
    assert view.history_out([State.RUNNING, State.FAILED, State.RETRYING]) == shown


OUTPUTS = {"loki": "result.output", "factory": "output.data", "redis": "result", "aegis": "output"}
"""Where a task shows what it came to, in the documents that show it there."""


@every_view
@pytest.mark.parametrize(
    ("result", "shown"),
    [({"data": None, "text": "what it printed"}, "what it printed"), ({"data": "made", "text": "words"}, "made")],
)
def test_text_result_is_the_output_in_every_view(view: View, result: dict[str, Any], shown: str) -> None:
    answer = view.result_out({**RESULT, **result})
    (name,) = [row.theirs for row in view.result if row.ours == "data" and row.is_out]
    assert answer[name] == shown
    if (place := OUTPUTS.get(view.name)) is not None:
        assert find(view.task_out(task(status="completed", result={**RESULT, **result})), place) == shown


def test_documented_loki_task_can_be_submitted() -> None:
    written = {
        "id": "5f1c",
        "idempotencyKey": "h",
        "type": "eng-backend",
        "priority": 8,
        "dependencies": ["task-id-1"],
        "payload": {"action": "implement", "constraints": ["No third-party deps"]},
        "createdAt": "ISO",
        "claimedBy": None,
        "claimedAt": None,
        "timeout": 3600,
        "retries": 0,
        "maxRetries": 3,
        "backoffSeconds": 60,
        "lastError": None,
        "completedAt": None,
        "result": None,
    }
    assert LOKI.task_in(written) == {
        "id": "5f1c",
        "idempotency_key": "h",
        "type": "eng-backend",
        "priority": 20,
        "dependencies": ["task-id-1"],
        "payload": {"action": "implement", "constraints": ["No third-party deps"]},
        "timeout_sec": 3600,
        "max_attempts": 3,
        "retry": {"initial_delay_sec": 60},
    }


def test_loki_task_is_shown_in_camel_case() -> None:
    shown = LOKI.task_out(TASK)
    assert shown["claimedBy"] == "agent_coder_01"
    assert shown["claimedAt"] == shown["createdAt"] == ISO
    assert shown["backoffSeconds"] == 60
    assert shown["lastError"] == "boom"
    assert shown["payload"] == TASK["payload"]
    assert shown["result"] == {"status": None, "output": None, "decisionReport": None}


def test_loki_completion_time_is_the_end_of_the_last_attempt() -> None:
    assert LOKI.task_out(task(failed_at=None))["completedAt"] is None
    assert LOKI.task_out(task(failed_at=T))["completedAt"] == ISO
    assert LOKI.task_out(task(failed_at=T - 60, completed_at=T))["completedAt"] == ISO


def test_factory_task_survives_a_round_trip() -> None:
    written = {
        "type": "code",
        "title": "Fix",
        "spec": {"prompt": "do", "constraints": {"required_capabilities": ["git"]}},
        "priority": 50,
        "depends_on": [ID_2],
        "max_attempts": 3,
        "retry": {"strategy": "fixed", "retry_on": ["timeout"]},
        "output": {"type": "json", "validation": "json-schema", "validation_schema": {"type": "object"}},
        "tags": ["sprint:12"],
        "created_by": "human:adam",
    }
    ours = FACTORY.task_in(written)
    assert ours["dependencies"] == [ID_2]
    shown = FACTORY.task_out(ours)
    assert {name: shown[name] for name in written if name not in {"retry", "output"}} == {
        name: value for name, value in written.items() if name not in {"retry", "output"}
    }
    assert shown["retry"]["retry_on"] == ["timeout"]
    assert shown["output"]["validation_schema"] == {"type": "object"}


def test_factory_task_has_the_documented_nested_objects() -> None:
    shown = FACTORY.task_out(task(result={"data": {"x": 1}, "artifacts": ["artifact:1"]}, available_at=T))
    assert shown["claim"] == {
        "agent_id": "agent_coder_01",
        "claimed_at": ISO,
        "heartbeat_at": None,
        "heartbeat_interval_sec": 30,
    }
    assert shown["output"]["data"] is None, "populated on completion"
    done = FACTORY.task_out(task(status="completed", result={"data": {"x": 1}}))
    assert done["output"]["data"] == {"x": 1}
    assert shown["output"]["artifacts"] == ["artifact:1"]
    assert shown["tokens_used"] == {"input": 10, "output": 20}
    assert shown["retry_at"] == ISO
    assert shown["status"] == "RUNNING"


def test_aegis_submit_names_its_target_agent() -> None:
    ours = AEGIS.task_in({"workspace_id": "w", "agent_id": "a-7", "trigger_type": "mention"})
    assert ours == {"workspace_id": "w", "target_agent_id": "a-7", "trigger_type": "mention", "type": "agent"}


@pytest.mark.parametrize("missing", ["workspace_id", "agent_id"])
def test_aegis_refuses_a_task_without_workspace_or_agent(missing: str) -> None:
    written = {"workspace_id": "w", "agent_id": "a"}
    del written[missing]
    with pytest.raises(InputError) as caught:
        AEGIS.task_in(written)
    assert caught.value.where == missing


def test_long_trigger_summary_is_shortened() -> None:
    ours = AEGIS.task_in({"workspace_id": "w", "agent_id": "a", "trigger_summary": "x" * 500})
    assert len(ours["trigger_summary"]) == 200


def test_aegis_task_has_the_columns_of_its_table() -> None:
    shown = AEGIS.task_out(task(result={"data": {"x": 1}}))
    assert shown["parent_task_id"] == UUID_2
    assert shown["agent_id"] == "a-7"
    assert shown["runtime_id"] == "r1"
    assert shown["claimed_at"] == ISO
    assert json.loads(shown["output"]) == {"x": 1}
    assert AEGIS.task_out(task(result={"data": "done"}))["output"] == "done"


def test_aegis_maps_reasons_to_its_four_failure_reasons() -> None:
    shown = {reason: AEGIS.reason_out(reason) for reason in reasons.MEANING}
    assert set(shown.values()) == {"runtime_offline", "timeout", "agent_error", "cancelled"}
    assert shown["claim_expired"] == shown["heartbeat_timeout"] == "timeout"
    assert shown["crash"] == AEGIS.reason_out("own word") == "agent_error"
    assert AEGIS.task_out(task(failure_reason="claim_expired"))["failure_reason"] == "timeout"
    assert AEGIS.task_out(task(failure_reason=None))["failure_reason"] is None


def test_cancelled_task_has_that_reason_in_aegis_and_redis() -> None:
    cancelled = task(status="cancelled", failure_reason=None)
    assert AEGIS.task_out(cancelled)["failure_reason"] == "cancelled"
    assert REDIS.task_out(cancelled)["error"] == "cancelled"


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("worker timeout", "heartbeat_timeout"),
        ("Temporary resource unavailable", "resource_unavailable"),
        ("network error", "network"),
        ("transient API failure", "transient_api"),
        ("invalid task parameters", "invalid_input"),
        ("safety violation", "safety_violation"),
        ("permanent resource error", "resource_permanent"),
        ("maximum retries exceeded", "exhausted"),
        ("crash", "crash"),
    ],
)
def test_coscientist_failure_classes_map_to_internal_reasons(written: str, reason: str) -> None:
    assert COSCIENTIST.reason_in(written) == reason
    assert COSCIENTIST.reason_out(reason).casefold() == written.casefold()


def test_coscientist_task_has_its_own_retry_policy() -> None:
    ours = COSCIENTIST.task_in(
        {
            "id": "h-1",
            "agent_type": "Generation",
            "priority": "High",
            "payload": {"goal": {"deep": [1]}},
            "dependencies": ["h-0"],
            "retry_policy": {"max_attempts": 1, "backoff_strategy": "Fixed"},
            "timeout": 100,
        }
    )
    assert ours == {
        "id": "h-1",
        "type": "Generation",
        "priority": 20,
        "payload": {"goal": {"deep": [1]}},
        "dependencies": ["h-0"],
        "max_attempts": 1,
        "retry": {"strategy": "fixed"},
        "timeout_sec": 100,
    }


def test_assignment_contains_the_whole_task() -> None:
    shown = COSCIENTIST.assignment_out(TASK)
    assert shown["assignment_id"] == f"{ID_1}.1"
    assert shown["acknowledgment_required_by"] == "2026-02-08T09:00:05.000000Z"
    assert shown["deadline"] == "2026-02-08T09:02:00.000000Z"
    assert shown["task"] == COSCIENTIST.task_out(TASK)
    assert FACTORY.assignment_out(TASK) == FACTORY.task_out(TASK)


def test_result_is_shown_as_coscientist_task_result() -> None:
    assert COSCIENTIST.result_out(RESULT) == {
        "task_id": ID_1,
        "status": "Completed",
        "result": {"score": 1},
        "error": None,
        "execution_time": 2.5,
        "worker_id": "w-1",
        "completed_at": ISO,
    }
    assert COSCIENTIST.result_out({**RESULT, "status": "failed"})["status"] == "Failed"


def test_result_is_shown_in_names_of_other_documents() -> None:
    assert REDIS.result_out(RESULT)["status"] == "succeeded"
    assert REDIS.result_out(RESULT)["result"] == {"score": 1}
    assert REDIS.result_out(RESULT)["worker"] == "w-1"
    assert LOKI.result_out(RESULT)["decisionReport"] == {"why": "x"}
    assert LOKI.result_out(RESULT)["status"] == "success"
    assert AEGIS.result_out(RESULT)["task_id"] == UUID_1
    assert FACTORY.result_out(RESULT)["data"] == {"score": 1}


@pytest.mark.parametrize("status", ["success", "failed"])
@pytest.mark.parametrize("view", [LOKI, REDIS, COSCIENTIST])
def test_result_survives_a_round_trip(view: View, status: str) -> None:
    shown = view.result_out({**RESULT, "status": status})
    back = view.result_in(shown)
    assert (back["status"], back["data"]) == (status, {"score": 1})


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_usage_is_accepted_with_a_result_in_every_view(view: View) -> None:
    background = {"usage": {"cost_usd": 1.5}, "text": "in words", "artifacts": ["a"], "decision_report": {"why": "x"}}
    assert view.result_in(background) == background


def test_dead_letter_has_the_fields_of_each_document() -> None:
    assert REDIS.dead_letter_out(DEAD_LETTER) == {
        "task_id": ID_1,
        "tool_name": "grep",
        "payload": {"a": 1},
        "error": "Timeout after 300s",
        "retry_count": 4,
        "failed_at": ISO,
        "reviewed": True,
        "resolution": "replay",
    }
    factory = FACTORY.dead_letter_out(DEAD_LETTER)
    assert factory["failure_history"] == DEAD_LETTER["failure_history"]
    assert (factory["total_cost_usd"], factory["dead_lettered_at"], factory["poison_pill"]) == (
        0.51,
        ISO,
        True,
    )
    assert LOKI.dead_letter_out(DEAD_LETTER)["lastError"] == "Timeout after 300s"
    assert LOKI.dead_letter_out(DEAD_LETTER)["id"] == UUID_1
    assert COSCIENTIST.dead_letter_out(DEAD_LETTER)["failure_count"] == 4
    assert AEGIS.dead_letter_out(DEAD_LETTER)["failure_reason"] == "timeout"


def test_review_decision_is_accepted_in_document_names() -> None:
    assert REDIS.resolution_in("replay") == "modify_and_retry"
    assert REDIS.resolution_in("abandon") == "abandon"
    assert LOKI.resolution_in("wait+retry") == "retry_later"
    assert FACTORY.resolution_in("modify_and_retry") == "modify_and_retry"


def test_update_is_accepted_in_document_names() -> None:
    assert LOKI.changes_in({"priority": 10}) == {"priority": 0}
    assert FACTORY.changes_in({"depends_on": [ID_2], "deadline": ISO}) == {"dependencies": [ID_2], "deadline": T}
    assert AEGIS.changes_in({}) == {}


def test_dag_is_shown_with_document_ids_and_times() -> None:
    dag = {"id": ids.show_dag(UUID_1), "tasks": [ID_1, ID_2], "roots": [ID_1], "leaves": [ID_2], "created_at": T}
    assert FACTORY.dag_out(dag) == {**dag, "created_at": ISO}
    assert LOKI.dag_out(dag) == {
        "id": UUID_1, "tasks": [UUID_1, UUID_2], "roots": [UUID_1], "leaves": [UUID_2], "created_at": ISO,
    }  # fmt: skip
    assert LOKI.dag_out({"id": dag["id"], "title": "listed"}) == {"id": UUID_1, "title": "listed"}


def test_agent_is_shown_as_the_factory_registers_it() -> None:
    shown = FACTORY.agent_out(AGENT)
    assert shown == {**{k: v for k, v in AGENT.items() if k != "isolation_group"}, "last_heartbeat": ISO}
    assert FACTORY.agent_in(shown).keys() == shown.keys() - {"current_tasks", "status", "last_heartbeat"}


@pytest.mark.parametrize(
    ("status", "held", "shown"),
    [
        ("active", 0, "idle"),
        ("active", 1, "active"),
        ("draining", 1, "active"),
        ("failed", 0, "failed"),
        ("offline", 0, "failed"),
    ],
)
def test_coscientist_worker_is_idle_active_or_failed(status: str, held: int, shown: str) -> None:
    worker = COSCIENTIST.agent_out({**AGENT, "status": status, "current_tasks": held})
    assert (worker["worker_id"], worker["status"], worker["heartbeat"]) == ("agent_coder_01", shown, ISO)


@pytest.mark.parametrize(
    ("ours", "in_redis", "in_aegis"),
    [
        ("task.created", "task.created", "task:queued"),
        ("task.ready", None, "task:queued"),
        ("task.claimed", "task.claimed", "task:dispatch"),
        ("task.started", None, "task:running"),
        ("task.progress", None, "task:progress"),
        ("task.message", None, "task:message"),
        ("task.heartbeat", "task.heartbeat", None),
        ("task.completed", "task.succeeded", "task:completed"),
        ("task.attempt_failed", "task.failed", "task:failed"),
        ("task.failed", None, None),
        ("task.reclaimed", "task.reclaimed", None),
        ("task.dead_lettered", "task.dlq", None),
        ("task.cancelled", "task.failed", "task:cancelled"),
        ("approval.requested", "approval.requested", None),
        ("approval.approved", "approval.approved", None),
        ("approval.rejected", "approval.rejected", None),
    ],
)
def test_events_have_the_document_names(ours: str, in_redis: str | None, in_aegis: str | None) -> None:
    assert (REDIS.event_out(ours), AEGIS.event_out(ours)) == (in_redis, in_aegis)
    assert FACTORY.event_out(ours) == COSCIENTIST.event_out(ours) == LOKI.event_out(ours) == ours


@every_view
def test_views_rename_only_events_that_exist(view: View) -> None:
    assert set(view.events) <= events.every_name() | {"approval.approved", "approval.rejected"}


def test_events_with_the_same_document_name_are_shown_once() -> None:
    submitted = events.names("submitted", "created>pending>ready")
    assert AEGIS.events_out(submitted) == ["task:queued"]
    assert REDIS.events_out(submitted) == ["task.created"]
    assert FACTORY.events_out(submitted) == ["task.created", "task.ready"]
    assert AEGIS.events_out(events.names("failed", "running>failed>ready")) == ["task:failed", "task:queued"]
    assert REDIS.events_out(events.names("failed", "running>failed>dead_lettered")) == [
        "task.failed",
        "task.dlq",
    ]


@every_view
def test_every_accepted_view_field_can_be_submitted(view: View) -> None:
    groups = {row.ours.partition(".")[0] for row in view.task if row.is_in}
    assert groups <= {*NewTask.__struct_fields__, "workspace_id"}
    assert set(view.defaults) <= set(NewTask.__struct_fields__)


@every_view
def test_every_shown_view_field_exists_on_the_task(view: View) -> None:
    groups = {row.ours.partition(".")[0] for row in view.task if row.is_out and row.ours}
    assert groups <= {*Task.__struct_fields__, "incomplete"}


@every_view
def test_unknown_fields_are_refused_by_name(view: View) -> None:
    needed: dict[str, dict[str, Any]] = {
        "aegis": {"workspace_id": "w", "agent_id": "a"},
        "coscientist": {"agent_type": "Ranking"},
    }
    written = needed.get(view.name, {})
    with pytest.raises(InputError) as caught:
        view.task_in({**written, "prioritty": 1, "colour": "red"})
    assert caught.value.facts["unknown"] == ["prioritty", "colour"]


def test_unknown_nested_fields_are_refused_by_name() -> None:
    with pytest.raises(InputError) as caught:
        FACTORY.task_in({"retry": {"strategy": "fixed", "tries": 3}})
    assert caught.value.where == "retry.tries"
    with pytest.raises(InputError) as caught:
        FACTORY.task_in({"retry": "often"})
    assert caught.value.where == "retry"


@every_view
def test_empty_task_still_has_every_field(view: View) -> None:
    full, empty = view.task_out(TASK), view.task_out({})
    assert full.keys() == empty.keys()


@every_view
def test_shown_fields_are_accepted_back(view: View) -> None:
    ours = view.task_in(view.task_out({**TASK, "type": "Ranking"}))
    for path in ("payload", "spec", "max_attempts", "target_agent_id", "deadline", "priority"):
        if (value := find(ours, path)) is not None:
            assert value == find(TASK, path)


def test_unknown_view_is_refused_with_the_five_names() -> None:
    assert views.get("aegis") is aegis.VIEW
    with pytest.raises(InputError) as caught:
        views.get("cosci")
    assert "loki, factory, redis, aegis, coscientist" in caught.value.hint


@pytest.mark.requirement("C-165", "C-166", "C-167")
@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("Worker timeout", "heartbeat_timeout"),
        ("Temporary resource unavailable", "resource_unavailable"),
        ("Network errors", "network"),
        ("Transient API failures", "transient_api"),
        ("Invalid task parameters", "invalid_input"),
        ("Safety violation", "safety_violation"),
        ("Permanent resource errors", "resource_permanent"),
        ("permanent_resource-ERROR", "resource_permanent"),
        ("Maximum retries exceeded", "exhausted"),
        ("resource_permanent", "resource_permanent"),
    ],
)
def test_reason_is_recognised_in_every_spelling(written: str, reason: str) -> None:
    assert COSCIENTIST.reason_in(written) == reason


@every_view
def test_every_view_accepts_internal_reasons_and_statuses_in_any_spelling(view: View) -> None:
    assert view.reason_in("Auth Failure") == "auth_failure"
    for state in STORED:
        word = view.status_out(state)
        assert state in view.statuses_in(word.upper().replace("-", " ").replace("_", "-"))


@pytest.mark.parametrize("wrong", ["Nonsense", "", 5])
def test_coscientist_refuses_other_agent_types(wrong: object) -> None:
    with pytest.raises(InputError) as caught:
        COSCIENTIST.task_in({"agent_type": wrong})
    assert caught.value.where == "agent_type"


def test_worker_capabilities_are_the_agent_types_it_serves() -> None:
    ours = COSCIENTIST.agent_in({"worker_id": "w1", "capabilities": ["generation", "gpu"]})
    assert (ours["types"], ours["capabilities"]) == (["Generation"], ["generation", "gpu"])


@pytest.mark.parametrize(
    ("wish", "where"),
    [({"parent_id": "task_1"}, "parent_id"), ({"status": "COMPLETED"}, "status"), ({"attempts": 2}, "attempts")],
)
def test_setting_a_read_only_field_is_refused(wish: dict[str, Any], where: str) -> None:
    with pytest.raises(InputError) as caught:
        FACTORY.task_in({"type": "code", **wish})
    assert caught.value.where == where
    FACTORY.task_in(
        {"type": "code", "parent_id": None, "status": "pending", "attempts": 0, "claim": {"agent_id": None}}
    )


def test_update_can_repeat_read_only_fields_but_not_change_them() -> None:
    shown = FACTORY.task_out(TASK)
    assert FACTORY.changes_in({**shown, "priority": 7}, TASK)["priority"] == 7
    with pytest.raises(InputError) as caught:
        FACTORY.changes_in({"status": "CANCELLED"}, TASK)
    assert (caught.value.where, "cancel" in caught.value.hint) == ("status", True)
