"""Command line values are parsed or refused with a message."""

from collections.abc import Callable
from typing import Any

import click
import pytest

from shiftwork.cli import params
from shiftwork.views import view


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (params.duration, "9" * 400 + "s"),
        (params.when, "9" * 400 + "d"),
        (params.json_value, "9" * 5_000),
        (params.json_object, '{"a": ' + "9" * 5_000 + "}"),
        (params.word_or_json, "9" * 5_000),
        (params.word_or_json, "[" + "9" * 5_000 + "]"),
    ],
)
def test_number_out_of_range_is_refused(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(click.BadParameter):
        read(text)


def test_time_after_the_year_9999_is_refused() -> None:
    for number in (10**400, 1e308, -(10**400)):
        with pytest.raises(ValueError, match="before the year 10000"):
            view.time_in(number)
