"""``read_allowed``: which certificates a server lets in, from files that people keep.

A certificate is known by its fingerprint, the SHA-256 of its DER form. No error repeats what is in
a file: it may be a private key in the wrong place.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from thinwire.errors import ConfigError

_PEM = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_LINE = re.compile(
    r"(?P<fingerprint>sha256:[0-9a-fA-F]{64})(?:\s+(?!ranks=)(?P<name>\S+))?"
    r"(?:\s+ranks=(?P<ranks>\S+))?"
)
_OLD_LINE = re.compile(r"((public|secret) )?[0-9a-fA-F]{64}\b")
_RANKS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_MOST_RANK = 1 << 20

OLD_KIND = "is a key of an older Thinwire: make new ones with 'thinwire keys new NAME'"


@dataclass(frozen=True, slots=True)
class Grant:
    """What the owner of an allowed certificate may do: take one of ``ranks``, or any if None."""

    name: str = ""
    ranks: frozenset[int] | None = None

    def allows(self, rank: int) -> bool:
        return self.ranks is None or rank in self.ranks


def fingerprint(der: bytes) -> str:
    return f"sha256:{hashlib.sha256(der).hexdigest()}"


def is_fingerprint(text: str) -> bool:
    match = _LINE.fullmatch(text)
    return match is not None and match["fingerprint"] == text


def read_allowed(path: Path) -> dict[str, Grant]:
    """Grants by fingerprint, from a list, a file of certificates, or a folder of such files."""
    if not path.is_dir():
        return dict(_grants(path))
    files = sorted(file for file in path.iterdir() if file.suffix in (".crt", ".pem"))
    return {key: grant for file in files for key, grant in _grants(file)}


def _grants(path: Path) -> Iterator[tuple[str, Grant]]:
    text = read_text(path)
    if "PRIVATE KEY-----" in text:
        raise ConfigError(f"{path}: holds a private key, which never leaves its machine")
    for der in certificates_in(path, text):
        yield fingerprint(der), Grant(path.stem)
    # Certificates become empty lines, so that numbers are right.
    rest = _PEM.sub(lambda block: "\n" * block[0].count("\n"), text)
    for number, line in enumerate(rest.splitlines(), start=1):
        words = line.partition("#")[0].strip()
        if words:
            yield _grant(words, where=f"{path}: line {number}")


def _grant(line: str, *, where: str) -> tuple[str, Grant]:
    match = _LINE.fullmatch(line)
    if match is None:
        reason = "expected sha256: and 64 hexadecimal digits, then a name, then ranks=0,2-3 or none"
        raise ConfigError(f"{where}: {OLD_KIND if _OLD_LINE.match(line) else reason}")
    ranks = None if match["ranks"] is None else parse_ranks(match["ranks"], where=where)
    return match["fingerprint"].lower(), Grant(match["name"] or "", ranks)


def parse_ranks(text: str, *, where: str) -> frozenset[int]:
    """From 0,2-3."""
    if _RANKS.fullmatch(text) is None:
        raise ConfigError(f"{where}: ranks {text!r}, expected numbers and ranges such as 0,2-3")
    ranges = [tuple(map(int, part.split("-"))) for part in text.split(",")]
    if max(part[-1] for part in ranges) > _MOST_RANK:
        raise ConfigError(f"{where}: a rank above {_MOST_RANK}")
    return frozenset(rank for part in ranges for rank in range(part[0], part[-1] + 1))


def certificates_in(path: Path, text: str) -> Iterator[bytes]:
    """In DER."""
    for block in _PEM.findall(text):
        try:
            yield ssl.PEM_cert_to_DER_cert(block)
        except ValueError:
            raise ConfigError(f"{path}: a certificate in it is damaged") from None


def read_text(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeError:  # the cause would show the bytes
        raise ConfigError(f"{path}: is not text, expected a key or certificates") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
