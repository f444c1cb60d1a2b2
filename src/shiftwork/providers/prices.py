"""Computes the cost of a model call from the public prices of `genai-prices`, if an agent reports only tokens."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


@functools.cache
def _calculator() -> Callable[..., Any] | None:
    """The price function; None if the package is not installed. Imported on first use, since it loads all prices."""
    try:
        from genai_prices import Usage, calc_price  # noqa: PLC0415  # as above
    except ImportError:
        return None
    return lambda model, **tokens: calc_price(Usage(**tokens), model).total_price


def cost_usd(model: str | None, tokens_in: int, tokens_out: int, *, cached: int = 0) -> float:
    """The price in dollars; 0 if the model has none or the counts are invalid. `cached` is part of the input."""
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
    """The price of a typical call, ten input tokens per output token, to compare models; infinite if unknown."""
    return cost_usd(model, 10_000, 1_000) or float("inf")
