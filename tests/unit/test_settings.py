"""Layers of settings: how they merge, what is refused, and where a value comes from."""

from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shiftwork.model.errors import InputError, UnknownSetting
from shiftwork.settings import model as declared
from shiftwork.settings.meanings import MEANING
from shiftwork.settings.model import Breaker, Settings, Strategy
from shiftwork.settings.resolve import (
    KEYS,
    Layer,
    Profile,
    Resolver,
    check_value,
    drop,
    flat,
    in_force,
    load_profile,
    merge,
    resolve,
)
from tools import docs, settings_page


def layer(source: str = "workspace", **values: Any) -> Layer:
    return Layer(source, values)


def refused(*layers: Layer) -> InputError:
    with pytest.raises(InputError) as caught:
        resolve(layers)
    return caught.value


def test_no_layers_give_the_defaults() -> None:
    assert resolve([]) == Settings()


def test_stronger_layer_overrides_only_its_own_keys() -> None:
    weak = layer("profile x", max_attempts=5, retry={"strategy": "fixed", "initial_delay_sec": 3})
    strong = layer(max_attempts=7, retry={"initial_delay_sec": 4})
    found = resolve([weak, strong])
    assert (found.max_attempts, found.retry.strategy, found.retry.initial_delay_sec) == (7, "fixed", 4)
    assert found.retry.backoff_multiplier == 2.0


def test_lists_of_stronger_layers_replace_weaker_ones() -> None:
    found = resolve([layer(retry={"retry_on": ["timeout"]}), layer(retry={"retry_on": ["crash"]})])
    assert found.retry.retry_on == ("crash",)


def test_null_disables_an_optional_group() -> None:
    assert resolve([layer(circuit_breaker=None)]).circuit_breaker is None


def test_naming_a_key_of_a_disabled_group_enables_it() -> None:
    found = resolve([layer(circuit_breaker=None), layer(circuit_breaker={"failure_threshold": 2})])
    assert found.circuit_breaker == Breaker(failure_threshold=2)


def test_group_without_defaults_needs_all_keys_to_be_enabled() -> None:
    error = refused(layer(age_boost={"threshold_sec": 300}))
    assert error.where == "age_boost"
    assert "pct_per_min" in error.what


def test_null_for_a_required_group_is_refused() -> None:
    assert refused(layer(retry=None)).where == "retry"


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"max_attempts": "3"}, "max_attempts"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"retry": {"max_delay_sec": -1}}, "retry.max_delay_sec"),
        ({"retry": {"strategy": "sometimes"}}, "retry.strategy"),
        ({"retry": {"jitter_range": [1.5, 0.5]}}, "retry.jitter_range"),
        ({"retry": 3}, "retry"),
        ({"timeout_sec": float("inf")}, "timeout_sec"),
        ({"timeout_sec": float("nan")}, "timeout_sec"),
        ({"max_queue_size": 10**30}, "max_queue_size"),
        ({"escalation": [{"after_sec": 1, "to_level": "top"}]}, "escalation[0].to_level"),
        ({"escalation": [{"after_sec": 1e300, "to_level": "high"}]}, "escalation"),
        ({"cancel": {"from": ["asleep"]}}, "cancel.from"),
        ({"idempotency": {"scope_states": ["created"]}}, "idempotency.scope_states"),
        ({"priority_boost_per_minute": 10.5}, "priority_boost_per_minute"),
        ({"retry": {"strategy": "schedule"}}, "retry.schedule_sec"),
        ({"warning_at": 0.99}, "warning_at"),
    ],
)
def test_invalid_value_is_refused_with_its_path(values: dict[str, Any], where: str) -> None:
    assert refused(Layer("type code", values)).where == where


def test_invalid_value_names_its_layer() -> None:
    error = refused(layer(max_attempts=3), layer("type code", max_attempts=0))
    assert error.facts["source"] == "type code"
    assert "type code" in str(error)


def test_invalid_choice_lists_the_valid_ones() -> None:
    what = refused(layer(retry={"strategy": "x"})).what
    assert all(repr(word) in what for word in get_args(Strategy))


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("retry.max_delay", "retry.max_delay_sec"),
        ("max_delay_sec", "retry.max_delay_sec"),
        ("max_atempts", "max_attempts"),
        ("cancel.from_states", "cancel.from"),
        ("max_attempts.x", "max_attempts"),
    ],
)
def test_unknown_key_is_refused_with_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(UnknownSetting) as caught:
        check_value(key, 1)
    assert caught.value.where == key
    assert caught.value.facts["nearest"][0] == nearest


def test_unknown_key_in_a_layer_is_refused() -> None:
    assert isinstance(refused(layer(retry={"max_tries": 3})), UnknownSetting)


def test_single_value_is_checked_and_nested() -> None:
    assert check_value("retry.max_delay_sec", 60) == {"retry": {"max_delay_sec": 60}}
    assert check_value("poison", None) == {"poison": None}
    assert check_value("age_boost.threshold_sec", 5) == {"age_boost": {"threshold_sec": 5}}
    assert check_value("retry", {"jitter": False}) == {"retry": {"jitter": False}}


def test_every_default_passes_its_own_check() -> None:
    for key, value in flat(Settings()):
        check_value(key, value)


def test_change_is_merged_into_a_level_and_dropped_again() -> None:
    level = {"retry": {"jitter": False}, "max_attempts": 2}
    changed = merge(level, {"retry": {"strategy": "fixed"}})
    assert changed == {"retry": {"jitter": False, "strategy": "fixed"}, "max_attempts": 2}
    assert drop(changed, "retry.strategy") == level
    assert drop(level, "retry.jitter") == {"max_attempts": 2}
    assert drop(level, "retry") == {"max_attempts": 2}
    assert drop(level, "poison.min_agents") == level


@pytest.mark.parametrize("before", [{}, {"circuit_breaker": None}, {"circuit_breaker": {"count": "dead_letter"}}])
def test_set_value_is_in_force_regardless_of_earlier_values(before: dict[str, Any]) -> None:
    level = merge(before, check_value("circuit_breaker.failure_threshold", 9))
    breaker = resolve([Layer("workspace", level)]).circuit_breaker
    assert breaker is not None
    assert breaker.failure_threshold == 9


PROFILE = Profile("own", {"max_attempts": 2, "timeout_sec": 10}, {"code": {"max_attempts": 3}})


def test_settings_resolve_from_default_to_task() -> None:
    found = Resolver(PROFILE, {"max_attempts": 4}, {"code": {"max_attempts": 5}, "docs": {"timeout_sec": 20}})
    assert found.settings("research").max_attempts == 4
    assert found.settings("code").max_attempts == 5
    assert found.settings("code", {"max_attempts": 6}).max_attempts == 6
    assert found.settings("docs").timeout_sec == 20
    assert Resolver(PROFILE).settings("code").max_attempts == 3
    assert Resolver(PROFILE).settings().max_attempts == 2


def test_types_without_own_settings_share_one_object() -> None:
    found = Resolver(PROFILE)
    assert found.settings("a") is found.settings("b") is found.settings()


def test_invalid_setting_of_a_type_fails_when_resolver_is_created() -> None:
    with pytest.raises(InputError):
        Resolver(PROFILE, {}, {"code": {"max_attempts": 0}})


@pytest.mark.parametrize("key", sorted(declared.REACH))
def test_workspace_protection_cannot_be_set_by_a_task(key: str) -> None:
    with pytest.raises(InputError, match="cannot be set for one task"):
        Resolver(PROFILE).settings("code", {key: None})


@pytest.mark.parametrize("key", sorted(k for k, reach in declared.REACH.items() if reach == "workspace"))
def test_workspace_setting_cannot_be_set_for_a_type(key: str) -> None:
    with pytest.raises(InputError, match="cannot be set for one type"):
        Resolver(PROFILE, {}, {"code": {key: None}})


def test_in_force_names_the_source_of_each_value() -> None:
    rows = {row.key: row for row in Resolver(PROFILE, {"poison": None}).in_force("code", {"timeout_sec": 5})}
    assert (rows["max_attempts"].value, rows["max_attempts"].source) == (3, "profile own, type code")
    assert (rows["timeout_sec"].value, rows["timeout_sec"].source) == (5, "task")
    assert (rows["poison"].value, rows["poison"].source) == (None, "workspace")
    assert rows["ordering"].source == "default"


def test_group_disabled_and_enabled_again_forgets_older_sources() -> None:
    layers = [layer("profile x", poison={"min_agents": 4}), layer(poison=None), layer("task", poison={})]
    rows = {row.key: (row.value, row.source) for row in in_force(layers)}
    assert rows["poison.min_agents"] == (2, "default")


def test_in_force_follows_the_order_of_declaration() -> None:
    keys = [row.key for row in in_force([])]
    assert keys == [key for key in KEYS if key in keys]
    assert len(keys) > 100


def test_equal_numbers_are_shown_equally() -> None:
    rows = {row.key: row.value for row in in_force([layer(timeout_sec=3600.0)])}
    assert repr(rows["timeout_sec"]) == "3600"


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first text of a fresh folder builds a table: seconds
@given(st.dictionaries(st.sampled_from(KEYS), st.none() | st.integers() | st.text() | st.lists(st.text())))
def test_every_value_either_resolves_or_is_refused(values: dict[str, Any]) -> None:
    level: dict[str, Any] = {}
    try:
        for key, value in values.items():
            level = merge(level, check_value(key, value))
        rows = in_force([Layer("workspace", level)])
    except InputError:
        return
    assert {row.key for row in rows} <= set(KEYS)


def test_every_setting_has_a_meaning_of_one_sentence() -> None:
    assert list(MEANING) == list(KEYS)
    for key, text in MEANING.items():
        assert text.endswith("."), key
        assert ". " not in text, key


def test_every_restricted_setting_exists() -> None:
    assert set(declared.REACH) <= {key.partition(".")[0] for key in KEYS}


def test_unknown_profile_is_refused_with_the_six_names() -> None:
    with pytest.raises(InputError) as caught:
        load_profile("cosci")
    assert "standard, aegis, coscientist, factory, loki, redis" in caught.value.hint


def test_settings_page_names_every_key() -> None:
    lines = settings_page.settings_page().partition("\n## What profiles change")[0].splitlines()
    assert sorted(line.split("`")[1] for line in lines if line.startswith("| `")) == sorted(KEYS)


def test_the_settings_page_begins_with_the_dozen_that_people_need() -> None:
    first = settings_page.settings_page().partition("\n## All other settings")[0]
    assert [line.split("`")[1] for line in first.splitlines() if line.startswith("| `")] == list(settings_page.MAX_USED)
    assert len(settings_page.MAX_USED) == 12
    assert settings_page.without_topic() == []


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("retry.strategy", '`"exponential"`, `"fixed"`, `"immediate"` or `"schedule"`'),
        ("timeout_sec", "number ≥ 0 or `null`"),
        ("max_reclaims", 'integer ≥ 0 or `"max_attempts"` or `null`'),
        ("fair_share.shares", "integer 1 to 64"),
        ("fair_share.by", "text of at most 255 characters"),
        ("retry.jitter_range", "list of 2 numbers"),
        ("retry.schedule_sec", "list of numbers ≥ 0"),
        ("circuit_breaker", "object or `null`"),
        ("auto_start", "`true` or `false`"),
        ("friction.create.payload", "object"),
    ],
)
def test_the_settings_page_shows_the_allowed_values(key: str, values: str) -> None:
    (row,) = [
        line
        for line in settings_page.settings_page().splitlines()
        if line.startswith(f"| `{key}` | ") and line.count("|") > 4
    ]
    assert f"| {values} |" in row


def test_generated_pages_are_written_once(tmp_path: Path) -> None:
    assert docs.write(tmp_path) == list(docs.PAGES)
    assert docs.outdated(tmp_path) == []
    assert docs.write(tmp_path) == []


def test_generated_pages_are_up_to_date() -> None:
    assert docs.outdated() == [], "run `make docs`"
