"""TLS: certificates from PEM files, for servers and channels, read again when they change.

Knows no service and no role. A server asks for its files at every handshake, so a renewed
certificate needs no restart; connections that stand keep the one they began with.
"""

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

log = logging.getLogger(__name__)


class TlsError(ValueError):
    """Files that make no working certificate; the text names the file and no content."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files. `cert` is a chain with this side's own first.

    `ca` signs the other side. A server with one admits only callers with a certificate of it; a
    channel without one trusts what grpc trusts.
    """

    cert: str = ""
    key: str = ""
    ca: str = ""


@dataclass(frozen=True, slots=True)
class Pems:
    """What stands in the files, checked."""

    cert: bytes | None
    key: bytes | None
    ca: bytes | None


def read(files: TlsFiles) -> Pems:
    """Reads and checks the files: they parse, and the key is the certificate's. Raises TlsError."""
    pems = Pems(_read(files.cert), _read(files.key), _read(files.ca))
    if (pems.cert is None) != (pems.key is None):
        raise TlsError("a certificate and its key belong together: one of them is not set")
    if pems.ca is not None:
        _parsed(files.ca, lambda: x509.load_pem_x509_certificates(pems.ca or b""))
    if pems.cert is not None and pems.key is not None:
        cert, key = pems.cert, pems.key
        chain = _parsed(files.cert, lambda: x509.load_pem_x509_certificates(cert))
        private = _parsed(files.key, lambda: load_pem_private_key(key, None))
        if chain[0].public_key() != private.public_key():
            raise TlsError(f"the key in {files.key} is not that of the certificate in {files.cert}")
    return pems


def _read(path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror}") from None


def _parsed(path: str, parse: Callable[[], Any]) -> Any:
    try:
        return parse()
    except (ValueError, TypeError):
        raise TlsError(f"{path}: not PEM of the expected kind") from None


class Reloader:
    """The files' content, read again when one of them changes.

    Files that are no longer sound, as in the middle of a renewal, leave the last sound content in
    place. Thread-safe enough: two threads at worst read the same files twice.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Raises TlsError."""
        self._files = files
        self._seen = self._stamps()
        self.pems = read(files)

    def changed(self) -> bool:
        """Whether `pems` is new since the last call."""
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        try:
            self.pems = read(self._files)
        except TlsError as error:
            log.warning("certificates are kept as they were: %s", error)
            # Seen: the next try is when the files change again.
            self._seen = stamps
            return False
        self._seen = stamps
        log.info("certificates read again")
        return True

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        found: list[tuple[int, int, int] | None] = []
        for path in (self._files.cert, self._files.key, self._files.ca):
            try:
                stat = Path(path).stat() if path else None
            except OSError:
                stat = None
            found.append((stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat else None)
        return found


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """For a gRPC port. With `ca`, a caller needs a certificate of it. Raises TlsError."""
    reloader = Reloader(files)

    def configuration() -> Any:
        pems = reloader.pems
        if pems.key is None or pems.cert is None:
            raise TlsError("a port with TLS needs a certificate and its key")
        return grpc.ssl_server_certificate_configuration(
            [(pems.key, pems.cert)], root_certificates=pems.ca
        )

    def fetch() -> Any:
        # None: as before. Called by grpc's thread at every handshake.
        return configuration() if reloader.changed() else None

    return grpc.dynamic_ssl_server_credentials(
        configuration(), fetch, require_client_authentication=bool(files.ca)
    )


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """For one channel, from the files as they are now. Raises TlsError."""
    pems = read(files)
    return grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """The same rules for an HTTP port, with reload. Raises TlsError.

    The CA is read once: a context cannot forget one.
    """
    if not files.cert:
        raise TlsError("a port with TLS needs a certificate and its key")
    reloader = Reloader(files)
    context = newest = _context(files)
    if files.ca:
        context.load_verify_locations(files.ca)
        context.verify_mode = ssl.CERT_REQUIRED

    def at_handshake(connection: Any, name: str | None, original: ssl.SSLContext) -> None:
        nonlocal newest
        if reloader.changed():
            newest = _context(files)
        if newest is not original:
            # Changes the certificate of this handshake, and nothing else.
            connection.context = newest

    context.sni_callback = at_handshake
    return context


def _context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.cert, files.key)
    return context
