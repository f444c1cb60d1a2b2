"""The batch APIs of Anthropic and OpenAI behind one interface of five requests, and how these are sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import aiohttp
import msgspec

from shiftwork.batches import policy
from shiftwork.batches.model import AnswerLost, Provider, ProviderError, WorkRefused
from shiftwork.batches.policy import Answer, Candidate, Request
from shiftwork.notifications.webhooks import WebhookSender
from shiftwork.store import crash_points

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


PAGE = 100
MAX_PAGES = 50
"""The most pages of a provider's list of batches to search for one of ours."""

LABEL = "shiftwork_batch"


class Adapter(Protocol):
    """One provider's batches."""

    async def create(self, batch_id: str, requests: Sequence[Request], /) -> str:
        """Send a batch; returns its id at the provider."""

    async def is_ended(self, external_id: str) -> bool: ...

    async def answers(self, external_id: str, batch_id: str) -> dict[int, Answer]:
        """The answers of an ended batch, by the place of each task in it."""

    async def cancel(self, external_id: str) -> None:
        """Cancel a batch; answers finished by then can still be read."""

    async def recent(self, since: float) -> list[Candidate]:
        """Batches created since then."""

    async def close(self) -> None: ...


class Anthropic:
    """Message Batches. A batch has no label, so ours are recognized by the ids of their results."""

    def __init__(self, http: ProviderHttp) -> None:
        self._http = http
        self.close = http.close

    async def create(self, _batch_id: str, requests: Sequence[Request]) -> str:
        made = await self._http.post("/v1/messages/batches", {"requests": [each._asdict() for each in requests]})
        return str(made["id"])

    async def is_ended(self, external_id: str) -> bool:
        found = await self._http.get(f"/v1/messages/batches/{external_id}")
        return bool(found["processing_status"] == "ended")

    async def answers(self, external_id: str, batch_id: str) -> dict[int, Answer]:
        found = {}
        for line in await self._http.get_lines(f"/v1/messages/batches/{external_id}/results"):
            place = policy.place_of(batch_id, str(line["custom_id"]))
            if place is not None:
                found[place] = _of_anthropic(line["result"])
        return found

    async def cancel(self, external_id: str) -> None:
        await self._http.post(f"/v1/messages/batches/{external_id}/cancel", {})

    async def recent(self, since: float) -> list[Candidate]:
        found: list[Candidate] = []
        after = ""
        for _ in range(MAX_PAGES):
            page = await self._http.get(f"/v1/messages/batches?limit={PAGE}{after}")
            found += [
                Candidate(
                    each["id"],
                    datetime.fromisoformat(each["created_at"]).timestamp(),
                    sum(each["request_counts"].values()),
                    each["processing_status"] == "ended",
                )
                for each in page["data"]
            ]
            if not page.get("has_more") or found[-1].created_at < since:
                break
            after = f"&after_id={page['last_id']}"
        return found


def _of_anthropic(result: Mapping[str, Any]) -> Answer:
    if result["type"] == "errored":
        error = result.get("error") or {}
        return Answer(error=_error_text(error.get("error") or error))
    if result["type"] != "succeeded":
        return policy.MISSING
    message, used = result["message"], result["message"].get("usage") or {}
    texts = [part["text"] for part in message["content"] if part.get("type") == "text"]
    cached = used.get("cache_read_input_tokens") or 0
    read = (used.get("input_tokens") or 0) + (used.get("cache_creation_input_tokens") or 0) + cached
    return Answer(
        "".join(texts) if texts else None,
        None if len(texts) == len(message["content"]) else message["content"],
        model=message.get("model"),
        tokens_in=read,
        tokens_out=used.get("output_tokens") or 0,
        cached=cached,
    )


class OpenAI:
    """Batches of chat completions. Each carries our id as metadata."""

    def __init__(self, http: ProviderHttp) -> None:
        self._http = http
        self.close = http.close

    async def create(self, batch_id: str, requests: Sequence[Request]) -> str:
        line = {"method": "POST", "url": "/v1/chat/completions"}
        lines = [{"custom_id": each.custom_id, **line, "body": each.params} for each in requests]
        content = b"\n".join(map(msgspec.json.encode, lines))
        file = await self._http.upload("/files", f"{batch_id}.jsonl", content, purpose="batch")
        crash_points.reach("after uploading a batch")
        made = await self._http.post(
            "/batches",
            {
                "input_file_id": file["id"],
                "endpoint": line["url"],
                "completion_window": "24h",
                "metadata": {LABEL: batch_id},
            },
        )
        return str(made["id"])

    async def is_ended(self, external_id: str) -> bool:
        found = await self._http.get(f"/batches/{external_id}")
        return found["status"] in _ENDED

    async def answers(self, external_id: str, batch_id: str) -> dict[int, Answer]:
        batch = await self._http.get(f"/batches/{external_id}")
        found = {}
        for file in (batch.get("output_file_id"), batch.get("error_file_id")):
            for line in await self._http.get_lines(f"/files/{file}/content") if file else ():
                place = policy.place_of(batch_id, str(line["custom_id"]))
                if place is not None:
                    found[place] = _of_openai(line)
        return found

    async def cancel(self, external_id: str) -> None:
        await self._http.post(f"/batches/{external_id}/cancel", {})

    async def recent(self, since: float) -> list[Candidate]:
        found: list[Candidate] = []
        after = ""
        for _ in range(MAX_PAGES):
            page = await self._http.get(f"/batches?limit={PAGE}{after}")
            found += [
                Candidate(
                    each["id"],
                    float(each["created_at"]),
                    (each.get("request_counts") or {}).get("total", 0),
                    each["status"] in _ENDED,
                    (each.get("metadata") or {}).get(LABEL),
                )
                for each in page["data"]
            ]
            if not page.get("has_more") or found[-1].created_at < since:
                break
            after = f"&after={found[-1].external_id}"
        return found


_ENDED = frozenset({"failed", "completed", "expired", "cancelled"})
_NOT_DONE = frozenset({"batch_expired", "batch_cancelled"})


def _of_openai(line: Mapping[str, Any]) -> Answer:
    error, response = line.get("error"), line.get("response")
    if error and error.get("code") in _NOT_DONE:
        return policy.MISSING
    if error or not response or response["status_code"] != 200:
        return Answer(error=_error_text(error or (response or {}).get("body") or {}))
    body = response["body"]
    message, used = body["choices"][0]["message"], body.get("usage") or {}
    return Answer(
        message.get("content"),
        message.get("tool_calls"),
        model=body.get("model"),
        tokens_in=used.get("prompt_tokens") or 0,
        tokens_out=used.get("completion_tokens") or 0,
        cached=(used.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
    )


def _error_text(error: Mapping[str, Any]) -> str:
    """The provider's error text, prefixed with the error type that identifies limits and refusals."""
    inner = error.get("error")
    found = inner if isinstance(inner, Mapping) else error
    kind = found.get("type") or found.get("code")
    return f"{kind}: {found.get('message')}" if kind else str(found.get("message") or dict(found) or "no reason given")


def adapter(environment: Mapping[str, str], provider: Provider, *, allow_private: bool) -> Adapter:
    """The provider's API, with key and base URL from the same environment variables as its own clients."""
    access = policy.ACCESS[provider]
    key, base = environment[access.key], environment.get(access.base) or access.default
    if provider == "anthropic":
        headers = {"x-api-key": key, "anthropic-version": "2023-06-01"}
        return Anthropic(ProviderHttp(base, headers, allow_private=allow_private))
    return OpenAI(ProviderHttp(base, {"authorization": f"Bearer {key}"}, allow_private=allow_private))
