"""Validation rules: patterns, commands, reports, and answers of a judge."""

from typing import Any

import pytest

from shiftwork.model.errors import InputError
from shiftwork.model.task import NewVerdict, Output
from shiftwork.validation import commands
from shiftwork.validation import policy as verdict
from shiftwork.validation.commands import Trial


@pytest.mark.parametrize(
    ("data", "text", "whole"),
    [("plain", None, "plain"), ({"a": [1]}, None, '{"a":[1]}'), (None, None, "null"), ({"a": 1}, "words", "words")],
)
def test_output_data_and_text_are_joined_as_text(data: Any, text: str | None, whole: str) -> None:
    assert verdict.as_text(data, text) == whole


@pytest.mark.parametrize(
    ("pattern", "longest"), [("https?://", 1_048_576), (r"^\p{L}+$", 110_416), ("^.{1,500}$", 5_047)]
)
def test_larger_pattern_allows_less_text(pattern: str, longest: int) -> None:
    (wrong,) = verdict.against_pattern(pattern, "h" * (longest + 1))
    assert f"at most {longest}" in wrong


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(a|aa)+$", "(a*)*b"])
def test_pathological_pattern_ends_quickly(pattern: str) -> None:
    for length in (30, 100_000):
        assert verdict.against_pattern(pattern, "a" * length + "!") != []


@pytest.mark.parametrize(
    ("schema", "command"),
    [
        ("make test", Trial("make test")),
        ({"command": "make"}, Trial("make")),
        ({"command": ["make", "-k"], "timeout_sec": 5}, Trial(["make", "-k"], 5)),
    ],
)
def test_output_test_command_is_a_line_or_a_list(schema: Any, command: Trial) -> None:
    assert commands.command_of(schema) == command
    assert commands.tests_of({"validation": "test-pass", "validation_schema": schema}) == command


@pytest.mark.parametrize(
    "output", [None, {}, {"validation": "test-pass"}, {"validation": "regex", "validation_schema": "a"}]
)
def test_output_without_test_command_has_no_tests(output: dict[str, Any] | None) -> None:
    assert commands.tests_of(output) is None


@pytest.mark.parametrize("timeout", [True, "5", -1, 0])
def test_output_test_time_limit_must_be_above_zero(timeout: Any) -> None:
    with pytest.raises(InputError):
        verdict.check_output(
            Output(validation="test-pass", validation_schema={"command": "make", "timeout_sec": timeout})
        )


@pytest.mark.parametrize(
    ("report", "is_one"),
    [
        (None, False),
        ({}, False),
        ({"why": ""}, False),
        ({"why": None, "options": []}, False),
        ("words", False),
        ({"why": "it is faster"}, True),
        ({"risk": 0}, True),
    ],
)
def test_empty_report_is_not_a_report(report: Any, *, is_one: bool) -> None:
    assert verdict.is_report(report) is is_one


@pytest.mark.parametrize(
    ("data", "accepted", "reasons"),
    [
        ({"verdict": "accept"}, True, []),
        ({"verdict": "reject", "reasons": "too short"}, False, ["too short"]),
        ({"verdict": "reject", "reasons": ["a", "b"]}, False, ["a", "b"]),
        ({"verdict": "reject", "reasons": ["x" * 5000]}, False, ["x" * 1999 + "…"]),
    ],
)
def test_valid_judge_answer_is_read(data: Any, *, accepted: bool, reasons: list[str]) -> None:
    assert verdict.against_schema(verdict.JUDGE_SCHEMA, data) == []
    assert verdict.of_judge(data) == (accepted, reasons)


@pytest.mark.parametrize("data", [None, "accept", {}, {"verdict": "yes"}, {"verdict": "accept", "reasons": [1]}])
def test_invalid_judge_answer_is_refused(data: Any) -> None:
    assert verdict.against_schema(verdict.JUDGE_SCHEMA, data) != []


def test_failed_tests_are_described_by_note_or_default() -> None:
    assert verdict.reasons_of(NewVerdict(passed=False, note="2 failed")) == ["2 failed"]
    assert verdict.reasons_of(NewVerdict(passed=False)) == ["the tests did not pass"]
    assert verdict.reasons_of(NewVerdict(passed=True)) == []
