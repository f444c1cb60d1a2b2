"""The search for garbage is put off while a large batch is built, and only then."""

import gc

import pytest

from shiftwork.model import gc_pause


def test_search_is_put_off_for_many_and_on_again_after() -> None:
    assert gc.isenabled()
    with gc_pause.put_off(gc_pause.MANY - 1):
        assert gc.isenabled()
    with gc_pause.put_off(gc_pause.MANY):
        assert not gc.isenabled()
        with gc_pause.put_off(gc_pause.MANY):  # another batch meanwhile
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_search_is_on_again_after_a_batch_that_is_refused() -> None:
    with pytest.raises(ValueError, match="refused"), gc_pause.put_off(gc_pause.MANY):
        raise ValueError("refused")
    assert gc.isenabled()


def test_search_that_the_program_has_switched_off_stays_off() -> None:
    gc.disable()
    try:
        with gc_pause.put_off(gc_pause.MANY):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
