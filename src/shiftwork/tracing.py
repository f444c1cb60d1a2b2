"""Traces: passes on the W3C `traceparent` of work, and creates spans and metrics if OpenTelemetry is in use.

This module imports OpenTelemetry only if the environment names a receiver. A program that configures OpenTelemetry
itself gets spans without that.
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
    """Export spans and metrics by OTLP over HTTP if the standard environment variables name receivers."""
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
        log.warning("cannot export traces: %s is not installed; pip install 'shiftwork[otel]'", error.name)
        return
    provider = TracerProvider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)  # exports the rest when the process ends


def _send_metrics(named: dict[str, str]) -> None:
    try:
        from opentelemetry import metrics  # noqa: PLC0415  # an extra
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415  # the same
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415  # the same
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415  # the same
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  # the same
    except ImportError as error:
        log.warning("cannot export metrics: %s is not installed; pip install 'shiftwork[otel]'", error.name)
        return
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    metrics.set_meter_provider(MeterProvider([reader], resource=Resource.create(named)))  # likewise


def _api() -> Any:
    """Return OpenTelemetry's trace module if the program has imported it."""
    return sys.modules.get("opentelemetry.trace")


def is_on() -> bool:
    return _api() is not None


def in_use() -> bool:
    """Whether this program may use OpenTelemetry at all; most do not."""
    return "opentelemetry.trace" in sys.modules or "opentelemetry.metrics" in sys.modules


def meter() -> Any:
    """Return the meter for metrics of this process; None if OpenTelemetry's metrics are not configured."""
    api = sys.modules.get("opentelemetry.metrics")
    if api is None:
        return None
    provider = api.get_meter_provider()
    is_set_up = hasattr(provider, "force_flush")  # the API's own provider would keep every instrument
    return provider.get_meter("shiftwork") if is_set_up else None


def annotate(facts: Mapping[str, str | float | None]) -> None:
    """Add attributes to the current span."""
    if (api := _api()) is not None:
        api.get_current_span().set_attributes({name: value for name, value in facts.items() if value is not None})


def read(text: str | None) -> str | None:
    """Return a valid traceparent, otherwise None: an invalid one is ignored, as W3C requires."""
    return text if text is not None and _FORM.match(text) else None


def current() -> str | None:
    """Return the traceparent for work that begins here."""
    if (api := _api()) is not None:
        here = api.get_current_span().get_span_context()
        if here.is_valid:
            return f"00-{here.trace_id:032x}-{here.span_id:016x}-{int(here.trace_flags):02x}"
    return _carried.get()


def of_environment() -> str | None:
    """Return the trace that the parent process passed in the environment."""
    return read(os.environ.get(VARIABLE))


def facts() -> dict[str, str]:
    """Return the fields that add the current task and trace to a log line."""
    found = {} if (task := _task.get()) is None else {"task_id": task.id}
    if (here := current()) is not None:
        _, trace_id, span_id, _ = here.split("-")
        found |= {"trace_id": trace_id, "span_id": span_id}
    return found


@contextmanager
def carrying(traceparent: str | None) -> Iterator[None]:
    """Make work that begins inside the block part of this trace."""
    reset = _carried.set(traceparent)
    try:
        yield
    finally:
        _carried.reset(reset)


def work_on(task: HasId | None) -> None:
    """Set the task named in later log lines of this asyncio task and of those it starts."""
    _task.set(task)


def span(
    name: str, kind: Kind = "internal", parent: str | None = None, **facts: str | float
) -> AbstractContextManager[None]:
    """Open a span around the block, below `parent` or the current span; without OpenTelemetry, no span is made."""
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
    """Return the context for a span below this parent; None continues the current context, which keeps its baggage."""
    here = api.get_current_span().get_span_context()
    _, trace_id, span_id, flags = parent.split("-")
    if here.is_valid and here.span_id == int(span_id, 16):
        return None
    named = api.SpanContext(int(trace_id, 16), int(span_id, 16), True, api.TraceFlags(int(flags, 16)))  # noqa: FBT003  # it is remote
    return api.set_span_in_context(api.NonRecordingSpan(named))
