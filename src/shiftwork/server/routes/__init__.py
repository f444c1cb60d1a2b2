"""Every operation of the API, by group."""

from __future__ import annotations

from shiftwork.server import (
    claim_handler,  # noqa: F401  # registers its handler
    derived,
    hook_handlers,  # noqa: F401  # likewise
    live,  # noqa: F401  # likewise
    private_sinks,  # noqa: F401  # likewise
    runtime_handlers,  # noqa: F401  # likewise
    task_handlers,  # noqa: F401  # likewise
)
from shiftwork.server.endpoint import Endpoint
from shiftwork.server.routes import (
    access,  # noqa: F401  # likewise
    artifact_content,  # noqa: F401  # likewise
    health_checks,
    metrics_pages,
    moved_clock,
)

# Put a fixed path before one with a parameter in the same place: the first match answers.
ENDPOINTS: list[Endpoint] = [
    endpoint for group in (health_checks, metrics_pages, moved_clock) for endpoint in group.endpoint.all
]
ENDPOINTS += derived.endpoints()
