"""The demo: a small fleet of simulated agents builds a landing page, and one of them is killed on the way."""

from shiftwork.demo.story import run

__all__ = ["run"]
