"""Prometheus metrics of a workspace and of this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Histogram, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from shiftwork.observe.metric_catalogue import METRICS
from shiftwork.observe.metrics import metric_of
from shiftwork.observe.model import Sample

MEDIA_TYPE = CONTENT_TYPE_LATEST
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_REQUESTS = METRICS["shiftwork_request_seconds"]
_REFUSED = METRICS["shiftwork_refused_writes_total"]


class Latencies:
    """How long each operation took on this server, by status."""

    def __init__(self) -> None:
        self._histogram = Histogram(_REQUESTS.name, _REQUESTS.meaning, _REQUESTS.labels, buckets=SECONDS, registry=None)
        self._series: dict[tuple[str, int], Histogram] = {}

    def record(self, operation: str, status: int, seconds: float) -> None:
        series = self._series.get((operation, status))
        if series is None:
            series = self._series[operation, status] = self._histogram.labels(operation, str(status))
        series.observe(seconds)

    def families(self) -> Iterator[Family]:
        """Omits the creation time of each series: no one reads them, and they would double the output."""
        for family in self._histogram.collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


class _Scrape(Collector):
    """The answer to one scrape."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def text(samples: Sequence[Sample], latencies: Latencies | None, refused: Counter[str]) -> bytes:
    """All of it in the text format of Prometheus."""
    codes = [Sample(_REFUSED.name, float(count), {"code": code}) for code, count in sorted(refused.items())]
    registry = CollectorRegistry(auto_describe=False)
    of_server = [] if latencies is None else latencies.families()
    registry.register(_Scrape([*_families([*samples, *codes]), *of_server]))
    return generate_latest(registry)


def _families(samples: Iterable[Sample]) -> Iterator[Family]:
    families: dict[str, Family] = {}
    for sample in samples:
        metric = METRICS[metric_of(sample.name)]
        family = families.get(metric.name)
        if family is None:
            family = families[metric.name] = Family(metric.name.removesuffix("_total"), metric.meaning, metric.kind)
        family.add_sample(sample.name, sample.labels, sample.value)
    yield from families.values()
