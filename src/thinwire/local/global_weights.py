"""``GlobalWeights``: what all workers agree on, beside a network that has trained on from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from thinwire.errors import ConfigError
from thinwire.gradient.network import check_gradients, check_kinds, local_part, plain_name
from thinwire.gradient.pieces import Key, flatten
from thinwire.local.check import check_local
from thinwire.optim.outer import make_outer
from thinwire.recipe import Recipe

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Changes:
    """Old weights minus new by name, flat, in float32; an exchange may write their mean there.

    ``begun`` is what the network had then, if training goes on meanwhile.
    """

    flat: dict[str, Tensor]
    begun: dict[str, Tensor]


class GlobalWeights:
    """Trained parameters and float buffers of ``net``, in float32 in CPU memory; of sharded ones
    this rank's part.

    Parameters move by the recipe's outer optimizer, buffers to the mean. Frozen parameters and
    buffers of whole numbers, such as the count of batches of a batch normalisation, are no part of
    a round: each worker has its own, which begin alike, and counts what it has seen itself.
    """

    def __init__(
        self,
        net: nn.Module,
        recipe: Recipe,
        beside: Mapping[str, Tensor] | None = None,
        *,
        sharded: bool = False,
    ) -> None:
        """``beside`` are tensors by name that are averaged like buffers, but not the network's.
        Networks of which each rank holds a part are refused, unless ``sharded``."""
        (check_kinds if sharded else check_gradients)(net)
        found = {**_exchanged(net), **(beside or {})}
        buffers = [name for name, t in found.items() if not isinstance(t, nn.Parameter)]
        if len(buffers) == len(found):
            raise ConfigError("local_steps: this network has no parameter to train")
        self.local = {name: local_part(tensor) for name, tensor in found.items()}
        """Tensors of the network itself, and those beside it, by name."""
        self.keys = [_key(n, t, vector=n in buffers) for n, t in self.local.items()]
        outer = check_local(recipe, [key for key in self.keys if key.name in buffers])
        self.tensors = {name: nn.Parameter(_copied(t)) for name, t in self.local.items()}
        """All of them as parameters of ``optimizer``, whose gradient is the mean of changes."""
        self.optimizer = make_outer(
            outer,
            [t for name, t in self.tensors.items() if name not in buffers],
            [self.tensors[name] for name in buffers],
        )
        self.trained_numel = sum(t.numel() for n, t in self.local.items() if n not in buffers)
        self._own: dict[str, Tensor] | None = None  # while the network has the global weights

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name].detach()

    @torch.no_grad()
    def changes(self, names: Iterable[str], *, goes_on: bool) -> Changes:
        """What the network has changed of these, to be sent. ``goes_on``: training continues."""
        flat, begun = dict[str, Tensor](), dict[str, Tensor]()
        for name in names:
            local = self.local[name].detach()
            # From what the network got, which a 16-bit type has rounded.
            flat[name] = flatten(self[name].to(local.dtype)).sub(flatten(local))
            if goes_on:
                begun[name] = local.clone()
        return Changes(flat, begun)

    @torch.no_grad()
    def merge(self, changes: Changes) -> None:
        """Bring the network to the new global weights. Steps since ``changes`` were taken are kept:
        they are added."""
        for name in changes.flat:
            local, begun = self.local[name].detach(), changes.begun.get(name)
            if begun is None:
                local.copy_(self[name])
            else:
                # Not in 16 bits: what they round would be pushed as if it had been learned.
                wide = torch.promote_types(local.dtype, torch.float32)
                moved = self[name].to(local).to(wide) - begun.to(wide)
                local.copy_(local.to(wide) + moved)

    @torch.no_grad()
    def apply(self, mean: Tensors) -> None:
        """Move the global weights by the mean of what all workers sent."""
        for name, tensor in self.tensors.items():
            tensor.grad = mean[name].view(tensor.shape) if name in mean else None
        self.optimizer.step()
        for tensor in self.tensors.values():
            tensor.grad = None

    @torch.no_grad()
    def take_local(self) -> None:
        """Make the network's weights the global ones, as before the first step."""
        for name, local in self.local.items():
            self[name].copy_(local.detach())

    @torch.no_grad()
    def reset_local(self) -> None:
        """Give the network the global weights; what it has changed since is dropped."""
        for name, local in self.local.items():
            local.detach().copy_(self[name])

    @property
    def lent(self) -> bool:
        """Whether the network has the global weights just now, to be looked at."""
        return self._own is not None

    def check_own(self, what: str) -> None:
        """Refuse what needs the network's own weights while it has the global ones."""
        if self.lent:
            raise ConfigError(f"{what} within global_weights(), which are only lent")

    @contextmanager
    def in_network(self) -> Iterator[None]:
        """The network has the global weights in here, and its own again after."""
        if self.lent:
            yield
            return
        self._own = {name: local.detach().clone() for name, local in self.local.items()}
        self.reset_local()
        try:
            yield
        finally:
            own, self._own = self._own, None
            with torch.no_grad():
                for name, local in self.local.items():
                    local.detach().copy_(own[name])

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """In plain tensors, by name: the global weights, the state of their optimizer, and the
        network's own weights, also while it has the global ones."""
        state, own = self.optimizer.state, self._own or self.local
        return {
            "global": {name: self[name].clone() for name in self.local},
            "outer": {
                name: {k: v.clone() for k, v in state[p].items() if isinstance(v, Tensor)}
                for name, p in self.tensors.items()
                if state.get(p)
            },
            "local": {name: local.detach().clone() for name, local in own.items()},
        }

    def check_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Refuse the state of another network."""
        for part in ("global", "local"):
            _check_fits(state.get(part, {}), self.local, part)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over a copy of what ``state_dict`` returned."""
        self.check_state_dict(state)
        for name, local in self.local.items():
            self[name].copy_(state["global"][name])
            local.detach().copy_(state["local"][name])
        for name, parameter in self.tensors.items():
            kept = state.get("outer", {}).get(name, {})
            self.optimizer.state[parameter] = {k: v.clone() for k, v in kept.items()}


def _exchanged(net: nn.Module) -> dict[str, Tensor]:
    """Trained parameters and float buffers, each once, in the order of modules."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for prefix, module in net.named_modules():
        trained = ((n, p) for n, p in module.named_parameters(recurse=False) if p.requires_grad)
        floats = ((n, b) for n, b in module.named_buffers(recurse=False) if b.is_floating_point())
        for name, tensor in (*trained, *floats):
            if id(tensor) not in seen and local_part(tensor).numel():
                seen.add(id(tensor))
                found[plain_name(f"{prefix}.{name}" if prefix else name)] = tensor
    return found


def _key(name: str, tensor: Tensor, *, vector: bool) -> Key:
    """Buffers are vectors, whatever their shape, so that policies leave them precise."""
    return Key(name, (tensor.numel(),) if vector else tuple(tensor.shape))


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32, copy=True).contiguous()


def _check_fits(state: Mapping[str, object], tensors: Tensors, part: str) -> None:
    shapes = {n: tuple(t.shape) if isinstance(t, Tensor) else None for n, t in state.items()}
    expected = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, shape in expected.items():
        if shapes.get(name) != shape:
            found = f"has shape {shapes[name]}" if name in shapes else "is missing"
            raise ConfigError(
                f"the {part} weights of a checkpoint: {name} {found}, expected {shape}: is it of "
                "local steps of this network?"
            )
