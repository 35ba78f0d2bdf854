"""Send requests to registries with this machine's settings: authenticate as each wants it, and translate failures into errors."""

import contextlib
import re
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar
from urllib.parse import urlencode, urlsplit

from envbuilder.artifacts.oci.model import load_json
from envbuilder.artifacts.oci.naming import LATEST, Reference, default_registry, default_registry_url
from envbuilder.core.errors import (
    AbsentError,
    AccessError,
    BusyError,
    ContentError,
    CutError,
    RegistryError,
    UsageError,
)
from envbuilder.core.process import Runner
from envbuilder.registry.credentials import Credentials, credential_files, find_credentials
from envbuilder.sources.http import (
    REFUSED,
    UNKNOWN_HOST,
    UNTRUSTED,
    RequestLimits,
    SourceError,
    TransientError,
    Waiting,
    wait_silently,
)
from envbuilder.sources.http.session import Body, HttpSession, Response, busy, is_same_origin, join, retry
from envbuilder.sources.names import is_loopback, shown

Right = Literal["pull", "pull,push"]
Answer = TypeVar("Answer")
CLIENT: Final = "envbuilder"
_PARAMETER: Final = re.compile(r'\b(\w+)="([^"]*)"')
_MOST_SHOWN: Final = 300  # characters of a registry's message
_MOST_WORDS: Final = 64 << 10  # bytes of a registry's errors, and of a token: they go into a header
# CNCF Distribution says so of a blob that it has, in the moment in which another client's upload of the same blob
# writes its link anew. Of a blob that it really lacks it says so every time.
_UNKNOWN_BLOB: Final = "MANIFEST_BLOB_UNKNOWN"
# Where engines look for the certificate authority of one registry (`dockerd`, `containers-certs.d(5)`).
CERTIFICATES: Final = (Path("/etc/docker/certs.d"), Path("/etc/containers/certs.d"))


class Client:
    """A client with this machine's settings; safe to use from several threads."""

    def __init__(
        self, environment: Mapping[str, str], runner: Runner, waiting: Waiting = wait_silently, *,
        limits: RequestLimits | None = None,
    ) -> None:  # fmt: skip
        self.settings = probe_settings(environment)
        self._environment = environment
        self._runner = runner
        self._guard = threading.RLock()
        self._granted: dict[tuple[str, str, Right], str] = {}  # what goes into `Authorization`
        self._found: dict[tuple[str, str], Credentials | None] = {}
        self._session = HttpSession(self.settings.certificates, waiting, limits=limits)
        self.stop = threading.Event()

    def url(self, reference: Reference, path: str) -> str:
        return f"{self._base(reference.registry)}{reference.repository}/{path}"

    def ask(
        self, reference: Reference, method: str, url: str, *, right: Right = "pull",
        headers: Mapping[str, str] | None = None, body: bytes | Body | None = None, accept: tuple[int, ...] = (200,),
    ) -> Response:  # fmt: skip
        """Send a request and return the answer, unread, if its status is in `accept`.

        Raises TransientError for failures that may pass, and RegistryError.
        """
        response = self._send(reference, method, url, right=right, headers=headers, body=body)
        if response.status_code == 401 and is_same_origin(response.url, self._base(reference.registry)):
            challenge = response.headers.get("WWW-Authenticate", "")
            response.close()
            self._authenticate(reference, right, challenge)
            response = self._send(reference, method, url, right=right, headers=headers, body=body)
        if response.status_code in accept:
            return response
        with response:
            raise self._judge(reference, response)

    def read(self, response: Response, most: int) -> bytes:
        """Return the whole body of an answer; raises TransientError, or SourceError for more than `most` bytes."""
        return self._session.read(response, most)

    def retry(self, reference: Reference, work: Callable[[], Answer]) -> Answer:
        """Do the work, and repeat it after transient errors; raises RegistryError after too many."""
        with translate_errors(reference):
            return retry(work, self._base(reference.registry), self.stop)

    def _base(self, registry: str) -> str:
        host = registry
        if registry == default_registry():
            host = urlsplit(default_registry_url()).netloc
        return f"{self.settings.scheme(registry)}://{host}/v2/"

    def _send(
        self, reference: Reference, method: str, url: str, *, right: Right,
        headers: Mapping[str, str] | None, body: bytes | Body | None,
    ) -> Response:  # fmt: skip
        granted = self._granted.get((reference.registry, reference.repository, right), "")
        ours = is_same_origin(url, self._base(reference.registry))
        return self._session.send(
            method, url, headers=headers, body=body, authorization=granted if ours else "",
            certificates=self.settings.certificates_of(reference.registry),
        )  # fmt: skip

    def _authenticate(self, reference: Reference, right: Right, challenge: str) -> None:
        """Answer the challenge: send the credentials, or exchange them for a token."""
        scheme, _, rest = challenge.partition(" ")
        credentials = self._credentials(reference)
        granted = ""
        if scheme.lower() == "bearer":
            parameters = dict(_PARAMETER.findall(rest))
            granted = "Bearer " + self._token(reference, right, parameters, credentials)
        elif scheme.lower() == "basic" and credentials and credentials.password:
            granted = credentials.basic
        with self._guard:
            self._granted[reference.registry, reference.repository, right] = granted

    def _credentials(self, reference: Reference) -> Credentials | None:
        key = (reference.registry, reference.repository)
        with self._guard:
            if key not in self._found:
                self._found[key] = find_credentials(reference, self._environment, self._runner)
            return self._found[key]

    def _used(self, reference: Reference) -> str:
        """Say with which credentials the registry was asked."""
        credentials = self._credentials(reference)
        if credentials is None:
            places = ", ".join(f"`{path}`" for path in credential_files(self._environment))
            return f"it was asked without credentials: there are none for it in {places}"
        user = f"of `{credentials.user}` " if credentials.user else ""
        return f"it was asked with the credentials {user}from {credentials.source}"

    def _token(
        self,
        reference: Reference,
        right: Right,
        challenge: Mapping[str, str],
        credentials: Credentials | None,
    ) -> str:
        """Ask the token service that the challenge names."""
        base = self._base(reference.registry)
        realm = join(base, challenge.get("realm", ""))
        parts = urlsplit(realm)
        is_known = parts.hostname == urlsplit(base).hostname or self.settings.scheme(parts.netloc) == "http"
        if parts.scheme != "https" and not is_known:
            raise AccessError(
                f"`{reference.registry}` wants credentials sent to `{shown(realm)}`, without encryption",
                hint="ENVBUILDER_REGISTRY_HTTP names registries and token services without TLS",
            )
        scopes = [f"repository:{reference.repository}:{right}"]
        if right != "pull":
            scopes += [scope for scope in challenge.get("scope", "").split() if scope not in scopes]
        question = {"service": challenge.get("service", ""), "scope": " ".join(scopes)}
        certificates = self.settings.certificates_of(urlsplit(realm).netloc)
        if credentials and credentials.token:
            grant = {"grant_type": "refresh_token", "refresh_token": credentials.token, "client_id": CLIENT}
            response = self._session.send(
                "POST", realm, headers={"Content-Type": "application/x-www-form-urlencoded"},
                body=urlencode(question | grant).encode(), authorization="", certificates=certificates,
            )  # fmt: skip
        else:
            response = self._session.send(
                "GET", f"{realm}{'&' if parts.query else '?'}{urlencode(question)}", headers={}, body=None,
                authorization=credentials.basic if credentials else "", certificates=certificates,
            )  # fmt: skip
        with response:
            if response.status_code != 200:
                raise self._judge(reference, response)
            return self._read_token(reference, response)

    def _read_token(self, reference: Reference, response: Response) -> str:
        with contextlib.suppress(ValueError):
            answer = load_json(self.read(response, _MOST_WORDS))
            token = answer.get("token") or answer.get("access_token")
            if isinstance(token, str) and token.isascii() and token.isprintable():
                return token
        raise AccessError(f"the token service of `{reference.registry}` sends no token")

    def _read_errors(self, response: Response) -> tuple[list[object], str]:
        """Return the codes of the registry's errors, and their messages in one printable line; nothing for errors in another form."""
        try:
            errors = load_json(self.read(response, _MOST_WORDS))["errors"]
            codes = [error.get("code") for error in errors]
            messages = [error.get("message") for error in errors]
        except (ValueError, LookupError, TypeError, AttributeError, TransientError, SourceError):
            return [], ""
        text = "; ".join(message for message in messages if message and isinstance(message, str))
        plain = "".join(letter for letter in text if letter.isprintable())[:_MOST_SHOWN]
        return codes, f": {plain}" if plain else ""

    def _judge(self, reference: Reference, response: Response) -> Exception:
        """Return the error for an answer with an unexpected status."""
        if passing := busy(response):
            return passing
        codes, words = self._read_errors(response)
        status = response.status_code
        if _UNKNOWN_BLOB in codes:
            return TransientError(f"it answered {status}{words}", status=status)
        host = reference.registry
        if status in (401, 403):
            return AccessError(
                f"`{host}` refuses access to `{reference.repository}` ({status}{words}); {self._used(reference)}",
                hint=f"`docker login {host}`, `podman login {host}` or `apptainer registry login --username USER oras://{host}` "
                "store credentials where envbuilder reads them",
            )
        if status in (404, 410):
            sought = reference if reference.digest else reference.with_tag(reference.tag or LATEST)
            return AbsentError(
                f"there is no `{sought}` ({status}{words})", hint="look at the name, the tag and the registry"
            )
        return RegistryError(f"`{host}` rejected the request for `{reference}`: it answered {status}{words}")


@contextlib.contextmanager
def translate_errors(reference: Reference) -> Iterator[None]:
    """Turn a SourceError into a RegistryError."""
    try:
        yield
    except SourceError as error:
        raise _registry_error(reference, error) from error


def _registry_error(reference: Reference, error: SourceError) -> RegistryError:
    what, registry, why = f"`{reference}`", reference.registry, error.why
    if error.kind == "wrong":
        return ContentError(
            f"the registry sends other bytes for {what} than its digest says: {why}",
            hint="nothing of it was kept; find out which is right before you take it from another place",
        )
    if error.kind == "unusable":
        return RegistryError(
            f"what `{registry}` answers for {what} cannot be used: {error}",
            hint="nothing of it was kept; who runs the registry can tell why, or a proxy on the way",
        )
    if why == UNTRUSTED:
        return RegistryError(
            f"`{registry}` cannot be trusted: {why}",
            hint="SSL_CERT_FILE names the authorities that this machine trusts; "
            f"`{CERTIFICATES[0] / registry}/ca.crt` that of this registry alone",
        )
    if error.status == 429:
        return BusyError(
            f"the registry refuses {what}: too many requests (429)",
            hint="wait a while; a login often allows more",
        )
    if error.status:
        return BusyError(f"the registry fails for {what} after several tries: {why}", hint="try again later")
    if why in (UNKNOWN_HOST, REFUSED):
        return CutError(
            f"no registry answers for {what}: {why}",
            hint="look at the name and the port of the registry",
        )
    return CutError(
        f"the transfer of {what} stopped: {why}",
        hint="the same command goes on where it ended; ENVBUILDER_REGISTRY_HTTP names registries without TLS",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings for registries. `prefix` is the `registry/folder` of recipes, or empty."""

    prefix: str = ""
    mirrors: tuple[tuple[str, str], ...] = ()  # a registry, and the `registry/folder` that mirrors it
    plain: frozenset[str] = frozenset()  # registries without TLS
    certificates: Path | None = None  # CA bundle

    def scheme(self, registry: str) -> str:
        return "http" if registry in self.plain or is_loopback(registry) else "https"

    def certificates_of(self, registry: str) -> Path | None:
        """Return the certificate authority of this registry, from the folders that engines read."""
        for folder in CERTIFICATES:
            for path in sorted((folder / registry).glob("*.crt")):
                return path
        return None


def probe_settings(environment: Mapping[str, str]) -> Settings:
    """Read the settings; raises UsageError for a malformed mirror."""
    mirrors = []
    for word in environment.get("ENVBUILDER_REGISTRY_MIRRORS", "").split():
        registry, equals, mirror = word.partition("=")
        if not equals or "://" in mirror:
            raise UsageError(
                f"ENVBUILDER_REGISTRY_MIRRORS holds `{word}`", hint="write REGISTRY=MIRROR or REGISTRY=MIRROR/FOLDER"
            )  # fmt: skip
        mirrors.append((registry, mirror.rstrip("/")))
    names = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
    named = next((environment[name] for name in names if environment.get(name)), None)
    bundle = named or ssl.get_default_verify_paths().cafile  # the system's
    return Settings(
        prefix=environment.get("ENVBUILDER_REGISTRY", "").rstrip("/"),
        mirrors=tuple(mirrors),
        plain=frozenset(environment.get("ENVBUILDER_REGISTRY_HTTP", "").split()),
        certificates=Path(bundle) if bundle else None,
    )
