"""Which scope opens what."""

import pytest

from shiftwork.core.scopes import MEANING, SCOPES, allows

OPENS = {
    "read": {"read"},
    "submit": {"submit", "read"},
    "work": {"work", "read"},
    "operate": {"operate", "read"},
    "admin": {"read", "submit", "work", "operate", "admin"},
    "server": {"read", "server"},
}


@pytest.mark.parametrize("scope", SCOPES)
def test_a_scope_opens(scope: str) -> None:
    assert {needed for needed in SCOPES if allows({scope}, needed)} == OPENS[scope]


def test_scopes_add_up() -> None:
    assert {needed for needed in SCOPES if allows(["submit", "work"], needed)} == {"read", "submit", "work"}


def test_no_scope_and_one_that_is_not_known_open_nothing() -> None:
    assert not any(allows(scopes, needed) for scopes in ((), ("billing",)) for needed in SCOPES)


def test_every_scope_has_a_meaning() -> None:
    assert tuple(MEANING) == SCOPES
    assert all(MEANING.values())
