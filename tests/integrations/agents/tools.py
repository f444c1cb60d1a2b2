"""Shared by the test agents: their tools, which the model server counts, and the worker's run."""

import asyncio
import os

import aiohttp

from shiftwork import open_queue
from shiftwork.worker import Worker

MODEL = "gpt-5"


def server() -> str:
    return os.environ["FAKE_MODEL_URL"]


async def use(tool: str) -> str:
    return await _post(f"tools/{tool}")


async def end() -> None:
    """Mark the end of all paid calls, where a worker is killed."""
    await _post("end")


async def _post(path: str) -> str:
    async with aiohttp.ClientSession() as session, session.post(f"{server()}/{path}") as answer:
        return await answer.text()


def work(worker: Worker, url: str, model: str, folder: str) -> None:
    """Run the worker until it is idle, or be killed on the way."""
    os.environ |= {"FAKE_MODEL_URL": model, "FAKE_HOME": folder}

    async def life() -> None:
        await _post(f"begin/{os.getpid()}")
        async with open_queue(url) as queue:
            await worker.run(queue, until_idle=True)

    asyncio.run(life())
