"""Ed25519 keys made for one run, kept in memory: a killed controller leaves none behind."""

from __future__ import annotations

import io

import attrs
import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat


@attrs.frozen
class Key:
    """A key pair. Its text never shows in a ``repr``, so that it can't reach a log."""

    private_text: str = attrs.field(repr=False)

    @property
    def pair(self) -> paramiko.Ed25519Key:
        """The pair as paramiko uses it."""
        return paramiko.Ed25519Key.from_private_key(io.StringIO(self.private_text))

    @property
    def public_line(self) -> str:
        """The public half as a line of ``authorized_keys``."""
        return f"{self.pair.get_name()} {self.pair.get_base64()}\n"


def generate() -> Key:
    """A new key, without a passphrase."""
    made = Ed25519PrivateKey.generate()
    text = made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return Key(text.decode("ascii"))
