"""No call lasts longer than the setting says: it ends with an error, and nothing has changed."""

import pytest

from shiftwork import Queue
from shiftwork.core.errors import OperationTimeout
from tests.stores.stalling import given, stalled


@pytest.mark.requirement("C-224")
async def test_a_stalled_call_is_given_up_with_nothing_changed(store_url: str) -> None:
    async with await Queue.open(store_url) as queue:
        assert queue.engine.store.operation_max_sec == 30
        await queue.set_setting("operation_max_sec", 1)
    async with await Queue.open(store_url) as queue:
        limit = queue.engine.store.operation_max_sec
        assert limit == 1
        with given(queue.engine.store, 30):
            made = await queue.submit(type="code")
            async with stalled(queue, made.id):
                with given(queue.engine.store, limit), pytest.raises(OperationTimeout):
                    await queue.cancel(made.id)
            assert (await queue.get(made.id)).status == "ready"
            assert (await queue.cancel(made.id)).status == "cancelled"
