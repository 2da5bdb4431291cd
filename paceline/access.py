"""How a client gets into a gateway: its API key and its TLS files. Knows no messages."""

import os
from dataclasses import dataclass, field
from typing import Self

import grpc

from paceline.server import PUBLIC_MESSAGE_BYTES, open_channel
from paceline.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class Access:
    """Without `ca` the connection is plaintext. `cert` and `key` are for a gateway with mTLS.

    `server_name` is the name in the other side's certificate, if that is not its address.
    """

    api_key: str = field(default="", repr=False)
    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""

    @classmethod
    def from_environment(cls) -> Self:
        """From PACELINE_API_KEY, PACELINE_CA, PACELINE_CERT, PACELINE_KEY, PACELINE_SERVER_NAME."""
        return cls(
            api_key=os.environ.get("PACELINE_API_KEY", ""),
            ca=os.environ.get("PACELINE_CA", ""),
            cert=os.environ.get("PACELINE_CERT", ""),
            key=os.environ.get("PACELINE_KEY", ""),
            server_name=os.environ.get("PACELINE_SERVER_NAME", ""),
        )

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        return (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()

    def open_channel(self, address: str) -> grpc.aio.Channel:
        """Raises TlsError."""
        tls = TlsFiles(self.cert, self.key, self.ca) if self.ca else None
        return open_channel(address, PUBLIC_MESSAGE_BYTES, tls=tls, server_name=self.server_name)
