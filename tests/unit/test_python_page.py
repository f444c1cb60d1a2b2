"""The Python reference shows signatures as they are written, bounds in words, and namespaces with their methods."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any

from msgspec import Meta

from tools import python_page


class Parcels:
    """Parcels on their way."""

    def __init__(self, executor: Any) -> None:
        self.executor = executor

    async def send(self, name: str, *, kilos: Annotated[float, Meta(gt=0, le=30)] = 1.0) -> bool:
        """Send a parcel."""
        raise NotImplementedError


class Office:
    """Sends parcels."""

    @cached_property
    def parcels(self) -> Parcels:
        return Parcels(self._executor)  # type: ignore[attr-defined]  # set by the caller

    def open(self) -> None:
        """Open it."""


def test_namespace_is_found_by_its_property() -> None:
    assert list(python_page._namespaces(Office)) == [("parcels", Parcels)]


def test_method_is_shown_with_signature_docstring_and_bounds() -> None:
    shown = python_page._member("send", Parcels.send).shown("#### queue.parcels.send")
    assert shown == (
        "#### queue.parcels.send\n\n```py\nasync def send(name: str, *, kilos: float = 1.0) -> bool\n```\n\n"
        "Send a parcel.\n\nBounds: `kilos` > 0, ≤ 30.\n"
    )


def test_long_signature_has_one_parameter_per_line() -> None:
    async def claim(
        agent_id: str,
        count: int = 1,
        *,
        types: list[str] | None = None,
        capabilities: list[str] | None = None,
        models: list[str] | None = None,
    ) -> list[str]:
        raise NotImplementedError

    assert python_page._member("claim", claim).signature.splitlines() == [
        "async def claim(",
        "    agent_id: str,",
        "    count: int = 1,",
        "    *,",
        "    types: list[str] | None = None,",
        "    capabilities: list[str] | None = None,",
        "    models: list[str] | None = None,",
        ") -> list[str]",
    ]


def test_each_method_of_the_queue_is_described_once() -> None:
    headings = [line for line in python_page.python_page().splitlines() if line.startswith("#### queue.submit")]
    assert sorted(headings) == ["#### queue.submit", "#### queue.submit_dag", "#### queue.submit_many"]
