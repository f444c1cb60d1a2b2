"""PostgreSQL under Patroni: the primary is killed or cut off under load, and the fleet continues by itself."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal, NamedTuple, cast
from urllib.parse import urlsplit

import pytest

from shiftwork import Client, Queue
from tests.crashes.test_failover import until_completed, until_up, working
from tests.outages.relay import Relay, relay_to
from tests.outages.test_restarts import Fleet, check
from tests.races.fleet import hire
from tests.server.processes import start
from tests.services.common import HOST
from tests.services.patroni import NAMES, PASSWORD, Etcd, HaProxy, Node, roles, wait_until


class Cluster(NamedTuple):
    """Three database machines behind HAProxy; relays carry what comes to each of them, and its calls to etcd."""

    nodes: list[Node]
    relays: dict[str, list[Relay]]
    through_haproxy: str
    by_hosts: str

    def primary(self, *, other_than: str = "") -> Node | None:
        left = [node for node in self.nodes if node.name != other_than]
        seen = roles(left)
        return next((node for node in left if seen.get(node.name) == "leader"), None)

    def cut_off(self, node: Node) -> None:
        """No other machine reaches it, and it does not reach etcd. Programs on the same machine still reach it.

        It could still call the other databases, but without etcd Patroni has no reason to.
        """
        for relay in self.relays[node.name]:
            relay.silent = True
            relay.drop()


@asynccontextmanager
async def started() -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(Etcd())
        await asyncio.to_thread(etcd.start_first)
        nodes, relays = [stack.enter_context(Node(name, etcd.port)) for name in NAMES], dict[str, list[Relay]]()
        for node in nodes:
            for end, port in (("public_port", node.port), ("public_api_port", node.api_port), ("etcd_port", etcd.port)):
                relay, url = await stack.enter_async_context(relay_to(f"tcp://{HOST}:{port}"))
                setattr(node, end, urlsplit(url).port)
                relays.setdefault(node.name, []).append(relay)
        await asyncio.to_thread(nodes[0].start_again)  # the primary is the host that is named first
        await asyncio.gather(*(asyncio.to_thread(node.start_again) for node in nodes[1:]))
        proxy = stack.enter_context(HaProxy(nodes))
        await asyncio.to_thread(proxy.start_first)
        await asyncio.to_thread(
            wait_until, lambda: sorted(roles(nodes).values()) == ["leader", "replica", "sync_standby"], "sync standby"
        )
        hosts = ",".join(f"{HOST}:{node.public_port}" for node in nodes)
        yield Cluster(nodes, relays, proxy.dsn, f"postgresql://postgres:{PASSWORD}@{hosts}/postgres")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", ["killed", "cut off"])
async def test_fleet_moves_to_the_new_primary_by_itself(fault: Literal["killed", "cut off"]) -> None:
    """A server, programs and a worker process behind HAProxy, a program that names all hosts, and one on the primary.

    Everything acknowledged to any of them, also by the isolated primary, must be true afterwards.
    """
    fleet = Fleet()
    async with (
        started() as cluster,
        await start(cluster.through_haproxy) as server,
        await Client.open(server.url) as client,
        Queue.open(cluster.through_haproxy) as behind,
        Queue.open(cluster.by_hosts) as naming,
        working(cluster.through_haproxy, "pages"),
    ):
        lost = cluster.primary()
        assert lost is not None
        pages = behind.in_workspace("pages")
        await hire(behind, "behind", "naming")
        await until_up(pages)
        submitted = await pages.submit_many([{"type": "page"}] * 6)
        local = await Queue.open(f"postgresql://postgres:{PASSWORD}@{HOST}:{lost.port}/postgres")
        on_lost = asyncio.create_task(fleet.produce(local))
        loops = [
            *(fleet.produce(cast(Queue, client)), fleet.produce(naming)),
            *(fleet.work(behind, "behind"), fleet.work(naming, "naming")),
        ]
        running = [asyncio.create_task(loop) for loop in loops]
        await fleet.until(20)
        times = {"lost": time.monotonic()}
        await asyncio.to_thread(lost.kill9) if fault == "killed" else cluster.cut_off(lost)
        await asyncio.to_thread(wait_until, lambda: cluster.primary(other_than=lost.name) is not None, "new primary")
        times["new primary"] = time.monotonic()
        await fleet.until(1)
        times["first acknowledged call"] = time.monotonic()
        submitted += await pages.submit_many([{"type": "page"}] * 3)
        await fleet.until(40)
        fleet.ending = True
        await asyncio.gather(*running)
        on_lost.cancel()  # its database does not come back
        await asyncio.gather(on_lost, return_exceptions=True)
        await local.close()
        while taken := await naming.claim("naming", 100, start=True):
            await naming.batch.complete([{"token": each.token} for each in taken])
            fleet.completed += [each.id for each in taken]
        await until_completed(pages, {page.id for page in submitted})
        times["backlog done"] = time.monotonic()
        print(f"\nprimary {fault}:", *(f"{what} {at - times['lost']:.1f} s" for what, at in times.items()), sep="\n  ")  # noqa: T201  # for docs/explanation/reliability.md
        await check(naming, fleet)
