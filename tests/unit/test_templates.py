"""Templates are filled once, with typed values, within bounds."""

from typing import Any

import pytest

from shiftwork.model.errors import InputError, TooLarge
from shiftwork.triggers import templates
from shiftwork.triggers.templates import Parameter


@pytest.mark.parametrize("text", ["{{a}}", "{{ a }}", "{{\ta\n}}", "{{   a}}"])
def test_blanks_around_a_parameter_name_are_ignored(text: str) -> None:
    templates.check_template({"x": [text]}, {"a": Parameter(default="1")})
    assert templates.fill({"x": [text, f"<{text}>"]}, {"a": 5}) == {"x": [5, "<5>"]}


@pytest.mark.parametrize("text", ["{{" + " " * 100_000, "{{ " * 30_000, "{" * 100_000, "{{" + "a " * 50_000 + "}"])
def test_text_without_parameters_is_unchanged(text: str) -> None:
    """With blanks behind the braces this took a minute for 4,000 of them."""
    templates.check_template(text, {})
    assert templates.fill(text, {}) == text


@pytest.mark.parametrize("template", ["{{ a }} " * 100, ["{{ a }}"] * 100, {str(n): "{{ a }}" for n in range(100)}])
def test_short_template_cannot_create_a_huge_task(template: Any) -> None:
    for value in ("x" * 100_000, ["x" * 100_000]):
        with pytest.raises(TooLarge, match="more than 8388608 characters") as refused:
            templates.fill(template, {"a": value})
        assert refused.value.where == "parameters.a"


def test_index_outside_the_list_is_missing() -> None:
    for step in ("9" * 5_000, "9" * 10, "5", "-1", "²"):
        assert templates.look_up({"list": [1, 2]}, f"list.{step}") is templates.MISSING
    assert templates.look_up({"list": [1, 2]}, "list.1") == 2


def test_unknown_parameter_name_is_refused() -> None:
    with pytest.raises(InputError, match="is not a parameter"):
        templates.check_template("{{ b }}", {"a": Parameter(default="1")})
