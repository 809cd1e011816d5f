"""``new_keys``: make a key and a certificate that it has signed itself."""

from __future__ import annotations

import datetime
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

from thinwire.errors import ConfigError
from thinwire.keys.settings import certificate_of

_DAYS = 3650


def new_keys(folder: Path, name: str) -> tuple[Path, Path]:
    """Write ``NAME.key``, for its owner alone, and ``NAME.crt``; returns both paths. Overwrites
    nothing. An elliptic curve (P-256) that every TLS library has, valid for ten years.
    """
    if not name or set(name) & set("/ \t\r\n") or name.startswith((".", "-")):
        raise ConfigError(f"keys: name {name!r}, expected a word without blanks or slashes")
    key = folder / f"{name}.key"
    certificate = certificate_of(key)
    for path in (key, certificate):
        if path.exists():
            raise ConfigError(f"{path}: exists already, and keys are not overwritten")
    make = _by_cryptography if find_spec("cryptography") else _by_openssl
    key_text, certificate_text = make(name)
    _write_new(key, key_text, mode=0o600)
    _write_new(certificate, certificate_text, mode=0o644)
    return key, certificate


def _write_new(path: Path, text: bytes, *, mode: int) -> None:
    # The mode is given to open: a moment between writing and chmod is enough to be read.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(text)


def _by_cryptography(name: str) -> tuple[bytes, bytes]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return secret, certificate.public_bytes(serialization.Encoding.PEM)


def _by_openssl(name: str) -> tuple[bytes, bytes]:
    """Both come on standard output, so that no file holds the key for a moment."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", str(_DAYS), "-subj", f"/CN={name}", "-keyout", "-", "-out", "-"]
    try:
        made = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(
            "no certificate could be made: install the package cryptography, or openssl"
        ) from error
    secret, mark, certificate = made.partition(b"-----BEGIN CERTIFICATE-----")
    return secret, mark + certificate
