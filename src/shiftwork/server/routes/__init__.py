"""Every operation of the API, by group."""

from __future__ import annotations

from shiftwork.server import (
    claim_handler,  # noqa: F401  # registers its handler, as those below do
    derived,
    hook_handlers,  # noqa: F401
    live,  # noqa: F401
    private_sinks,  # noqa: F401
    runtime_handlers,  # noqa: F401
    task_handlers,  # noqa: F401
)
from shiftwork.server.endpoint import Endpoint
from shiftwork.server.routes import (
    access,  # noqa: F401
    artifact_content,  # noqa: F401
    health_checks,
    metrics_pages,
    moved_clock,
)

# A fixed path is before one with a parameter in its place: the first that fits answers.
ENDPOINTS: list[Endpoint] = [
    endpoint for group in (health_checks, metrics_pages, moved_clock) for endpoint in group.endpoint.all
]
ENDPOINTS += derived.endpoints()
