"""Log folders of earlier versions open for ever: a server takes them up, replay computes weights.

``dgc-before-recipe-1`` was written when recipes were stored as their repr: one worker, six steps of
``dgc(0.25, momentum=0.8, clip_norm=1.0, warmup_steps=2)``, a snapshot, and weights.pt, which has
the weights before and after.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import thinwire as tw
from thinwire.server.run_settings import FILE

FOLDER = Path(__file__).parent / "runs" / "dgc-before-recipe-1"
RECIPE = tw.dgc(0.25, momentum=0.8, mask=True, clip_norm=1.0, warmup_steps=2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "log"))


def test_a_server_takes_up_a_log_with_an_old_recipe(folder: Path) -> None:
    with tw.Server("tcp://127.0.0.1:0", RECIPE, workers=1, log_dir=folder) as server:
        assert server.stats().version == 6
    assert (folder / FILE).read_bytes() == (FOLDER / FILE).read_bytes()


def test_another_recipe_is_refused_in_words_that_can_be_typed(folder: Path) -> None:
    words = (
        r"begun with recipe dgc\(0.25, momentum=0.8, mask=True, clip_norm=1.0, "
        r"warmup_steps=2\), not "
        r"dgc\(0.5\): start the server as before"
    )
    with pytest.raises(tw.ConfigError, match=words):
        tw.Server("tcp://127.0.0.1:0", tw.dgc(0.5), workers=1, log_dir=folder)


def test_replay_reads_its_momentum_and_gets_the_same_weights(folder: Path) -> None:
    weights = torch.load(folder / "weights.pt", weights_only=True)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    net.load_state_dict(weights["start"])
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.8, weight_decay=0.01)
    assert tw.replay_log(net, sgd, [folder]) == weights["version"]
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, weights["end"][name]), name
