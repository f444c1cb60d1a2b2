"""Serves the dashboard's files, with headers that restrict browsers to them."""

from __future__ import annotations

import hashlib

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from shiftwork import dashboard
from shiftwork.server.compression import packed

HEADERS = {
    "content-security-policy": dashboard.POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
"""Browsers revalidate each file, so that a new version shows at once; the answer for an unchanged file is 304."""


def routes() -> list[BaseRoute]:
    """A route for each page of the dashboard, and one for its files. They contain no data, so they need no token."""
    files = dashboard.files()
    tags = {name: f'"{hashlib.sha256(file.content).hexdigest()[:16]}"' for name, file in files.items()}

    def answer(request: Request, name: str) -> Response:
        file = files.get(name)
        if file is None:
            return Response("There is no such file.", 404, HEADERS, "text/plain")
        headers = {**HEADERS, "etag": tags[name]}
        if request.headers.get("if-none-match") == tags[name]:
            return Response(status_code=304, headers=headers)
        return packed(request, Response(file.content, 200, headers, file.media_type))

    async def page(request: Request) -> Response:
        return answer(request, "index.html")

    async def static(request: Request) -> Response:
        return answer(request, request.path_params["name"])

    return [*(Route(path, page) for path in dashboard.PATHS), Route("/static/{name:path}", static)]
