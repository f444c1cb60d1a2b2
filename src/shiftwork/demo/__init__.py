"""The demo: a small fleet of simulated agents builds a landing page, and one of them is killed meanwhile."""

from shiftwork.demo.story import run

__all__ = ["run"]
