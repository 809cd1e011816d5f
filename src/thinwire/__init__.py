"""Distributed PyTorch training that sends 30 to 1000 times fewer bytes.

Names are imported when they are first used, so that ``import thinwire`` takes no time and the
command line can answer without torch.
"""

from __future__ import annotations

import importlib
import warnings
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thinwire import optim as optim
    from thinwire.client.client import (
        Client as Client,
    )
    from thinwire.codec.dense import (
        BFloat16 as BFloat16,
    )
    from thinwire.codec.dense import (
        Float16 as Float16,
    )
    from thinwire.codec.dense import (
        Float32 as Float32,
    )
    from thinwire.codec.dither import (
        Dither as Dither,
    )
    from thinwire.codec.policy import (
        by_name as by_name,
    )
    from thinwire.codec.policy import (
        small_as as small_as,
    )
    from thinwire.codec.policy import (
        unless_dense_is_cheaper as unless_dense_is_cheaper,
    )
    from thinwire.codec.policy import (
        vectors_as as vectors_as,
    )
    from thinwire.codec.randomk import (
        RandomK as RandomK,
    )
    from thinwire.codec.registry import (
        codecs as codecs,
    )
    from thinwire.codec.registry import (
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
    )
    from thinwire.errors import (
        CorruptPayloadError as CorruptPayloadError,
    )
    from thinwire.errors import (
        LocalProtocolError as LocalProtocolError,
    )
    from thinwire.errors import (
        LogError as LogError,
    )
    from thinwire.errors import (
        NonFiniteError as NonFiniteError,
    )
    from thinwire.errors import (
        ProtocolError as ProtocolError,
    )
    from thinwire.errors import (
        Refused as Refused,
    )
    from thinwire.errors import (
        RemoteProtocolError as RemoteProtocolError,
    )
    from thinwire.errors import (
        ThinwireError as ThinwireError,
    )
    from thinwire.errors import (
        TransportClosed as TransportClosed,
    )
    from thinwire.errors import (
        TransportError as TransportError,
    )
    from thinwire.errors import (
        TransportTimeout as TransportTimeout,
    )
    from thinwire.errors import (
        UnknownCodecError as UnknownCodecError,
    )
    from thinwire.errors import (
        WorkerLost as WorkerLost,
    )
    from thinwire.feedback.base import (
        NoFeedback as NoFeedback,
    )
    from thinwire.feedback.base import (
        chain as chain,
    )
    from thinwire.feedback.clip import (
        Clip as Clip,
    )
    from thinwire.feedback.momentum import (
        Momentum as Momentum,
    )
    from thinwire.feedback.residual import (
        Residual as Residual,
    )
    from thinwire.gradient.pieces import (
        Key as Key,
    )
    from thinwire.gradient.pieces import (
        Piece as Piece,
    )
    from thinwire.hooks.ddp import (
        compress_ddp as compress_ddp,
    )
    from thinwire.hooks.handle import (
        Compression as Compression,
    )
    from thinwire.hooks.module import (
        compress_module as compress_module,
    )
    from thinwire.hooks.module_gradients import (
        ModuleCompression as ModuleCompression,
    )
    from thinwire.recipe import (
        Recipe as Recipe,
    )
    from thinwire.recipe import (
        clan as clan,
    )
    from thinwire.recipe import (
        dense as dense,
    )
    from thinwire.recipe import (
        dgc as dgc,
    )
    from thinwire.recipe import (
        doublesqueeze as doublesqueeze,
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
    from thinwire.transport.keys import (
        KeyPair as KeyPair,
    )
    from thinwire.transport.keys import (
        ServerCurve as ServerCurve,
    )
    from thinwire.transport.keys import (
        WorkerCurve as WorkerCurve,
    )
    from thinwire.virtual.cluster import (
        VirtualCluster as VirtualCluster,
    )
    from thinwire.virtual.cluster import (
        VirtualStats as VirtualStats,
    )
    from thinwire.watch.stats import (
        ClientStats as ClientStats,
    )
    from thinwire.watch.stats import (
        ServerStats as ServerStats,
    )
    from thinwire.watch.stats import (
        Stats as Stats,
    )
    from thinwire.watch.trace import (
        Trace as Trace,
    )
    from thinwire.watch.trace import (
        merge_traces as merge_traces,
    )
    from thinwire.watch.trace import (
        trace as trace,
    )

_NAMES = {
    "thinwire.client.client": ("Client",),
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
    "thinwire.feedback.momentum": ("Momentum",),
    "thinwire.feedback.residual": ("Residual",),
    "thinwire.gradient.pieces": ("Key", "Piece"),
    "thinwire.hooks.ddp": ("compress_ddp",),
    "thinwire.hooks.handle": ("Compression",),
    "thinwire.hooks.module": ("compress_module",),
    "thinwire.hooks.module_gradients": ("ModuleCompression",),
    "thinwire.recipe": ("Recipe", "clan", "dense", "dgc", "doublesqueeze"),
    "thinwire.replay.replay": ("replay_log",),
    "thinwire.server.log.settings": ("LogSettings",),
    "thinwire.server.server": ("Server",),
    "thinwire.transport.keys": ("KeyPair", "ServerCurve", "WorkerCurve"),
    "thinwire.virtual.cluster": ("VirtualCluster", "VirtualStats"),
    "thinwire.watch.stats": ("ClientStats", "ServerStats", "Stats"),
    "thinwire.watch.trace": ("Trace", "merge_traces", "trace"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_RENAMED = {"Keys": "KeyPair"}
"""Names of before, which go with the next release."""

__all__ = sorted([*_HOMES, "optim"])


def __getattr__(name: str) -> object:
    if name == "__version__":
        return version("thinwire")
    if name == "optim":
        return importlib.import_module("thinwire.optim")
    if name in _RENAMED:
        new = _RENAMED[name]
        warnings.warn(f"tw.{name} is tw.{new} now", DeprecationWarning, stacklevel=2)
        name = new
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # so that this is called once for each name
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
