"""Traces: where work comes from, carried as a W3C `traceparent`; spans and metrics only where OpenTelemetry is in use.

Nothing of OpenTelemetry is imported here unless the environment names a receiver. A program that has set it up itself
gets its spans without that.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Literal, Protocol

log = logging.getLogger("shiftwork.tracing")
PATTERN = r"^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$"
VARIABLE = "TRACEPARENT"
"""The environment variables and output lines that carry a command's trace."""

Kind = Literal["internal", "server", "producer", "consumer"]
_FORM = re.compile(PATTERN)
_carried: ContextVar[str | None] = ContextVar("shiftwork_traceparent", default=None)
_task: ContextVar[HasId | None] = ContextVar("shiftwork_task", default=None)


class HasId(Protocol):
    @property
    def id(self) -> str: ...


def set_up(service: str) -> None:
    """Send spans and metrics by OTLP over HTTP to the receivers that the standard variables name, if any."""
    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": service}
    if _is_wanted("TRACES"):
        _send_spans(named)
    if _is_wanted("METRICS"):
        _send_metrics(named)


def _is_wanted(signal: str) -> bool:
    receivers = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    disabled = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    off = disabled or os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp") == "none"
    return any(os.environ.get(name) for name in receivers) and not off


def _send_spans(named: dict[str, str]) -> None:
    try:
        from opentelemetry import trace  # noqa: PLC0415  # an extra
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  # the same
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  # the same
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  # the same
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415  # the same
    except ImportError as error:
        log.warning("no traces are sent: %s is not installed; pip install 'shiftwork[otel]'", error.name)
        return
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)  # it sends what is left when the process ends


def _send_metrics(named: dict[str, str]) -> None:
    try:
        from opentelemetry import metrics  # noqa: PLC0415  # an extra
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415  # the same
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415  # the same
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415  # the same
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  # the same
    except ImportError as error:
        log.warning("no metrics are sent: %s is not installed; pip install 'shiftwork[otel]'", error.name)
        return
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    metrics.set_meter_provider(MeterProvider([reader], resource=Resource.create(named)))  # it sends the rest at the end


def _api() -> Any:
    """OpenTelemetry as far as this program uses it, else None."""
    return sys.modules.get("opentelemetry.trace")


def is_on() -> bool:
    return _api() is not None


def in_use() -> bool:
    """Whether this program may use OpenTelemetry at all; most do not."""
    return "opentelemetry.trace" in sys.modules or "opentelemetry.metrics" in sys.modules


def meter() -> Any:
    """Where metrics of this process are made; None where OpenTelemetry's are not in use."""
    api = sys.modules.get("opentelemetry.metrics")
    if api is None:
        return None
    provider = api.get_meter_provider()
    is_set_up = hasattr(provider, "force_flush")  # the API alone has a stand-in, which keeps all it is asked for
    return provider.get_meter("shiftwork") if is_set_up else None


def annotate(facts: Mapping[str, str | float | None]) -> None:
    """Add to the span that runs here what is known only now."""
    if (api := _api()) is not None:
        api.get_current_span().set_attributes({name: value for name, value in facts.items() if value is not None})


def read(text: str | None) -> str | None:
    """A traceparent as it was sent; what is none belongs to no trace, and is no one's error."""
    return text if text is not None and _FORM.match(text) else None


def current() -> str | None:
    """Where work that begins here comes from."""
    if (api := _api()) is not None:
        here = api.get_current_span().get_span_context()
        if here.is_valid:
            return f"00-{here.trace_id:032x}-{here.span_id:016x}-{int(here.trace_flags):02x}"
    return _carried.get()


def of_environment() -> str | None:
    """The trace that anyone who started this process works in."""
    return read(os.environ.get(VARIABLE))


def facts() -> dict[str, str]:
    """What a log line says of the task and the trace it was written in."""
    found = {} if (task := _task.get()) is None else {"task_id": task.id}
    if (here := current()) is not None:
        _, trace_id, span_id, _ = here.split("-")
        found |= {"trace_id": trace_id, "span_id": span_id}
    return found


@contextmanager
def carrying(traceparent: str | None) -> Iterator[None]:
    """What begins inside belongs to this trace."""
    reset = _carried.set(traceparent)
    try:
        yield
    finally:
        _carried.reset(reset)


def work_on(task: HasId | None) -> None:
    """What is logged from here on, by this asyncio task and those it starts, is about this task of ours, or none."""
    _task.set(task)


def span(
    name: str, kind: Kind = "internal", parent: str | None = None, **facts: str | float
) -> AbstractContextManager[None]:
    """A span around what is done inside, below `parent` or what runs here; nothing where no spans are made."""
    if (api := _api()) is None:
        return _NOTHING if parent is None else carrying(parent)
    return _span(api, name, kind, parent or current(), facts)


_NOTHING = nullcontext()


@contextmanager
def _span(api: Any, name: str, kind: Kind, above: str | None, facts: dict[str, str | float]) -> Iterator[None]:
    with carrying(above):
        made = api.get_tracer("shiftwork").start_as_current_span(
            name,
            context=None if above is None else _context(api, above),
            kind=api.SpanKind[kind.upper()],
            attributes={f"shiftwork.{fact}": value for fact, value in facts.items()},
            record_exception=False,
            set_status_on_exception=False,
        )
        with made as here:
            try:
                yield
            except Exception as error:
                here.record_exception(error)
                here.set_status(api.StatusCode.ERROR, type(error).__name__)
                raise


def _context(api: Any, parent: str) -> Any:
    """What a span below this one begins in. That of the caller continues, so that what else it carries is kept."""
    here = api.get_current_span().get_span_context()
    _, trace_id, span_id, flags = parent.split("-")
    if here.is_valid and here.span_id == int(span_id, 16):
        return None
    named = api.SpanContext(int(trace_id, 16), int(span_id, 16), True, api.TraceFlags(int(flags, 16)))  # noqa: FBT003  # it is remote
    return api.set_span_in_context(api.NonRecordingSpan(named))
