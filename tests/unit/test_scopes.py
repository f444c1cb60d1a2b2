"""What each scope allows."""

import pytest

from shiftwork.access.model import MEANING, SCOPES, allows

OPENS = {
    "read": {"read"},
    "submit": {"submit", "read"},
    "work": {"work", "read"},
    "operate": {"operate", "read"},
    "admin": {"read", "submit", "work", "operate", "admin"},
    "server": {"read", "server"},
}


@pytest.mark.parametrize("scope", SCOPES)
def test_scope_allows_exactly_its_operations(scope: str) -> None:
    assert {needed for needed in SCOPES if allows({scope}, needed)} == OPENS[scope]


def test_scopes_can_be_combined() -> None:
    assert {needed for needed in SCOPES if allows(["submit", "work"], needed)} == {"read", "submit", "work"}


def test_missing_or_unknown_scope_allows_nothing() -> None:
    assert not any(allows(scopes, needed) for scopes in ((), ("billing",)) for needed in SCOPES)


def test_every_scope_has_a_meaning() -> None:
    assert tuple(MEANING) == SCOPES
    assert all(MEANING.values())
