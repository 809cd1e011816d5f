"""Networks have the sizes that their papers print."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from thinwire.errors import ConfigError
from thinwire_lab.models.convolutional import (
    AlexNet,
    AlexNetSettings,
    ResNet18Settings,
    ResNetSettings,
)
from thinwire_lab.models.language import BERTSettings, LSTMSettings
from thinwire_lab.seeding import seeded

SMALL_BERT = BERTSettings(words=50, context=12, layers=2, heads=2, width=16)


def numel(net: nn.Module) -> int:
    return sum(x.numel() for x in net.parameters())


@pytest.mark.parametrize(
    ("depth", "exact", "millions"),
    [(20, 269_722, 0.27), (32, 464_154, 0.46), (56, 853_018, 0.85), (110, 1_727_962, 1.7)],
)
def test_cifar_resnets_are_as_large_as_he_et_al_say(
    depth: int, exact: int, millions: float
) -> None:
    net = ResNetSettings(depth).make()
    assert numel(net) == exact
    assert round(exact / 1e6, 2 if millions < 1 else 1) == millions


def test_resnet_layers_are_as_many_as_its_depth() -> None:
    net = ResNetSettings(20).make()
    layers = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 20
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_resnet18_has_11_million_parameters() -> None:
    assert numel(ResNet18Settings().make()) == 11_173_962
    assert ResNet18Settings(width=4).make()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_alexnet_has_the_size_it_says() -> None:
    net = AlexNetSettings().make()
    assert f"{numel(net):,}" in str(AlexNet.__doc__)
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize(
    ("settings", "exact"),
    [
        (LSTMSettings(width=200), 4_653_200),
        (LSTMSettings(width=650), 19_780_400),
        (LSTMSettings(width=1500, tied=True), 51_034_000),
    ],
    ids=["small", "medium", "large: the DGC paper's 194.68 MB"],
)
def test_lstms_are_as_large_as_the_papers_say(settings: LSTMSettings, exact: int) -> None:
    with torch.device("meta"):
        assert numel(settings.make()) == exact


def test_dgc_paper_prints_the_size_of_the_large_lstm() -> None:
    assert round(4 * 51_034_000 / 2**20, 2) == 194.68


def test_lstm_goes_on_from_the_state_it_is_given() -> None:
    net = LSTMSettings(words=20, width=8).make()
    words = torch.arange(12).view(2, 6)
    whole, end = net(words)
    first, state = net(words[:, :3])
    second, same_end = net(words[:, 3:], state)
    torch.testing.assert_close(torch.cat([first, second], dim=1), whole)
    torch.testing.assert_close(same_end, end)


def test_bert_sees_both_sides_and_cannot_answer_with_the_mask() -> None:
    with seeded(0):
        net = SMALL_BERT.make()
    words = torch.arange(12).view(1, 12)
    changed = words.clone()
    changed[0, 11] = SMALL_BERT.mask
    assert net(words).shape == (1, 12, SMALL_BERT.words)
    assert not torch.equal(net(words)[0, 0], net(changed)[0, 0])


def test_bert_answers_only_where_it_is_asked() -> None:
    net, words = SMALL_BERT.make(), torch.arange(24).view(2, 12)
    asked = words % 5 == 0
    assert torch.allclose(net(words, asked), net(words)[asked], atol=1e-6)


def test_bert_of_the_paper_is_bert_base_without_its_larger_vocabulary() -> None:
    with torch.device("meta"):
        net = BERTSettings(context=512, layers=12, heads=12, width=768).make()
    # BERT-base: 85,054,464 in its twelve blocks; the rest is words, positions and the head.
    assert sum(p.numel() for p in net.get_submodule("blocks").parameters()) == 85_054_464


def test_impossible_networks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"depth must be 6 n \+ 2, got 21"):
        ResNetSettings(21)
    with pytest.raises(ConfigError, match="multiple of heads"):
        BERTSettings(width=10, heads=4)
    with pytest.raises(ConfigError, match="dropout must be in"):
        LSTMSettings(dropout=1.0)
