"""Parameter shapes of the networks whose sizes the Deep Gradient Compression paper reports."""

from __future__ import annotations

import math

Shapes = dict[str, tuple[int, ...]]


def alexnet() -> Shapes:
    """AlexNet with grouped convolutions: 60,965,224 parameters."""
    weights = {
        "conv1": (96, 3, 11, 11),
        "conv2": (256, 48, 5, 5),
        "conv3": (384, 256, 3, 3),
        "conv4": (384, 192, 3, 3),
        "conv5": (256, 192, 3, 3),
        "fc6": (4096, 9216),
        "fc7": (4096, 4096),
        "fc8": (1000, 4096),
    }
    shapes: Shapes = {}
    for name, shape in weights.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def resnet50() -> Shapes:
    """ResNet-50 for 1000 classes: 25,557,032 parameters."""
    shapes = _conv_and_norm("stem", 3, 64, 7)
    channels = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            name = f"layer{stage + 1}.{block}"
            shapes |= _conv_and_norm(f"{name}.1", channels, width, 1)
            shapes |= _conv_and_norm(f"{name}.2", width, width, 3)
            shapes |= _conv_and_norm(f"{name}.3", width, 4 * width, 1)
            if block == 0:
                shapes |= _conv_and_norm(f"{name}.shortcut", channels, 4 * width, 1)
            channels = 4 * width
    return shapes | {"fc.weight": (1000, 2048), "fc.bias": (1000,)}


def ptb_lstm() -> Shapes:
    """Two LSTM layers of 1500 with tied embeddings over 10,000 words: 51,034,000 parameters."""
    shapes: Shapes = {"embedding.weight": (10_000, 1500), "softmax.bias": (10_000,)}
    for layer in range(2):
        for side in ("input", "hidden"):
            shapes[f"lstm.{layer}.{side}.weight"] = (6000, 1500)
            shapes[f"lstm.{layer}.{side}.bias"] = (6000,)
    return shapes


def count(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def _conv_and_norm(name: str, inputs: int, outputs: int, kernel: int) -> Shapes:
    return {
        f"{name}.conv.weight": (outputs, inputs, kernel, kernel),
        f"{name}.norm.weight": (outputs,),
        f"{name}.norm.bias": (outputs,),
    }
