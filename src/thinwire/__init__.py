"""Distributed PyTorch training that sends 15 to 1000 times fewer bytes.

Names are imported when they are first used, so that ``import thinwire`` takes no time and the
command line can answer without torch.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thinwire import optim as optim
    from thinwire.choice import (
        recipe_for as recipe_for,
        recipes as recipes,
    )
    from thinwire.client.client import (
        Client as Client,
    )
    from thinwire.codec.chunk_topk import (
        ChunkTopK as ChunkTopK,
    )
    from thinwire.codec.dense import (
        BFloat16 as BFloat16,
        Float16 as Float16,
        Float32 as Float32,
    )
    from thinwire.codec.dither import (
        Dither as Dither,
    )
    from thinwire.codec.policy import (
        by_name as by_name,
        small_as as small_as,
        unless_dense_is_cheaper as unless_dense_is_cheaper,
        vectors_as as vectors_as,
    )
    from thinwire.codec.randomk import (
        RandomK as RandomK,
    )
    from thinwire.codec.registry import (
        codecs as codecs,
        make_codec as make_codec,
    )
    from thinwire.codec.schedule import (
        warmup as warmup,
    )
    from thinwire.codec.sign import (
        OneBit as OneBit,
    )
    from thinwire.codec.sparse import (
        Nonzero as Nonzero,
    )
    from thinwire.codec.topk import (
        TopK as TopK,
    )
    from thinwire.compressor.compressor import (
        Compressor as Compressor,
    )
    from thinwire.compressor.encoded import (
        Encoded as Encoded,
    )
    from thinwire.errors import (
        ConfigError as ConfigError,
        CorruptPayloadError as CorruptPayloadError,
        LocalProtocolError as LocalProtocolError,
        LogError as LogError,
        NonFiniteError as NonFiniteError,
        ProtocolError as ProtocolError,
        Refused as Refused,
        RemoteProtocolError as RemoteProtocolError,
        ThinwireError as ThinwireError,
        TransportClosed as TransportClosed,
        TransportError as TransportError,
        TransportTimeout as TransportTimeout,
        UnknownCodecError as UnknownCodecError,
        WorkerLost as WorkerLost,
    )
    from thinwire.feedback.base import (
        NoFeedback as NoFeedback,
        chain as chain,
    )
    from thinwire.feedback.clip import (
        Clip as Clip,
    )
    from thinwire.feedback.momentum import (
        AdamMomentum as AdamMomentum,
        Momentum as Momentum,
        SGDMomentum as SGDMomentum,
    )
    from thinwire.feedback.residual import (
        Residual as Residual,
    )
    from thinwire.gradient.pieces import (
        Key as Key,
        Piece as Piece,
    )
    from thinwire.hooks.ddp import (
        compress_ddp as compress_ddp,
    )
    from thinwire.hooks.fsdp.compress import (
        compress_fsdp as compress_fsdp,
    )
    from thinwire.hooks.handle import (
        Compression as Compression,
    )
    from thinwire.hooks.local_exchange import (
        LocalSteps as LocalSteps,
    )
    from thinwire.hooks.local_steps import (
        local_steps as local_steps,
    )
    from thinwire.hooks.module import (
        compress_module as compress_module,
    )
    from thinwire.hooks.module_gradients import (
        ModuleCompression as ModuleCompression,
    )
    from thinwire.keys.make import (
        new_keys as new_keys,
    )
    from thinwire.keys.settings import (
        ServerKeys as ServerKeys,
        WorkerKeys as WorkerKeys,
    )
    from thinwire.local.rounds import (
        Rounds as Rounds,
    )
    from thinwire.recipe import (
        Outer as Outer,
        Recipe as Recipe,
        adam as adam,
        clan as clan,
        dense as dense,
        dgc as dgc,
        diloco as diloco,
        doublesqueeze as doublesqueeze,
        local_average as local_average,
        momentum_sgd as momentum_sgd,
        sparseloco as sparseloco,
    )
    from thinwire.replay.replay import (
        replay_log as replay_log,
    )
    from thinwire.server.log.settings import (
        LogSettings as LogSettings,
    )
    from thinwire.server.server import (
        Server as Server,
    )
    from thinwire.virtual.cluster import (
        VirtualCluster as VirtualCluster,
        VirtualStats as VirtualStats,
    )
    from thinwire.watch.stats import (
        ClientStats as ClientStats,
        ServerStats as ServerStats,
        Stats as Stats,
    )
    from thinwire.watch.trace import (
        Trace as Trace,
        merge_traces as merge_traces,
        trace as trace,
    )

_NAMES = {
    "thinwire.choice": ("recipe_for", "recipes"),
    "thinwire.client.client": ("Client",),
    "thinwire.codec.chunk_topk": ("ChunkTopK",),
    "thinwire.codec.dense": ("BFloat16", "Float16", "Float32"),
    "thinwire.codec.dither": ("Dither",),
    "thinwire.codec.policy": ("by_name", "small_as", "unless_dense_is_cheaper", "vectors_as"),
    "thinwire.codec.randomk": ("RandomK",),
    "thinwire.codec.registry": ("codecs", "make_codec"),
    "thinwire.codec.schedule": ("warmup",),
    "thinwire.codec.sign": ("OneBit",),
    "thinwire.codec.sparse": ("Nonzero",),
    "thinwire.codec.topk": ("TopK",),
    "thinwire.compressor.compressor": ("Compressor",),
    "thinwire.compressor.encoded": ("Encoded",),
    "thinwire.errors": (
        "ConfigError",
        "CorruptPayloadError",
        "LocalProtocolError",
        "LogError",
        "NonFiniteError",
        "ProtocolError",
        "Refused",
        "RemoteProtocolError",
        "ThinwireError",
        "TransportClosed",
        "TransportError",
        "TransportTimeout",
        "UnknownCodecError",
        "WorkerLost",
    ),
    "thinwire.feedback.base": ("NoFeedback", "chain"),
    "thinwire.feedback.clip": ("Clip",),
    "thinwire.feedback.momentum": ("AdamMomentum", "Momentum", "SGDMomentum"),
    "thinwire.feedback.residual": ("Residual",),
    "thinwire.gradient.pieces": ("Key", "Piece"),
    "thinwire.hooks.ddp": ("compress_ddp",),
    "thinwire.hooks.fsdp.compress": ("compress_fsdp",),
    "thinwire.hooks.handle": ("Compression",),
    "thinwire.hooks.local_exchange": ("LocalSteps",),
    "thinwire.hooks.local_steps": ("local_steps",),
    "thinwire.hooks.module": ("compress_module",),
    "thinwire.hooks.module_gradients": ("ModuleCompression",),
    "thinwire.keys.make": ("new_keys",),
    "thinwire.keys.settings": ("ServerKeys", "WorkerKeys"),
    "thinwire.local.rounds": ("Rounds",),
    "thinwire.recipe": (
        "Outer",
        "Recipe",
        "adam",
        "clan",
        "dense",
        "dgc",
        "diloco",
        "doublesqueeze",
        "local_average",
        "momentum_sgd",
        "sparseloco",
    ),
    "thinwire.replay.replay": ("replay_log",),
    "thinwire.server.log.settings": ("LogSettings",),
    "thinwire.server.server": ("Server",),
    "thinwire.virtual.cluster": ("VirtualCluster", "VirtualStats"),
    "thinwire.watch.stats": ("ClientStats", "ServerStats", "Stats"),
    "thinwire.watch.trace": ("Trace", "merge_traces", "trace"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOMES, "optim"])


def __getattr__(name: str) -> object:
    if name == "__version__":
        return version("thinwire")
    if name == "optim":
        return importlib.import_module("thinwire.optim")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # so that this is called once for each name
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
