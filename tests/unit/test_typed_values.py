"""Command line values are parsed or refused with a message."""

from collections.abc import Callable
from typing import Any

import click
import pytest

from shiftwork.cli import values
from shiftwork.views import view


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (values.duration, "9" * 400 + "s"),
        (values.when, "9" * 400 + "d"),
        (values.json_value, "9" * 5_000),
        (values.json_object, '{"a": ' + "9" * 5_000 + "}"),
        (values.word_or_json, "9" * 5_000),
        (values.word_or_json, "[" + "9" * 5_000 + "]"),
    ],
)
def test_number_out_of_range_is_refused(read: Callable[[str], Any], text: str) -> None:
    with pytest.raises(click.BadParameter):
        read(text)


def test_time_after_the_year_9999_is_refused() -> None:
    for number in (10**400, 1e308, -(10**400)):
        with pytest.raises(ValueError, match="before the year 10000"):
            view.time_in(number)
