"""Certificates for tests: a CA, and files of certificates with a role, a name, or neither."""

import os
from pathlib import Path

import trustme

from paceline.roles import server_name
from paceline.tls import TlsFiles


class Certificates:
    """Files of one CA in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self._ca = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self._ca.cert_pem.write_to_path(self.ca)

    def issue(self, file: str, *names: str) -> TlsFiles:
        """A certificate for these names in files of that name, replacing an older one."""
        issued = self._ca.issue_cert(*names)
        cert, key = self._folder / f"{file}.pem", self._folder / f"{file}-key.pem"
        _replace(cert, b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        _replace(key, issued.private_key_pem.bytes())
        return TlsFiles(str(cert), str(key), self.ca)

    def role(self, role: str) -> TlsFiles:
        return self.issue(role, server_name(role), "127.0.0.1")

    def client(self) -> TlsFiles:
        """A certificate without a role."""
        return self.issue("client", "somebody.example")


def _replace(path: Path, data: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(data)
    os.replace(new, path)
