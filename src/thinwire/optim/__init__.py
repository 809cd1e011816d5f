"""Optimizers that fit compressed gradients; ordinary ``torch.optim.Optimizer``s."""

from thinwire.optim.clan import CLAN
from thinwire.optim.lans import LANS
from thinwire.optim.sgd import SGD

__all__ = ["CLAN", "LANS", "SGD"]
