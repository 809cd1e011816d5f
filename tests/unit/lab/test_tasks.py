"""Tasks: what every one of them keeps to, and what is particular to some."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.unit.lab.runs import TEXT, words
from thinwire.errors import ConfigError, ThinwireError
from thinwire_lab.data import cifar
from thinwire_lab.data.files import Pictures, PictureSet
from thinwire_lab.models.convolutional import ResNetSettings
from thinwire_lab.models.language import BERTSettings, GPTSettings, LSTMSettings
from thinwire_lab.seeding import generator_from, seed_from, seeded
from thinwire_lab.tasks.base import SCALES, Architecture, Memory, Training, Work
from thinwire_lab.tasks.language import StreamWork, columns
from thinwire_lab.tasks.masked import MaskedWork, hide
from thinwire_lab.tasks.optimizers import (
    AdamWSettings,
    Constant,
    Cosine,
    Decay,
    Divide,
    LANSSettings,
    Line,
    Plateau,
    Schedule,
    SGDSettings,
)
from thinwire_lab.tasks.ours import CharacterFeed
from thinwire_lab.tasks.pictures import PictureWork, augmented, unchanged
from thinwire_lab.tasks.registry import all_tasks, find_task

WORKERS = 2


def pictures(count: int) -> Pictures:
    pixels = torch.randint(256, (count, 3, 32, 32), generator=generator_from(5))
    return Pictures(pixels.to(torch.uint8), torch.arange(count) % 10)


def works() -> dict[str, tuple[Work, Architecture]]:
    data = PictureSet(pictures(24), pictures(6))
    change = cifar.standardised
    return {
        "pictures": (PictureWork(data, 4, augmented, change, WORKERS, 0), ResNetSettings(8)),
        "stream": (
            StreamWork(words(), 3, 5, workers=WORKERS, seed=0),
            LSTMSettings(words=30, width=8, dropout=0.5),
        ),
        "masked": (
            MaskedWork(words(), 3, 12, workers=WORKERS, seed=0),
            BERTSettings(words=30, context=12, layers=1, heads=2, width=8),
        ),
        "characters": (
            CharacterFeed(2, 8, max_nbytes=20_000).open(None, workers=WORKERS, seed=0),
            GPTSettings(context=8, layers=1, heads=2, width=8),
        ),
    }


WORKS = works()


@pytest.mark.parametrize("name", WORKS)
def test_a_batch_depends_on_seed_step_worker_and_memory_alone(name: str) -> None:
    work, model = WORKS[name]
    net = seeded_net(model)
    before = torch.get_rng_state()
    memory: Memory = {}
    for step in range(3):
        earlier = copy.deepcopy(memory)
        loss = work.loss(net, step=step, worker=1, memory=memory)
        again = work.loss(net, step=step, worker=1, memory=earlier)
        assert torch.equal(loss, again)
        assert loss.requires_grad
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", WORKS)
def test_workers_and_steps_have_batches_of_their_own(name: str) -> None:
    work, model = WORKS[name]
    net = seeded_net(model)
    losses = {
        work.loss(net, step=step, worker=worker, memory={}).item()
        for step in range(2)
        for worker in range(WORKERS)
    }
    assert len(losses) == 4


@torch.no_grad()
@pytest.mark.parametrize("name", WORKS)
def test_scores_are_the_same_every_time(name: str) -> None:
    work, model = WORKS[name]
    net = seeded_net(model).eval()
    assert work.validate(net) == work.validate(net)
    score = work.test(net)
    assert score.metric in ("accuracy", "perplexity")
    assert score.loss > 0


def seeded_net(model: Architecture) -> torch.nn.Module:
    with seeded(1):
        return model.make()


def test_an_epoch_shows_every_picture_once() -> None:
    data = PictureSet(Pictures(torch.arange(26.0), torch.arange(26)), pictures(1))
    work = PictureWork(data, 4, unchanged, Tensor.float, WORKERS, 0)
    assert work.epoch_steps == 3
    epochs = [
        [
            number
            for step in range(3 * epoch, 3 * epoch + 3)
            for worker in range(WORKERS)
            for number in work._numbers(step, worker).tolist()
        ]
        for epoch in range(2)
    ]
    assert all(len(set(epoch)) == 24 for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_augmented_pictures_are_shifted_mirrored_or_both() -> None:
    picture = torch.arange(1, 3 * 8 * 8 + 1).view(1, 3, 8, 8)
    padded = torch.nn.functional.pad(picture, (4, 4, 4, 4))
    possible = {
        tuple(one.flatten().tolist())
        for down in range(9)
        for along in range(9)
        for cut in [padded[0, :, down : down + 8, along : along + 8]]
        for one in (cut, cut.flip(2))
    }
    found = augmented(picture.expand(500, -1, -1, -1), generator_from(0))
    assert found.shape == (500, 3, 8, 8)
    distinct = {tuple(one.flatten().tolist()) for one in found}
    assert distinct <= possible
    assert len(distinct) > 100


def test_streams_are_read_from_beginning_to_end_with_their_state() -> None:
    work = StreamWork(words(), 3, 5, workers=WORKERS, seed=0)
    net = seeded_net(LSTMSettings(words=30, width=8))
    memory: Memory = {}
    for step in range(work.epoch_steps):
        work.loss(net, step=step, worker=0, memory=memory)
    own = columns(TEXT, 3 * WORKERS)[:3, : 5 * work.epoch_steps]
    _, (hidden, cell) = net(own)
    torch.testing.assert_close((memory["hidden"], memory["cell"]), (hidden, cell))
    assert not memory["hidden"].requires_grad
    first = work.loss(net, step=work.epoch_steps, worker=0, memory=memory)
    assert torch.equal(first, work.loss(net, step=0, worker=0, memory={}))


def test_words_are_hidden_as_in_bert() -> None:
    rows = torch.randint(1000, (500, 40), generator=generator_from(1))
    shown, asked = hide(rows, 1000, generator_from(2))
    assert set(asked.sum(1).tolist()) == {6}
    assert torch.equal(shown[~asked], rows[~asked])
    hidden = (shown == 1000)[asked].float().mean()
    kept = (shown == rows)[asked].float().mean()
    assert abs(float(hidden) - 0.8) < 0.03
    assert abs(float(kept) - 0.1) < 0.03


def test_too_little_data_is_refused() -> None:
    few = PictureSet(pictures(7), pictures(1))
    with pytest.raises(ConfigError, match="7 pictures are too few for 2 workers, 4 each"):
        PictureWork(few, 4, unchanged, cifar.standardised, WORKERS, 0)
    with pytest.raises(ConfigError, match="1200 words are too few for 2 workers with 9 rows of 90"):
        StreamWork(words(), 9, 90, workers=WORKERS, seed=0)
    with pytest.raises(ConfigError, match="200 words are too few for rows of 200"):
        MaskedWork(words(), 1, 200, workers=WORKERS, seed=0)


def test_other_numbers_are_another_seed() -> None:
    seeds = {seed_from(*numbers) for numbers in ((0,), (1,), (0, 0), (0, 1), (1, 0), (2**62, 1))}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_every_task_is_found_by_name_and_scale() -> None:
    tasks = all_tasks()
    assert len({(task.name, task.scale) for task in tasks}) == len(tasks)
    for task in tasks:
        assert find_task(task.name, task.scale) == task
        assert task.about
    assert {task.scale for task in tasks} == set(SCALES)
    assert {"smoke", "small"} <= {task.scale for task in tasks if task.name == "gpt"}


def test_papers_settings() -> None:
    resnet = find_task("resnet110", "paper").training
    assert [resnet.rate(step, 390, ()) for step in (390, 82 * 390, 123 * 390)] == pytest.approx(
        [0.1, 0.01, 0.001]
    )
    assert (resnet.epochs, resnet.sparse_epochs, resnet.optimizer.momentum) == (164, 4, 0.9)
    lstm = find_task("lstm-large", "paper").training
    assert (lstm.clip_norm, lstm.optimizer, lstm.learning_rate) == (0.25, SGDSettings(), 20.0)
    clan = find_task("bert", "paper").training
    assert (clan.learning_rate, clan.optimizer) == (0.00125, LANSSettings())


def test_optimizers_spare_vectors_the_weight_decay() -> None:
    net = torch.nn.Linear(3, 2)
    for settings, decay in ((AdamWSettings(), 0.1), (LANSSettings(), 0.01)):
        matrices, vectors = settings.make(net).param_groups
        assert (matrices["params"], matrices["weight_decay"]) == ([net.weight], decay)
        assert (vectors["params"], vectors["weight_decay"]) == ([net.bias], 0.0)
    assert AdamWSettings().make(net).defaults["betas"] == (0.9, 0.95)
    with pytest.raises(ConfigError, match="AdamWSettings: weight_decay must be"):
        AdamWSettings(weight_decay=-1.0)


def test_unknown_names_and_scales_are_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"named 'resnt20'; did you mean resnet20\? Tasks: "):
        find_task("resnt20", "small")
    with pytest.raises(ConfigError, match="gpt has no scale 'paper', expected one of smoke, small"):
        find_task("gpt", "paper")


@pytest.mark.parametrize(
    "name", ["fashion", "resnet20", "resnet18", "lstm-small", "bert", "penn-adamw"]
)
@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_tasks_say_which_data_is_missing(name: str, scale: str, tmp_path: Path) -> None:
    feed = find_task(name, scale).feed
    with pytest.raises(ThinwireError, match=rf"^put .* into {tmp_path / feed.needs}$"):
        feed.open(tmp_path, workers=2, seed=0)


def test_schedules() -> None:
    def factors(schedule: Schedule, losses: tuple[float, ...] = ()) -> list[float]:
        return [schedule.factor(e, part=e / 8, losses=losses) for e in (0.0, 2.5, 4.0, 7.0)]

    assert factors(Constant()) == [1, 1, 1, 1]
    assert factors(Divide(at=(0.5, 0.75))) == [1, 1, 0.1, 0.01]
    assert factors(Decay(after=3, by=2.0)) == [1, 1, 0.25, 0.03125]
    assert factors(Line()) == [1, 1 - 2.5 / 8, 0.5, 0.125]
    assert factors(Cosine())[2] == pytest.approx(0.5)
    assert factors(Plateau(by=4.0), (3.0, 2.0, 2.0, 2.5, 1.0))[0] == 1 / 16


def test_a_shortened_training_shrinks_in_all_its_parts() -> None:
    training = Training(
        16, 1.0, SGDSettings(), Divide(at=(0.5,)), rise_epochs=2, sparse_epochs=4
    ).lasting(4)
    assert (training.rise_epochs, training.sparse_epochs) == (0.5, 1)
    rates = [training.rate(step, 10, ()) for step in (0, 4, 19, 20)]
    assert rates == pytest.approx([0.2, 1.0, 1.0, 0.1])
