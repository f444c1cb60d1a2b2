"""Idempotency keys: their scope, and how duplicates merge."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftwork.engine.dedupe_policy import Mergeable, in_scope, may_merge, merge, task_key, until
from shiftwork.model.errors import IdempotencyKeyRequired
from shiftwork.settings.model import Idempotency

CALLER = Idempotency()
PAYLOAD = Idempotency(source="payload_hash")
PARAMS = Idempotency(source="params_hash", window_sec=3600)
REQUIRED = Idempotency(source="required")
NONE = Idempotency(source="none")

SHA256_OF_A1 = "015abd7f5cc57a2dd94b7590f04ad8084273905ee33ec5cebeae62276a97f862"  # of {"a":1}


def key(source: Idempotency, payload: Any, *, kind: str = "lint", given: str | None = None) -> str | None:
    return task_key(source, given=given, type=kind, payload=payload)


def test_by_default_only_a_given_key_makes_a_task_unique() -> None:
    assert key(CALLER, {"a": 1}, given="pr-123-lint") == "pr-123-lint"
    assert key(CALLER, {"a": 1}) is None
    assert key(CALLER, {"a": 1}, given="") is None


@pytest.mark.requirement("L-090")
def test_payload_key_ignores_the_order_of_names() -> None:
    one = {"action": "build", "params": {"x": 1, "y": [1, 2]}}
    other = {"params": {"y": [1, 2], "x": 1}, "action": "build"}
    assert key(PAYLOAD, one) == key(PAYLOAD, other)
    assert key(PAYLOAD, one) != key(PAYLOAD, {**one, "action": "test"})


def test_payload_key_covers_only_the_payload_and_replaces_a_given_key() -> None:
    assert key(PAYLOAD, {"a": 1}, kind="lint", given="mine") == SHA256_OF_A1
    assert key(PAYLOAD, {"a": 1}, kind="build") == SHA256_OF_A1


def test_params_key_covers_the_type() -> None:
    assert key(PARAMS, {"a": 1}, kind="lint") == key(PARAMS, {"a": 1}, kind="lint")
    assert key(PARAMS, {"a": 1}, kind="lint") != key(PARAMS, {"a": 1}, kind="build")
    assert key(PARAMS, {"a": 1}, given="mine") == "mine"


@pytest.mark.parametrize("given_key", [None, ""])
def test_missing_required_key_is_refused(given_key: str | None) -> None:
    with pytest.raises(IdempotencyKeyRequired):
        key(REQUIRED, {"a": 1}, given=given_key)


def test_required_key_is_used_as_given() -> None:
    assert key(REQUIRED, {"a": 1}, given="k1") == "k1"


def test_without_keys_no_task_is_a_duplicate() -> None:
    assert key(NONE, {"a": 1}, given="mine") is None


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("pending", True),
        ("waiting_approval", True),
        ("ready", True),
        ("claimed", True),
        ("running", True),
        ("validating", True),
        ("retrying", True),
        ("completed", True),
        ("failed", False),
        ("dead_lettered", False),
        ("cancelled", False),
    ],
)
def test_key_is_free_again_after_failure_and_cancel(status: str, *, expected: bool) -> None:
    assert in_scope(CALLER, status) is expected


def test_key_lasts_for_its_window() -> None:
    assert until(CALLER, 1000.0) is None
    assert until(PARAMS, 1000.0) == 4600.0


def test_merge_keeps_lower_priority_number_and_all_tags_and_dependencies() -> None:
    existing = Mergeable(50, ("a", "b"), ("t1",))
    assert merge(existing, Mergeable(20, ("b", "c"), ("t2", "t1"))) == (20, ("a", "b", "c"), ("t1", "t2"))
    assert merge(existing, Mergeable(70)) == existing


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("pending", True),
        ("waiting_approval", True),
        ("ready", True),
        ("retrying", True),
        ("claimed", False),
        ("running", False),
        ("validating", False),
        ("completed", False),
    ],
)
def test_duplicate_changes_a_task_only_while_it_is_unclaimed(status: str, *, expected: bool) -> None:
    assert may_merge(status) is expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(payload=st.dictionaries(st.text(), json_values, max_size=6))
def test_payload_key_does_not_depend_on_order(payload: dict[str, Any]) -> None:
    backwards = dict(reversed(payload.items()))
    assert key(PAYLOAD, payload) == key(PAYLOAD, backwards)
    assert key(PARAMS, payload) == key(PARAMS, backwards)


mergeables = st.builds(
    Mergeable,
    priority=st.floats(0, 100),
    tags=st.lists(st.sampled_from("abcd"), unique=True).map(tuple),
    dependencies=st.lists(st.sampled_from("wxyz"), unique=True).map(tuple),
)


@given(one=mergeables, other=mergeables)
def test_merging_again_changes_nothing(one: Mergeable, other: Mergeable) -> None:
    merged = merge(one, other)
    assert merge(merged, other) == merged
    assert merge(merged, one) == merged
