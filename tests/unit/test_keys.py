"""Protection keys: one text for each, and what they cover."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shiftwork.model import keys
from shiftwork.model.errors import InputError, TooLarge
from shiftwork.model.keys import Key

NAMES = st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).map(str.strip).filter(bool)


@given(st.builds(Key, NAMES, NAMES, NAMES, NAMES).filter(lambda key: key != Key()))
def test_key_text_is_parsed_back(key: Key) -> None:
    assert keys.parse(key.text) == key


def test_key_parts_in_any_order_are_normalised() -> None:
    key = keys.parse("model:openai/gpt-5:free, provider:openai")
    assert key == Key(provider="openai", model="openai/gpt-5:free")
    assert key.text == "provider:openai,model:openai/gpt-5:free"


def test_key_covers_every_use_with_its_parts() -> None:
    use = Key("openai", "team-a", "gpt-5", "code")
    assert Key(provider="openai").covers(use)
    assert Key(account="team-a", model="gpt-5").covers(use)
    assert not Key(account="team-a", model="gpt-4").covers(use)
    assert not Key(model="gpt-5").covers(Key(type="code"))


@pytest.mark.parametrize("text", ["", "opus", "model:", "model:a,model:b", "colour:red", "model:a,", ":x"])
def test_invalid_key_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InputError) as refused:
        keys.parse(text)
    assert refused.value.where == "key"
    assert "provider:NAME" in refused.value.hint


def test_too_long_key_name_is_refused() -> None:
    with pytest.raises(TooLarge):
        keys.parse("model:" + "x" * 256)
