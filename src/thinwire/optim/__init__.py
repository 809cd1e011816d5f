"""Optimizers that fit compressed gradients; ordinary ``torch.optim.Optimizer``s."""

from thinwire.optim.adam import AdamW
from thinwire.optim.delayed_nesterov import DelayedNesterov
from thinwire.optim.lans import CLAN, LANS
from thinwire.optim.sgd import SGD

__all__ = ["CLAN", "LANS", "SGD", "AdamW", "DelayedNesterov"]
