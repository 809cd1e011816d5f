"""``SignRuns`` say only what is true of the momentum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from thinwire.gradient.pieces import Key, Piece
from thinwire.optim.adam import AdamSettings, AdamState
from thinwire.optim.sign_runs import SignRuns

NUMEL = 2 * 64 * 64 + 10
KEY = Key("w", (NUMEL,))
WHOLE = Piece.whole(KEY)
SETTINGS = AdamSettings(1e-3, (0.9, 0.999), 1e-8, 0.0, decoupled=True, maximize=False)


def made(momentum: Tensor) -> tuple[SignRuns, AdamState]:
    state = AdamState(torch.ones(()), torch.zeros(NUMEL), torch.ones(NUMEL))
    runs = SignRuns()
    SETTINGS.apply_momentum(torch.zeros(NUMEL), momentum, state, runs)
    return runs, state


def one_bit() -> Tensor:
    return torch.ones(NUMEL).copysign(torch.randn(NUMEL))


def test_they_are_of_the_tensor_that_the_step_wrote() -> None:
    runs, state = made(one_bit())
    assert runs.of_piece(WHOLE, state.exp_avg) is not None
    assert runs.of_piece(WHOLE, state.exp_avg.clone()) is None
    # Another view of the same memory has the same versions, but nobody says for how long.
    assert runs.of_piece(WHOLE, state.exp_avg.view(-1)) is None


def test_there_are_none_before_a_step_and_of_other_momentum() -> None:
    assert SignRuns().of_piece(WHOLE, torch.zeros(NUMEL)) is None
    runs, state = made(torch.randn(NUMEL))
    assert runs.of_piece(WHOLE, state.exp_avg) is None


def test_a_change_that_no_sample_shows_is_seen_by_its_version() -> None:
    runs, state = made(one_bit())
    state.exp_avg[65] *= 2  # of 129 runs 64 are compared
    assert runs.of_piece(WHOLE, state.exp_avg) is None


@pytest.mark.parametrize(("start", "stop"), [(0, 640), (64, NUMEL), (128, 192)])
def test_a_piece_at_whole_runs_has_its_part(start: int, stop: int) -> None:
    runs, state = made(one_bit())
    whole, part = (runs.of_piece(p, state.exp_avg) for p in (WHOLE, Piece(KEY, start, stop)))
    assert whole is not None
    assert part is not None
    assert part == whole[12 * start // 64 : 12 * -(-stop // 64)]


@pytest.mark.parametrize(("start", "stop"), [(1, 640), (0, 65), (32, NUMEL)])
def test_any_other_piece_has_none(start: int, stop: int) -> None:
    runs, state = made(one_bit())
    assert runs.of_piece(Piece(KEY, start, stop), state.exp_avg) is None


def test_every_step_of_ours_counts_as_a_change() -> None:
    """That the sample differs is no proof that it always will."""
    _, state = made(one_bit())
    parameter, given = torch.zeros(NUMEL), torch.ones(NUMEL)
    versions = [state.exp_avg._version]
    SETTINGS.step(parameter, given, state)
    versions.append(state.exp_avg._version)
    SETTINGS.apply_momentum(parameter, given, state)
    versions.append(state.exp_avg._version)
    SETTINGS.apply_gradient(parameter, given, state, gap=2)
    versions.append(state.exp_avg._version)
    assert versions == sorted(set(versions))


def test_tensors_of_inference_mode_have_none() -> None:
    with torch.inference_mode():
        runs, state = made(one_bit())
        assert runs.of_piece(WHOLE, state.exp_avg) is None


def test_they_keep_no_momentum_alive() -> None:
    runs, state = made(one_bit())
    other = state.exp_avg.clone()
    del state
    assert runs.of_piece(WHOLE, other) is None
    assert runs._true_of is not None
    assert runs._true_of() is None
