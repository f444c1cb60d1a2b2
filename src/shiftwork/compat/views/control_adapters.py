"""Purges in the names of a document."""

from __future__ import annotations

from typing import Any

import msgspec

from shiftwork.control.api import Control
from shiftwork.control.model import Purge
from shiftwork.model import check
from shiftwork.views.view_adapters import reads


@reads(Control.purge)
async def purge(request: Any, body: Any) -> dict[str, Any]:
    return msgspec.structs.asdict(check.read(request.view.purge_in(body), Purge))
