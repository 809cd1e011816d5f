"""What holds for every test."""

from __future__ import annotations

import torch

# Several test processes share few processors, and OpenMP threads that wait for each other spin:
# tests with small tensors took 20 times as long.
torch.set_num_threads(1)
