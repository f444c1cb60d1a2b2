"""The Loki document's configuration of circuit breakers, read as written there."""

import pytest

from shiftwork.compat.loki_breaker_file import parse
from shiftwork.limits.model import BreakerConfig, BreakerTerms
from shiftwork.model.errors import InputError

BLOCK = """\
# .loki/config/circuit-breakers.yaml
defaults:
  failureThreshold: 5
  cooldownSeconds: 300
  halfOpenAfter: 60

overrides:
  ops-security:
    failureThreshold: 3  # More sensitive for security
  biz-marketing:
    failureThreshold: 10  # More tolerant for non-critical
"""


def test_document_configuration_is_read_as_written() -> None:
    assert parse(BLOCK) == BreakerConfig(
        BreakerTerms(5, 300, 60),
        {"ops-security": BreakerTerms(failure_threshold=3), "biz-marketing": BreakerTerms(failure_threshold=10)},
    )


def test_json_of_the_same_shape_is_read() -> None:
    assert parse('{"overrides": {"code": {"halfOpenAfter": 7.5}}}').overrides == {
        "code": BreakerTerms(half_open_after=7.5)
    }


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "---\n", "defaults:\n", "defaults:\noverrides:\n", "overrides:\n  'a: b':\n"]
)
def test_empty_configuration_changes_nothing(text: str) -> None:
    assert parse(text).defaults == BreakerTerms()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("defaults:\n\tfailureThreshold: 5\n", "line 2"),
        ("defaults:\n  failureThreshold 5\n", "line 2"),
        ("defaults:\n  failureThreshold:5\n", "line 2"),
        ("defaults:\n  failureThreshold: five\n", "line 2"),
        ("defaults:\n  failureThreshold: 5\n  failureThreshold: 6\n", "line 3"),
        ("defaults:\n  failureThreshold: 5\n   halfOpenAfter: 6\n", "line 3"),
        ("  defaults:\n", "line 1"),
        ("- defaults\n", "line 1"),
    ],
)
def test_unreadable_line_is_named_in_the_error(text: str, line: str) -> None:
    with pytest.raises(InputError) as refused:
        parse(text)
    assert refused.value.what.startswith(line)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("defaults:\n  threshold: 5\n", "config.defaults"),
        ("defaults:\n  failureThreshold: -1\n", "config.defaults.failureThreshold"),
        ("types:\n  code:\n", "config"),
        ("defaults: 5\n", "config.defaults"),
        ("overrides:\n  code:\n    failureThreshold: 1.5\n", "config.overrides[...].failureThreshold"),
        ("{", "config"),
    ],
)
def test_unknown_key_is_refused_with_its_path(text: str, where: str) -> None:
    with pytest.raises(InputError) as refused:
        parse(text)
    assert refused.value.where == where
