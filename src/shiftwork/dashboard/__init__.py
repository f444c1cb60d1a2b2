"""The dashboard: static pages that use only the public API. They are served as they are; there is no build step."""

from __future__ import annotations

from importlib import resources
from typing import NamedTuple

PATHS = (
    *("/", "/tasks", "/tasks/{id}", "/dags", "/dags/{id}", "/approvals", "/dead-letters", "/agents"),
    *("/accounts", "/costs", "/batches", "/batches/{id}", "/protection"),
    *("/triggers", "/alerts", "/workspaces"),
)
"""Addresses that open the dashboard. The script of the page selects the part to show."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""Allow no foreign content and no inline code, so that agents' output cannot become a script."""

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class File(NamedTuple):
    """A file of the dashboard."""

    content: bytes
    media_type: str


def files() -> dict[str, File]:
    """Return every file by its path below `/static/`."""
    found: dict[str, File] = {}
    todo = [("", resources.files(__name__) / "static")]
    while todo:
        before, folder = todo.pop()
        for entry in folder.iterdir():
            if entry.is_dir():
                todo.append((f"{before}{entry.name}/", entry))
            else:
                media_type = _TYPES[entry.name.rpartition(".")[2]]
                found[before + entry.name] = File(entry.read_bytes(), media_type)
    return found
