"""Certificates that ``thinwire keys`` does not make: of authorities, too old, for other names."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """Signs certificates. Its own is the file ``certificate``."""

    key: ec.EllipticCurvePrivateKey
    name: x509.Name
    certificate: Path


def make_authority(folder: Path, name: str) -> Authority:
    key, who = ec.generate_private_key(ec.SECP256R1()), _named(name)
    builder = _builder(who, who, key, -1, 1)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    path = folder / f"{name}.crt"
    path.write_bytes(_pem(builder.sign(key, hashes.SHA256())))
    return Authority(key, who, path)


def make_key(
    folder: Path,
    name: str,
    *,
    by: Authority | None = None,
    first_day: int = -1,
    last_day: int = 1,
    host: str = "127.0.0.1",
) -> Path:
    """Write NAME.key and NAME.crt, which is valid from the first to the last day from now on, for
    an address, signed by an authority or by itself. Returns the path of the key."""
    key, who = ec.generate_private_key(ec.SECP256R1()), _named(name)
    builder = _builder(who, who if by is None else by.name, key, first_day, last_day)
    builder = builder.add_extension(
        x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False
    )
    path = folder / f"{name}.key"
    path.touch(0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    signed = builder.sign(key if by is None else by.key, hashes.SHA256())
    path.with_suffix(".crt").write_bytes(_pem(signed))
    return path


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _builder(
    who: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, first: int, last: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + first * _DAY)
        .not_valid_after(now + last * _DAY)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
