"""Typed tasks: payloads are decoded before the function runs, results encoded after, on every kind of queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from shiftwork import Context, Done, Queue, Worker


@dataclass
class Summary:
    text: str
    words: int


class Job(msgspec.Struct):
    urls: list[str]


def typed_worker() -> Worker:
    worker = Worker("ada")

    @worker.task
    async def summarise(text: str, words: int = 2) -> Summary:
        return Summary(" ".join(text.split()[:words]), words)

    @worker.task(type="fetch")
    def fetch_all(ctx: Context, job: Job) -> list[str]:
        return [f"{ctx.type} {url}" for url in job.urls]

    @worker.task
    async def explained(n: int) -> Done:
        return Done({"n": n}, text="in words")

    @worker.task
    async def wrong(n: int) -> Summary:
        return {"text": n}  # type: ignore[return-value]  # what is tested

    return worker


@pytest.mark.parametrize(
    ("type_", "payload", "data"),
    [
        ("summarise", {"text": "a b c"}, {"text": "a b", "words": 2}),
        ("summarise", {"text": "a b c", "words": 1}, {"text": "a", "words": 1}),
        ("fetch", {"urls": ["x"]}, ["fetch x"]),
        ("explained", {"n": 1}, {"n": 1}),
    ],
)
async def test_function_gets_its_arguments_and_its_result_is_stored(
    shop: Queue, store_url: str, type_: str, payload: dict[str, Any], data: Any
) -> None:
    task = await shop.submit(type=type_, payload=payload)
    await typed_worker().run(store_url, until_idle=True)
    assert (await shop.get(task.id)).result is not None
    assert (await shop.result(task.id)).data == data


async def test_payload_that_does_not_decode_fails_without_retry(shop: Queue, store_url: str) -> None:
    task = await shop.submit(type="summarise", payload={"text": 3})
    await typed_worker().run(store_url, until_idle=True)
    found = await shop.get(task.id)
    assert (found.status, found.attempts, found.failure_reason) == ("dead_lettered", 1, "invalid_input")
    assert "text: Expected `str`, got `int`" in (found.last_error or "")


async def test_result_that_does_not_fit_its_annotation_is_an_invalid_output(shop: Queue, store_url: str) -> None:
    task = await shop.submit(type="wrong", payload={"n": 3}, max_attempts=1)
    await typed_worker().run(store_url, until_idle=True)
    found = await shop.get(task.id)
    assert (found.status, found.failure_reason) == ("dead_lettered", "invalid_output")
    assert "text" in (found.last_error or "")
