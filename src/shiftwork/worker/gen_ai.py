"""An attempt in the words of OpenTelemetry's GenAI conventions: which agent, which model, how many tokens.

The conventions are in development (version 1.41 was read); backends already group by these names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from shiftwork import tracing

OPERATION = "invoke_agent"
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 300.0, 3600.0)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
_LABELS = frozenset(
    {"gen_ai.operation.name", "gen_ai.agent.name", "gen_ai.provider.name", "error.type"}
    | {"gen_ai.request.model", "gen_ai.response.model"}
)
_instruments: dict[str, Any] = {}
"""The histograms, by the meter that created them."""


class Invocation(NamedTuple):
    """An attempt's facts, as known at its end."""

    agent: str
    provider: str | None
    request_model: str | None
    response_model: str | None
    tokens_in: int
    tokens_out: int
    conversation: str | None
    seconds: float
    error: str | None

    def attributes(self) -> dict[str, str | float | None]:
        """The span's attributes. Only this span has tokens, so that a sum over a trace counts them once."""
        used = self.tokens_in or self.tokens_out
        return {
            "gen_ai.operation.name": OPERATION,
            "gen_ai.agent.name": self.agent,
            "gen_ai.provider.name": self.provider,
            "gen_ai.request.model": self.request_model,
            "gen_ai.response.model": self.response_model,
            "gen_ai.usage.input_tokens": self.tokens_in if used else None,
            "gen_ai.usage.output_tokens": self.tokens_out if used else None,
            "gen_ai.conversation.id": self.conversation,
            "error.type": self.error,
        }

    def labels(self) -> dict[str, str]:
        """The metrics' labels, of low cardinality."""
        return {name: str(value) for name, value in self.attributes().items() if name in _LABELS and value is not None}


def note(invocation: Invocation) -> None:
    """Record it on the current span and in this process's metrics."""
    tracing.annotate(invocation.attributes())
    meter = tracing.meter()
    if meter is None:
        return
    labels = invocation.labels()
    duration = _histogram(meter, "gen_ai.client.operation.duration", "s", "How long an attempt took.", _SECONDS)
    duration.record(invocation.seconds, labels)
    tokens = _histogram(meter, "gen_ai.client.token.usage", "{token}", "Tokens that an attempt used.", _TOKENS)
    without_error = {name: value for name, value in labels.items() if name != "error.type"}
    for kind, count in (("input", invocation.tokens_in), ("output", invocation.tokens_out)):
        if count:
            tokens.record(count, {**without_error, "gen_ai.token.type": kind})


def _histogram(meter: Any, name: str, unit: str, description: str, bounds: tuple[float, ...]) -> Any:
    if _instruments.get("meter") is not meter:
        _instruments.clear()
        _instruments["meter"] = meter
    if name not in _instruments:
        _instruments[name] = meter.create_histogram(
            name, unit, description, explicit_bucket_boundaries_advisory=list(bounds)
        )
    return _instruments[name]
