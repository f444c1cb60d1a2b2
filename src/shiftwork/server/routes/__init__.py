"""Every operation of the API, by group."""

from __future__ import annotations

from shiftwork.server import derived
from shiftwork.server.endpoint import Endpoint
from shiftwork.server.routes import (
    access,  # noqa: F401  # registers its handler
    artifact_content,  # noqa: F401  # likewise
    claim_handler,  # noqa: F401  # likewise
    health_checks,
    hook_handlers,  # noqa: F401  # likewise
    live,  # noqa: F401  # likewise
    metrics_pages,
    moved_clock,
    runtime_handlers,  # noqa: F401  # likewise
    task_handlers,  # noqa: F401  # likewise
)

# Put a fixed path before one with a parameter in the same place: the first match answers.
ENDPOINTS: list[Endpoint] = [
    endpoint for group in (health_checks, metrics_pages, moved_clock) for endpoint in group.endpoint.all
]
ENDPOINTS += derived.endpoints()
