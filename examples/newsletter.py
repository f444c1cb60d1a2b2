"""A newsletter from 50 pages: one cannot be read, one is retried, an editor approves, a webhook hears of the end.

python newsletter.py sqlite:///news.db             # or postgresql://..., http://127.0.0.1:8080
python newsletter.py sqlite:///news.db http://127.0.0.1:9000/hook
"""

import asyncio
import sys
from dataclasses import dataclass

from shiftwork import AnyQueue, Context, Fail, TaskCancelled, TaskHandle, Worker, open_queue

worker = Worker(concurrency=20)


@dataclass
class Newsletter:
    summaries: list[str]
    unread: list[str]
    approved: bool


@worker.task(max_attempts=2, retry={"strategy": "immediate"})
async def summarise(ctx: Context, page: int) -> str:
    if page == 13:
        raise Fail("invalid_input", f"page {page} does not exist", retry=False)
    if page == 7 and ctx.task.attempts == 0:
        raise ConnectionError("the site did not answer")
    return f"page {page} in short"


@worker.task
async def newsletter(ctx: Context, pages: int) -> Newsletter:
    found = await ctx.map(summarise, range(pages), failures="return")
    summaries = [each for each in found if isinstance(each, str)]
    approved = await ctx.ask("send", f"Send {len(summaries)} summaries?", schema={"type": "boolean"})
    return Newsletter(summaries, [str(each.facts["error"]) for each in found if not isinstance(each, str)], approved)


async def approve(queue: AnyQueue, task: TaskHandle[Newsletter]) -> None:
    async for event in queue.follow():
        if event.task_id == task.id and "question.asked" in event.names:
            await queue.approvals.answer(task.id, value=True)
            return


async def main(store: str, hook: str | None = None) -> None:
    async with open_queue(store) as queue:
        if hook is not None:
            await queue.sinks.add("news", "webhook", hook, wants={"events": ["task.completed"]}, allow_private=True)
        weekly = {"type": "newsletter", "payload": {"pages": 50}}
        await queue.triggers.save("weekly", on={"kind": "cron", "at": "0 8 * * 1"}, task=weekly)
        working = asyncio.create_task(worker.run(queue))
        extra = await newsletter.with_options(delay=3600).submit(pages=1)
        issue = await newsletter.submit(pages=50)
        await asyncio.gather(extra.cancel("one a week will do"), approve(queue, issue))
        result = await issue.result(timeout=60)
        print(f"{len(result.summaries)} summaries, unread: {', '.join(result.unread)}, approved: {result.approved}")
        try:
            await extra.result()
        except TaskCancelled as error:
            print(error.facts["status"])
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
