"""Breakers, cooldowns and limits in the names of a document."""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.limits.api import Breakers
from shiftwork.views.view_adapters import writes


@writes(Breakers.list)
async def breakers(request: Any, found: Any) -> Any:
    return request.view.breakers_out([msgspec.to_builtins(each) for each in found])
