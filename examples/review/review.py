"""A code review for every pull request, started by GitHub. Start a server, then run this in its folder:

    shiftwork serve
    python review.py http://127.0.0.1:8080

It saves the trigger of `trigger.json`, delivers the recorded pull request as GitHub would, and does the review. For
real deliveries, add `https://your-server/api/hooks/review` and the secret as a webhook of the repository.
"""

import asyncio
import hashlib
import hmac
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp

from shiftwork import Client
from shiftwork.worker import Context, Worker

HERE = Path(__file__).parent
SECRET = "a secret that only GitHub knows"  # noqa: S105  # of an example; yours comes from a safe place

worker = Worker()


@worker.handler("check-style")
async def check_style(ctx: Context) -> dict[str, Any]:
    """Simulate a linter."""
    return {"commit": ctx.payload["commit"], "complaints": 0}


@worker.handler("review-code")
async def review_code(ctx: Context) -> dict[str, Any]:
    """Simulate an agent's review."""
    return {"commit": ctx.payload["commit"], "verdict": "looks good"}


@worker.handler("comment")
async def comment(ctx: Context) -> str:
    """Runs last, because it depends on both."""
    return f"commented on {ctx.payload['repo']}#{ctx.payload['number']}"


async def deliver(url: str) -> Any:
    """Send the recorded pull request with GitHub's headers and signature."""
    body = (HERE / "pull_request.json").read_bytes()
    headers = {
        "X-GitHub-Event": "pull_request",
        "X-GitHub-Delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "X-Hub-Signature-256": "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest(),
    }
    async with aiohttp.ClientSession() as http, http.post(f"{url}/api/hooks/review", data=body, headers=headers) as got:
        return await got.json()


async def main(url: str) -> None:
    async with Client.open(url) as queue:
        await queue.triggers.save("review", **json.loads((HERE / "trigger.json").read_text()), secret=SECRET)
        fired = await deliver(url)
        await worker.run(queue, until_idle=True)
        for task in await queue.batch.get(fired["tasks"]):
            print(task.type, task.status, task.result and (task.result.data or task.result.text))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
