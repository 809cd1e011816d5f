"""Distributed PyTorch training that sends 30 to 1000 times fewer bytes."""

from thinwire import optim
from thinwire.codec.dense import BFloat16, Float16, Float32
from thinwire.codec.dither import Dither
from thinwire.codec.policy import by_name, small_as, unless_dense_is_cheaper, vectors_as
from thinwire.codec.randomk import RandomK
from thinwire.codec.registry import codec, codecs
from thinwire.codec.schedule import warmup
from thinwire.codec.sign import OneBit
from thinwire.codec.sparse import Nonzero
from thinwire.codec.topk import TopK
from thinwire.compressor import Compressor
from thinwire.encoded import Encoded
from thinwire.errors import (
    ConfigError,
    CorruptPayloadError,
    LocalProtocolError,
    LogError,
    NonFiniteError,
    ProtocolError,
    Refused,
    RemoteProtocolError,
    ThinwireError,
    TransportClosed,
    TransportError,
    TransportTimeout,
    UnknownCodecError,
    WorkerLost,
)
from thinwire.feedback.base import NoFeedback, chain
from thinwire.feedback.clip import Clip
from thinwire.feedback.momentum import Momentum
from thinwire.feedback.residual import Residual
from thinwire.gradient.keys import Key
from thinwire.gradient.pieces import Piece
from thinwire.recipe import Recipe, clan, dense, dgc, doublesqueeze
from thinwire.replay import replay
from thinwire.server.retention import LogSettings
from thinwire.server.server import Server
from thinwire.transport.keys import Keys, ServerCurve, WorkerCurve
from thinwire.watch.trace import Trace, merge_traces, trace
from thinwire.worker.client import Client
from thinwire.worker.compression import Compression
from thinwire.worker.ddp import compress_ddp
from thinwire.worker.gradients import ModuleCompression
from thinwire.worker.module import compress_module
from thinwire.worker.stats import ClientStats, Stats
from thinwire.worker.virtual import VirtualCluster

__all__ = [
    "BFloat16",
    "Client",
    "ClientStats",
    "Clip",
    "Compression",
    "Compressor",
    "ConfigError",
    "CorruptPayloadError",
    "Dither",
    "Encoded",
    "Float16",
    "Float32",
    "Key",
    "Keys",
    "LocalProtocolError",
    "LogError",
    "LogSettings",
    "ModuleCompression",
    "Momentum",
    "NoFeedback",
    "NonFiniteError",
    "Nonzero",
    "OneBit",
    "Piece",
    "ProtocolError",
    "RandomK",
    "Recipe",
    "Refused",
    "RemoteProtocolError",
    "Residual",
    "Server",
    "ServerCurve",
    "Stats",
    "ThinwireError",
    "TopK",
    "Trace",
    "TransportClosed",
    "TransportError",
    "TransportTimeout",
    "UnknownCodecError",
    "VirtualCluster",
    "WorkerCurve",
    "WorkerLost",
    "by_name",
    "chain",
    "clan",
    "codec",
    "codecs",
    "compress_ddp",
    "compress_module",
    "dense",
    "dgc",
    "doublesqueeze",
    "merge_traces",
    "optim",
    "replay",
    "small_as",
    "trace",
    "unless_dense_is_cheaper",
    "vectors_as",
    "warmup",
]
