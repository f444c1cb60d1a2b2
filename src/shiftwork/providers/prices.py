"""What a model's answer costs by the public prices of `genai-prices`, where an agent reports tokens only."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


@functools.cache
def _calculator() -> Callable[..., Any] | None:
    """None where the package is not installed. It reads all prices when it is imported, so only the first use waits."""
    try:
        from genai_prices import Usage, calc_price  # noqa: PLC0415  # as above
    except ImportError:
        return None
    return lambda model, **tokens: calc_price(Usage(**tokens), model).total_price


def cost_usd(model: str | None, tokens_in: int, tokens_out: int, *, cached: int = 0) -> float:
    """The price in dollars; 0 for a model that has none, or counts that cannot be. `cached` is part of the input."""
    calculate = _calculator() if model is not None else None
    if calculate is None:
        return 0.0
    try:
        return float(
            calculate(model, input_tokens=tokens_in, output_tokens=tokens_out, cache_read_tokens=min(cached, tokens_in))
        )
    except (LookupError, ValueError):
        return 0.0


@functools.lru_cache(maxsize=1024)
def usual_cost(model: str) -> float:
    """To compare models: the price of a usual call, ten tokens read for one written; infinite where it has none."""
    return cost_usd(model, 10_000, 1_000) or float("inf")
