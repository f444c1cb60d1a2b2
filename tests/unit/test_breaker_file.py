"""The Loki document's configuration of circuit breakers, read as it stands there."""

import pytest

from shiftwork.core.breaker_file import BreakerConfig, Rule, parse
from shiftwork.core.errors import InputError

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


def test_the_documents_block_is_read_as_it_is() -> None:
    assert parse(BLOCK) == BreakerConfig(
        Rule(5, 300, 60), {"ops-security": Rule(failure_threshold=3), "biz-marketing": Rule(failure_threshold=10)}
    )


def test_json_of_the_same_shape_is_read_too() -> None:
    assert parse('{"overrides": {"code": {"halfOpenAfter": 7.5}}}').overrides == {"code": Rule(half_open_after=7.5)}


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "---\n", "defaults:\n", "defaults:\noverrides:\n", "overrides:\n  'a: b':\n"]
)
def test_what_says_nothing_changes_nothing(text: str) -> None:
    assert parse(text).defaults == Rule()


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
def test_a_line_that_cannot_be_read_is_named(text: str, line: str) -> None:
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
def test_what_is_not_known_is_refused_by_its_place(text: str, where: str) -> None:
    with pytest.raises(InputError) as refused:
        parse(text)
    assert refused.value.where == where
