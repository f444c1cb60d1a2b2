"""Artifacts over HTTP: bytes unchanged, in bounded memory, whole or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import io
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from shiftwork.server import request_parsing
from shiftwork.wire import protocol
from tests.server import processes, raw
from tests.server.endpoints import held
from tests.server.running import Reply, Running
from tests.worker.steps import until

MEBIBYTE = 1024 * 1024
BIG = random.Random(7).randbytes(2 * MEBIBYTE + 1000)


def id_of(content: bytes) -> str:
    return f"artifact:sha256-{hashlib.sha256(content).hexdigest()}"


def at(content: bytes) -> str:
    return f"/api/artifacts/{id_of(content)}"


async def put(api: Running, content: bytes, path: str | None = None, **headers: str) -> Reply:
    known = {"Content-Type": "application/octet-stream", **headers}
    return await api.call(
        "PUT" if path is None else "POST", path or at(content), data=io.BytesIO(content), headers=known
    )


def folder_of(api: Running) -> Path:
    blob_store = api.state.queue.engine.blob_store
    assert blob_store is not None
    return Path(blob_store.url.removeprefix("file://"))


def files(api: Running) -> list[Path]:
    return sorted(path for path in folder_of(api).rglob("*") if path.is_file())


async def test_artifact_bytes_are_returned_unchanged(api: Running) -> None:
    kept = await put(api, BIG, **{"Content-Type": "text/x-made-up"})
    assert (kept.status, kept.json["id"], kept.json["size"]) == (201, id_of(BIG), len(BIG))
    got = await api.call("GET", at(BIG), headers={"Accept-Encoding": "gzip"})
    assert (got.status, got.body) == (200, BIG)
    assert got.headers["content-type"] == "text/x-made-up"
    assert got.headers["content-length"] == str(len(BIG))
    assert got.headers["etag"] == f'"{id_of(BIG)}"'
    assert "content-encoding" not in got.headers


async def test_upload_without_known_hash_gets_its_id(api: Running) -> None:
    """Also from curl, which labels any bytes as a form."""
    kept = await put(
        api, b"# hello", "/api/artifacts?name=hello.md", **{"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert (kept.json["id"], kept.json["media_type"]) == (id_of(b"# hello"), "text/markdown")


async def test_upload_not_matching_its_hash_is_refused(api: Running) -> None:
    refused = await api.call("PUT", at(b"this"), data=b"that")
    assert (refused.status, refused.code, refused.json["where"]) == (422, "invalid_input", "artifact_id")
    assert (await api.call("GET", at(b"that"))).status == 404
    assert files(api) == []


async def test_invalid_media_type_is_refused(api: Running) -> None:
    for stated, where in {"multipart/form-data; boundary=x": "Content-Type", "nonsense": "media_type"}.items():
        refused = await put(api, b"x", **{"Content-Type": stated})
        assert (refused.status, refused.code, refused.json["where"]) == (422, "invalid_input", where)


async def test_stored_html_page_is_served_sandboxed_as_attachment(api: Running) -> None:
    page = b"<script>alert(1)</script>"
    await put(api, page, **{"Content-Type": "text/html"})
    got = await api.call("GET", at(page))
    assert got.headers["content-disposition"].startswith("attachment")
    assert got.headers["content-security-policy"] == "sandbox"
    assert got.headers["x-content-type-options"] == "nosniff"


async def test_head_of_an_artifact_returns_headers_without_bytes(api: Running) -> None:
    await put(api, BIG)
    for header in ({}, {"Range": "bytes=0-9"}):
        got = await api.call("GET", at(BIG), headers=header)
        head = await api.call("HEAD", at(BIG), headers=header)
        assert (head.status, head.body) == (got.status, b"")
        for name in ("content-length", "content-type", "etag", "accept-ranges", "content-range"):
            assert head.headers.get(name) == got.headers.get(name)


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=1048570-1048580", 1048570, 1048581),
        ("bytes=2097152-", 2097152, len(BIG)),
        ("bytes=-5", len(BIG) - 5, len(BIG)),
        ("bytes=0-999999999", 0, len(BIG)),
        ("bytes=-999999999", 0, len(BIG)),
    ],
)
async def test_requested_byte_range_is_sent(api: Running, asked: str, start: int, end: int) -> None:
    await put(api, BIG)
    got = await api.call("GET", at(BIG), headers={"Range": asked})
    assert got.body == BIG[start:end]
    if (start, end) != (0, len(BIG)):
        assert got.status == 206
        assert got.headers["content-range"] == f"bytes {start}-{end - 1}/{len(BIG)}"


@pytest.mark.parametrize("asked", ["bytes=5-2", "bytes=0-1,5-6", "lines=1-2", "bytes=-", "5-6", "bytes=a-b"])
async def test_invalid_range_header_gets_the_whole_content(api: Running, asked: str) -> None:
    await put(api, b"0123456789")
    got = await api.call("GET", at(b"0123456789"), headers={"Range": asked})
    assert (got.status, got.body) == (200, b"0123456789")


async def test_unsatisfiable_range_is_refused(api: Running) -> None:
    await put(api, b"0123456789")
    for asked in ("bytes=10-", "bytes=99-100", "bytes=-0"):
        refused = await api.call("GET", at(b"0123456789"), headers={"Range": asked})
        assert (refused.status, refused.code, refused.json["facts"]) == (416, "range_not_satisfiable", {"size": 10})


async def test_range_with_if_range_is_sent_only_for_matching_etag(api: Running) -> None:
    await put(api, b"0123456789")
    same, other = f'"{id_of(b"0123456789")}"', '"something else"'
    for known, status in ((same, 206), (other, 200)):
        header = {"Range": "bytes=0-4", "If-Range": known}
        assert (await api.call("GET", at(b"0123456789"), headers=header)).status == status
    unchanged = await api.call("GET", at(b"0123456789"), headers={"If-None-Match": same})
    assert (unchanged.status, unchanged.body) == (304, b"")


async def test_upload_under_a_claim_is_attributed_to_its_agent(api: Running) -> None:
    claim = await held(api.state.queue)
    path = f"/api/tasks/{claim.id}/artifacts"
    refused = await put(api, b"made", path)
    assert (refused.status, refused.code) == (422, "fence_required")
    kept = await put(api, b"made", f"{path}?token={claim.token}&name=made.txt")
    assert kept.status == 201
    (outcome,) = (await api.get(path))["artifacts"]
    assert (outcome["id"], outcome["role"], outcome["name"], outcome["by"]) == (
        id_of(b"made"),
        "made",
        "made.txt",
        "agent:ada",
    )
    await api.state.queue.complete(claim.token)
    late = await put(api, b"late", f"{path}?token={claim.token}")
    assert (late.status, late.code) == (409, "lease_lost")


async def test_repeated_claim_contains_its_inputs(api: Running) -> None:
    kept = (await put(api, b"input")).json["id"]
    await api.post("/api/tasks", {"type": "noop", "spec": {"context_refs": [kept]}})
    key = {"Idempotency-Key": "k"}
    first = await api.post("/api/tasks/claim", {"agent_id": "ada"}, headers=key)
    again = await api.post("/api/tasks/claim", {"agent_id": "ada"}, headers=key)
    (assigned,) = first["assignments"]
    assert [each["id"] for each in assigned["inputs"]] == [kept]
    assert again["assignments"][0]["inputs"] == assigned["inputs"]
    assert (await api.get(f"/api/tasks/{assigned['task']['id']}/inputs"))["inputs"] == assigned["inputs"]


async def test_upload_routes_require_work_or_submit_scope(guarded: Running) -> None:
    queue = guarded.state.queue

    async def come(scope: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {(await queue.tokens.create(scope, [scope])).secret}"}

    worker, submitter, reader = [await come(scope) for scope in ("work", "submit", "read")]
    assert (await put(guarded, b"x", **submitter)).status == 201
    for header in (worker, reader):
        assert (await put(guarded, b"x", **header)).status == 403
        assert (await guarded.call("GET", at(b"x"), headers=header)).body == b"x"
    assert (await guarded.call("GET", at(b"x"))).status == 401


async def test_artifact_damaged_at_the_beginning_is_refused(api: Running) -> None:
    await put(api, BIG)
    (file,) = files(api)
    file.write_bytes(b"x" + BIG[1:])
    refused = await api.call("GET", at(BIG))
    assert (refused.status, refused.code) == (502, "artifact_damaged")


async def test_artifact_damaged_later_breaks_off_the_download(api: Running) -> None:
    """The length was announced, so no client mistakes the part for the whole."""
    await put(api, BIG)
    (file,) = files(api)
    file.write_bytes(BIG[:-1] + b"?")
    async with raw.line(api.url) as line:
        line.send(raw.request("GET", at(BIG)))
        with pytest.raises(asyncio.IncompleteReadError) as broken:
            await line.answer()
    assert len(broken.value.partial) < len(BIG)
    assert BIG.startswith(broken.value.partial)


def has_begun(folder: Path) -> bool:
    """Return whether a part of an upload is stored."""
    return any(file.stat().st_size for file in folder.rglob("*") if file.is_file())


async def test_aborted_upload_leaves_no_file(api: Running) -> None:
    async with raw.line(api.url) as line:
        head = f"PUT {at(BIG)} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(BIG)}\r\n\r\n"
        line.send(head.encode() + BIG[: 2 * MEBIBYTE])
        await until(lambda: has_begun(folder_of(api)))
        await line.hang_up()
    await until(lambda: files(api) == [])
    assert (await api.call("GET", at(BIG))).status == 404


async def test_stalled_upload_is_refused(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_parsing, "MAX_BODY_SEC", 0.01)
    async with raw.line(api.url) as line:
        line.send(f"PUT {at(b'x')} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\nxx".encode())
        found = await line.answer()
    assert (found.status, found.json["code"], found.json["where"]) == (400, "malformed", "body")
    await until(lambda: files(api) == [])


async def test_large_upload_can_take_longer_than_a_request(api: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """While data keeps arriving: each part restarts the timeout."""
    patience = 2.0
    monkeypatch.setattr(protocol, "MAX_REQUEST_SEC", patience)
    monkeypatch.setattr(protocol, "MIN_BODY", 1000)
    loop = asyncio.get_running_loop()
    began, sent = loop.time(), hashlib.sha256()

    async def slowly() -> AsyncIterator[bytes]:
        while loop.time() < began + 1.5 * patience:
            part = random.randbytes(1000)
            sent.update(part)
            yield part
            await asyncio.sleep(patience / 100)  # to be slow is the point

    kept = await api.call("POST", "/api/artifacts", data=slowly())
    assert (kept.status, kept.json["id"]) == (201, f"artifact:sha256-{sent.hexdigest()}")


async def test_upload_over_the_limit_is_refused_while_streaming(api: Running) -> None:
    await api.state.queue.settings.set("bounds.artifact_bytes", MEBIBYTE)
    refused = await put(api, BIG)
    assert (refused.status, refused.code) == (413, "too_large")
    assert files(api) == []


def peak(pid: int) -> int:
    """The most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


async def test_memory_is_bounded_for_upload_and_download(tmp_path: Path) -> None:
    block, count = random.Random(1).randbytes(MEBIBYTE), 200

    async def poured() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield block

    async with (
        await processes.start(f"sqlite:///{tmp_path}/queue.db", "--no-duties") as server,
        aiohttp.ClientSession(server.url) as http,
    ):
        before = peak(server.process.pid)
        async with http.post("/api/artifacts", data=poured()) as answer:
            kept = await answer.json()
        assert kept["size"] == count * MEBIBYTE
        read = 0
        async with http.get(f"/api/artifacts/{kept['id']}") as answer:
            async for part in answer.content.iter_any():
                read += len(part)
        assert read == count * MEBIBYTE
        assert peak(server.process.pid) - before < 60 * MEBIBYTE


async def test_server_killed_during_upload_keeps_nothing_of_it(tmp_path: Path) -> None:
    """Its remains are collected later; acknowledged artifacts are intact."""
    store = f"sqlite:///{tmp_path}/queue.db"
    incoming = tmp_path / "queue.db.artifacts" / "incoming"
    async with await processes.start(store, "--no-duties") as server, aiohttp.ClientSession(server.url) as http:
        async with http.put(at(b"kept"), data=b"kept") as answer:
            assert answer.status == 201
        async with raw.line(server.url) as line:
            head = f"PUT {at(BIG)} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(BIG)}\r\n\r\n"
            line.send(head.encode() + BIG[: 2 * MEBIBYTE])
            await until(lambda: has_begun(incoming))
            await server.kill()
    async with await processes.start(store, "--no-duties") as server, aiohttp.ClientSession(server.url) as http:
        async with http.get(at(b"kept")) as answer:
            assert await answer.read() == b"kept"
        async with http.get(at(BIG)) as answer:
            assert answer.status == 404
        async with http.put(at(BIG), data=io.BytesIO(BIG)) as answer:
            assert answer.status == 201
        async with http.get(at(BIG)) as answer:
            assert await answer.read() == BIG
