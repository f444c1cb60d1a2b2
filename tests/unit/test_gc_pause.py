"""Garbage collection is paused while a large batch is built, and only then."""

import gc

import pytest

from shiftwork.model import gc_pause


def test_garbage_collection_is_paused_for_large_batches_only() -> None:
    assert gc.isenabled()
    with gc_pause.put_off(gc_pause.MANY - 1):
        assert gc.isenabled()
    with gc_pause.put_off(gc_pause.MANY):
        assert not gc.isenabled()
        with gc_pause.put_off(gc_pause.MANY):  # another batch meanwhile
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_garbage_collection_resumes_after_a_refused_batch() -> None:
    with pytest.raises(ValueError, match="refused"), gc_pause.put_off(gc_pause.MANY):
        raise ValueError("refused")
    assert gc.isenabled()


def test_garbage_collection_switched_off_by_the_program_stays_off() -> None:
    gc.disable()
    try:
        with gc_pause.put_off(gc_pause.MANY):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
