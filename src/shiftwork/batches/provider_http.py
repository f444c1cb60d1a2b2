"""Sends requests to a provider. The error type says whether the request may have had an effect."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec

from shiftwork.batches.model import AnswerLost, ProviderError, WorkRefused
from shiftwork.notifications.webhooks import WebhookSender

TIMEOUT_SEC = 120.0
_SHOWN_CHARS = 300


REFUSED = frozenset({400, 413, 422})
"""The request itself is invalid: it is not sent again."""


class ProviderHttp:
    """One provider's API under its base URL; only public addresses, unless private ones are allowed."""

    def __init__(self, base_url: str, headers: dict[str, str], *, allow_private: bool) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {**headers, "user-agent": "shiftwork"}
        self._sender = WebhookSender()
        self._allow_private = allow_private

    async def close(self) -> None:
        await self._sender.close()

    async def get(self, path: str) -> Any:
        return _object(await self._request("GET", path))

    async def get_lines(self, path: str) -> list[dict[str, Any]]:
        """Read a JSON Lines file."""
        return [_object(line) for line in (await self._request("GET", path)).splitlines() if line.strip()]

    async def post(self, path: str, body: Any) -> Any:
        headers = {"content-type": "application/json"}
        return _object(await self._request("POST", path, data=msgspec.json.encode(body), headers=headers))

    async def upload(self, path: str, name: str, content: bytes, **fields: str) -> Any:
        form = aiohttp.FormData(fields)
        form.add_field("file", content, filename=name, content_type="application/jsonl")
        return _object(await self._request("POST", path, data=form))

    async def _request(self, method: str, path: str, *, headers: dict[str, str] | None = None, **options: Any) -> bytes:
        if not self._base_url.startswith("https://") and not self._allow_private:
            raise ProviderError(f"{self._base_url} is not https: set SHIFTWORK_PRIVATE_SINKS=1 to allow it")
        session = self._sender.session(allow_private=self._allow_private)
        try:
            async with session.request(
                method,
                self._base_url + path,
                headers={**self._headers, **(headers or {})},
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_SEC),
                **options,
            ) as answer:
                return _checked(answer.status, await answer.read(), f"{method} {path}")
        except aiohttp.ClientConnectorError as error:
            raise ProviderError(f"{method} {path} could not be sent: {error.os_error}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise AnswerLost(f"no answer to {method} {path}: {type(error).__name__}") from error


def _checked(status: int, body: bytes, what: str) -> bytes:
    if 200 <= status < 300:
        return body
    text = body.decode(errors="replace").strip()[:_SHOWN_CHARS]
    message = f"{what} returned {status}: {text}"
    if status in REFUSED:
        raise WorkRefused(message)
    if status >= 500:
        raise AnswerLost(message)
    raise ProviderError(message)


def _object(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError) as error:
        raise AnswerLost(f"the answer is not a JSON object: {error}") from error
