"""The certificate of the server for health and metrics: from files, reloaded after rotation, or generated."""

import asyncio
import logging
import os
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 10.0
"""Seconds between two checks of the files. The kubelet updates a rotated Secret within a minute or two anyway."""
VALID_SECONDS: Final = 365 * 86_400
"""Seconds for which a generated certificate is valid. It is renewed when a third of that is left."""
RENEW_SECONDS: Final = VALID_SECONDS * 2 // 3

_Stamp = tuple[tuple[int, int, int], ...]


class CertificateError(ValueError):
    """A certificate or key can't be used. The message names the file."""


class Certificates:
    """The TLS context in use. New connections get the newest context.

    Args:
        cert_file: PEM file of the certificate with its chain, or an empty string to make one.
        key_file: PEM file of its private key, or an empty string to make one.
    """

    def __init__(self, cert_file: str = "", key_file: str = "") -> None:
        self._files = (cert_file, key_file) if cert_file else None
        self._stamp: _Stamp = ()
        self._renew_at = 0.0
        self._logged_error = ""
        self._context: ssl.SSLContext | None = None

    @property
    def context(self) -> ssl.SSLContext:
        """The context in use. The caller must have called `load`."""
        assert self._context is not None
        return self._context

    def load(self) -> None:
        """Read the files or make a certificate. Blocks.

        Raises:
            CertificateError: a file can't be read, or the two do not belong together.
        """
        if self._files is None:
            self._context = _self_signed_context()
            self._renew_at = time.time() + RENEW_SECONDS
            return
        stamp = _stamp(self._files)
        self._context = _context_from(*self._files)
        self._stamp = stamp

    def refresh(self) -> None:
        """Load a changed certificate. An invalid pair is logged once, and the old one stays in use. Blocks."""
        try:
            if self._files is None:
                if time.time() >= self._renew_at:
                    self.load()
            elif _stamp(self._files) != self._stamp:
                self.load()
                log.info("the TLS certificate of health and metrics was rotated", extra={"file": self._files[0]})
        except CertificateError as error:
            if str(error) != self._logged_error:
                log.error("the changed TLS certificate is refused, the old one stays: %s", error)
            self._logged_error = str(error)
        else:
            self._logged_error = ""

    async def watch(self) -> None:
        """Refresh until cancelled."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await asyncio.to_thread(self.refresh)


def _stamp(files: tuple[str, str]) -> _Stamp:
    try:
        statuses = [os.stat(file) for file in files]  # noqa: PTH116
    except OSError as error:
        raise CertificateError(f"{error.filename}: {error.strerror or error}") from error
    return tuple((status.st_ino, status.st_mtime_ns, status.st_size) for status in statuses)


def _context_from(cert_file: str, key_file: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert_file, key_file, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        reason = getattr(error, "reason", "") or getattr(error, "strerror", "") or error
        raise CertificateError(
            f"certificate {cert_file} with key {key_file} can't be used ({reason}): both must be PEM files that belong"
            " together, the key without a password"
        ) from error
    return context


def _no_password() -> str:
    # Without this callback OpenSSL asks for the password on the terminal and waits.
    raise ValueError("the key has a password")


def _self_signed_context() -> ssl.SSLContext:
    certificate, key = self_signed()
    with _as_file(certificate) as cert_file, _as_file(key) as key_file:
        return _context_from(cert_file, key_file)


def self_signed() -> tuple[bytes, bytes]:
    """Return a certificate of this host and its private key, as PEM texts."""
    # Imported here because it takes 40 ms and some MiB, and only generated certificates need it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    host = socket.gethostname()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "topology-scheduler")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # The clock of a client may be slow.
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(seconds=VALID_SECONDS))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(dns_name) for dns_name in (host, "localhost")]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


@contextmanager
def _as_file(text: bytes) -> Iterator[str]:
    """Yield the path of a file with this text, in memory if possible, because the file system may be read-only."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("topo-scheduler")
        try:
            os.write(descriptor, text)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pem"
        path.touch(0o600)
        path.write_bytes(text)
        yield str(path)
