"""Staging: buckets of any number format become float32 here, and come back."""

from __future__ import annotations

import pytest
import torch

from thinwire.hooks.staging import Staging


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_a_bucket_is_unscaled_here_and_scaled_again_on_its_way_back(
    dtype: torch.dtype, scale: float
) -> None:
    buffer = torch.arange(8, dtype=dtype) * scale
    staged = Staging().stage(0, buffer, scale=scale)
    flat = staged.flat()
    assert flat.dtype == torch.float32
    assert torch.equal(flat, torch.arange(8.0))
    flat += 1
    staged.store()
    assert torch.equal(buffer, torch.arange(1, 9, dtype=dtype) * scale)


def test_float32_on_the_cpu_is_used_where_it_is() -> None:
    buffer = torch.ones(5)
    assert Staging().stage(0, buffer, scale=1.0).flat().data_ptr() == buffer.data_ptr()


def test_memory_is_allocated_once_per_bucket() -> None:
    staging, buffer = Staging(), torch.ones(5, dtype=torch.float64)
    first, again, other = (
        staging.stage(index, buffer, scale=1.0).flat().data_ptr() for index in (0, 0, 1)
    )
    assert first == again
    assert first != other


def test_the_future_gives_the_bucket_itself() -> None:
    buffer = torch.ones(5, dtype=torch.bfloat16)
    staged = Staging().stage(0, buffer, scale=1.0)
    future = staged.future()
    staged.flat().mul_(2)
    staged.store()
    staged.complete(future)
    assert future.wait() is buffer
    assert torch.equal(buffer, torch.full((5,), 2, dtype=torch.bfloat16))
