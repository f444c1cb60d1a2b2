"""Templates are filled once, with values of their types, and not beyond bounds."""

from typing import Any

import pytest

from shiftwork.core import templates
from shiftwork.core.errors import InputError, TooLarge
from shiftwork.core.templates import Parameter


@pytest.mark.parametrize("text", ["{{a}}", "{{ a }}", "{{\ta\n}}", "{{   a}}"])
def test_blanks_around_a_name_do_not_count(text: str) -> None:
    templates.check_template({"x": [text]}, {"a": Parameter(default="1")})
    assert templates.fill({"x": [text, f"<{text}>"]}, {"a": 5}) == {"x": [5, "<5>"]}


@pytest.mark.parametrize("text", ["{{" + " " * 100_000, "{{ " * 30_000, "{" * 100_000, "{{" + "a " * 50_000 + "}"])
def test_text_that_names_nothing_stays_as_it_is(text: str) -> None:
    """With blanks behind the braces this took a minute for 4,000 of them."""
    templates.check_template(text, {})
    assert templates.fill(text, {}) == text


@pytest.mark.parametrize("template", ["{{ a }} " * 100, ["{{ a }}"] * 100, {str(n): "{{ a }}" for n in range(100)}])
def test_short_template_does_not_make_a_huge_task(template: Any) -> None:
    for value in ("x" * 100_000, ["x" * 100_000]):
        with pytest.raises(TooLarge, match="more than 8388608 characters") as refused:
            templates.fill(template, {"a": value})
        assert refused.value.where == "parameters.a"


def test_number_that_no_list_has_is_missing() -> None:
    for step in ("9" * 5_000, "9" * 10, "5", "-1", "²"):
        assert templates.look_up({"list": [1, 2]}, f"list.{step}") is templates.MISSING
    assert templates.look_up({"list": [1, 2]}, "list.1") == 2


def test_name_that_is_no_parameter_is_refused() -> None:
    with pytest.raises(InputError, match="is no parameter"):
        templates.check_template("{{ b }}", {"a": Parameter(default="1")})
