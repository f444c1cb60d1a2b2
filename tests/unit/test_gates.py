"""Each kind of closed gate has its own explanation."""

import pytest

from shiftwork.limits import gates


@pytest.mark.parametrize("kind", gates.NAMES)
def test_each_kind_of_gate_has_its_own_explanation(kind: str) -> None:
    row = {"kind": kind, "scope": "code", "until": 5.0, "reason": "why", "closed_by": "ada", "agent_id": ""}
    found = gates._reason(row)
    assert (found.kind, found.until) == (gates.NAMES[kind], 5.0)
    others = {gates._reason({**row, "kind": other}).what for other in gates.NAMES if other != kind}
    assert found.what not in others
