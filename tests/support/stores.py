"""Stores that machines share, as the settings of a machine open them."""

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from envbuilder.core.cache import Store
from envbuilder.core.console import Console
from envbuilder.registry.shared_store import SharedStore, open_store

SETTING = "ENVBUILDER_EXTENSION_STORE"


class Listening(Console):
    """Keeps what a person is told."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def write_keys(folder: Path, name: str = "team") -> Path:
    """Write `NAME.pem` and its public key `NAME.pub`. Returns the private key's file."""
    key = ec.generate_private_key(ec.SECP256R1())
    path = folder / f"{name}.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public = key.public_key().public_bytes(serialization.Encoding.PEM, form)
    path.with_suffix(".pub").write_bytes(public)
    return path


def settings(place: str, key: str | Path, home: Path) -> dict[str, str]:
    return {"HOME": str(home), SETTING: place, "ENVBUILDER_STORE_KEY": str(key)}


def open_shared(place: str, key: str | Path, cache: Store, console: Console) -> SharedStore:
    """Open the store at `registry/repository` for the machine with this cache."""
    store = open_store(SETTING, settings(place, key, cache.root), cache, console)
    assert store is not None
    return store
