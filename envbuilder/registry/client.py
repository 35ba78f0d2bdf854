"""Send requests to registries: authenticate once as each wants it, and translate failures into errors."""

import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

from envbuilder.artifacts.oci.model import JsonObject
from envbuilder.artifacts.oci.reference import Reference, default_registry, default_registry_url
from envbuilder.core.errors import AbsentError, AccessError, BusyError, ContentError, CutError, RegistryError
from envbuilder.core.http.failure import UNTRUSTED, SourceError, TransientError
from envbuilder.core.http.session import Body, HttpSession, Response, busy, content, retry
from envbuilder.core.process import Runner
from envbuilder.core.sources import shown
from envbuilder.registry.credentials import Credentials, credential_files, find_credentials
from envbuilder.registry.settings import CERTIFICATES, Settings, probe_settings

log = logging.getLogger(__name__)

Right = Literal["pull", "pull,push"]
Answer = TypeVar("Answer")
CLIENT: Final = "envbuilder"
_PARAMETER: Final = re.compile(r'(\w+)="([^"]*)"')
_MOST_TOLD: Final = 300  # characters of a registry's message


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The credentials that a registry got, for the message when it denies access."""

    credentials: Credentials | None

    def told(self, environment: Mapping[str, str]) -> str:
        if self.credentials is None:
            places = ", ".join(f"`{path}`" for path in credential_files(environment))
            return f"it was asked without credentials: there are none for it in {places}"
        user = f"of `{self.credentials.user}` " if self.credentials.user else ""
        return f"it was asked with the credentials {user}from {self.credentials.source}"


class Client:
    """Registries as this machine reaches them; safe to use from several threads."""

    def __init__(self, settings: Settings, environment: Mapping[str, str], runner: Runner) -> None:
        self.settings = settings
        self._environment = environment
        self._runner = runner
        self._guard = threading.RLock()
        self._granted: dict[tuple[str, str, Right], str] = {}  # what goes into `Authorization`
        self._found: dict[tuple[str, str], Credentials | None] = {}
        self._session: HttpSession | None = None
        self.stop = threading.Event()

    def url(self, reference: Reference, path: str) -> str:
        """Return the URL of a path below a repository."""
        return f"{self._base(reference.registry)}{reference.repository}/{path}"

    def ask(
        self, reference: Reference, method: str, url: str, *, right: Right = "pull",
        headers: Mapping[str, str] | None = None, body: bytes | Body | None = None, accept: tuple[int, ...] = (200,),
    ) -> Response:  # fmt: skip
        """Send a request and return the answer, unread, if its status is in `accept`.

        Raises TransientError for failures that may pass, and RegistryError.
        """
        response = self._send(reference, method, url, right=right, headers=headers, body=body)
        if response.status_code == 401:
            challenge = response.headers.get("WWW-Authenticate", "")
            response.close()
            self._authenticate(reference, right, challenge)
            response = self._send(reference, method, url, right=right, headers=headers, body=body)
        if response.status_code in accept:
            return response
        with response:
            raise self._judge(reference, response)

    def retry(self, reference: Reference, work: Callable[[], Answer]) -> Answer:
        """Do the work, again after transient errors; raises RegistryError after too many."""
        with self.translate_errors(reference):
            return retry(work, self._base(reference.registry), self.stop)

    def translate_errors(self, reference: Reference) -> "_Translated":
        """Return a context that turns SourceError into RegistryError."""
        return _Translated(reference)

    def _base(self, registry: str) -> str:
        host = registry
        if registry == default_registry():
            host = urlsplit(default_registry_url()).netloc
        return f"{self.settings.scheme(registry)}://{host}/v2/"

    def _connect(self) -> HttpSession:
        with self._guard:
            if self._session is None:
                self._session = HttpSession(self.settings.certificates)
            return self._session

    def _send(
        self, reference: Reference, method: str, url: str, *, right: Right,
        headers: Mapping[str, str] | None, body: bytes | Body | None,
    ) -> Response:  # fmt: skip
        granted = self._granted.get((reference.registry, reference.repository, right), "")
        ours = urlsplit(url).netloc == urlsplit(self._base(reference.registry)).netloc
        return self._connect().send(
            method, url, headers=headers, body=body, authorization=granted if ours else "",
            certificates=self.settings.certificates_of(reference.registry),
        )  # fmt: skip

    def _authenticate(self, reference: Reference, right: Right, challenge: str) -> None:
        """Answer the challenge: send the credentials, or exchange them for a token."""
        scheme, _, rest = challenge.partition(" ")
        credentials = self._credentials(reference)
        key = (reference.registry, reference.repository, right)
        match scheme.lower():
            case "bearer":
                granted = "Bearer " + self._token(
                    reference, right, dict(_PARAMETER.findall(rest)), credentials
                )
            case "basic" if credentials and credentials.password:
                granted = credentials.basic
            case _:
                granted = ""
        with self._guard:
            self._granted[key] = granted

    def _credentials(self, reference: Reference) -> Credentials | None:
        key = (reference.registry, reference.repository)
        with self._guard:
            if key not in self._found:
                self._found[key] = find_credentials(reference, self._environment, self._runner)
            return self._found[key]

    def _token(
        self,
        reference: Reference,
        right: Right,
        challenge: Mapping[str, str],
        credentials: Credentials | None,
    ) -> str:
        """Ask the token service that the challenge names."""
        realm = urljoin(self._base(reference.registry), challenge.get("realm", ""))
        if (
            credentials
            and urlsplit(realm).scheme != "https"
            and self.settings.scheme(reference.registry) == "https"
        ):
            raise AccessError(
                f"`{reference.registry}` wants credentials sent to `{shown(realm)}`, without encryption"
            )
        scopes = [f"repository:{reference.repository}:{right}"]
        scopes += [one for one in challenge.get("scope", "").split() if one not in scopes and right != "pull"]
        question = {"service": challenge.get("service", ""), "scope": " ".join(scopes)}
        method, url, body, basic = "GET", "", b"", ""
        if credentials and credentials.token:
            grant = {"grant_type": "refresh_token", "refresh_token": credentials.token, "client_id": CLIENT}
            method, url, body = "POST", realm, urlencode(question | grant).encode()
        else:
            url = f"{realm}?{urlencode(question)}"
            basic = credentials.basic if credentials else ""
        headers = {"Content-Type": "application/x-www-form-urlencoded"} if body else {}
        response = self._connect().send(
            method, url, headers=headers, body=body or None, authorization=basic,
            certificates=self.settings.certificates_of(urlsplit(realm).netloc),
        )  # fmt: skip
        with response:
            if response.status_code != 200:
                raise self._judge(reference, response)
            return _read_token(reference, response)

    def _judge(self, reference: Reference, response: Response) -> Exception:
        """Return the error for an answer with an unexpected status."""
        if passing := busy(response):
            return passing
        status, words = response.status_code, _words(response)
        host, name = reference.registry, f"`{reference}`"
        if status in (401, 403):
            asked = _Asked(credentials=self._credentials(reference)).told(self._environment)
            return AccessError(
                f"`{host}` refuses access to `{reference.repository}` ({status}{words}); {asked}",
                hint=f"`docker login {host}`, `podman login {host}` or `apptainer registry login --username USER oras://{host}` "
                "leave credentials where they are looked for",
            )
        if status in (404, 410):
            return AbsentError(
                f"there is no {name} ({status}{words})", hint="look at the name, the tag and the registry"
            )
        return RegistryError(f"`{host}` did not do what was asked for {name}: it answered {status}{words}")


class _Translated:
    """Turns a SourceError into a RegistryError."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not isinstance(error, SourceError):
            return
        what, why = f"`{self._reference}`", error.why
        if error.kind == "wrong":
            raise ContentError(
                f"what the registry sends for {what} is not what its digest says: {why}",
                hint="nothing of it was kept; find out which is right before you take it from another place",
            ) from error
        if why == UNTRUSTED:
            raise RegistryError(
                f"`{self._reference.registry}` cannot be trusted: {why}",
                hint="SSL_CERT_FILE names the authorities that this machine trusts; "
                f"`{CERTIFICATES[0] / self._reference.registry}/ca.crt` that of this registry alone",
            ) from error
        if error.status == 429:
            raise BusyError(
                f"the registry turns us away for {what}: too many requests (429)", hint="wait a while; a login often allows more"
            ) from error  # fmt: skip
        if error.status:
            raise BusyError(
                f"the registry is out of order for {what}: {why}, time after time", hint="try again later"
            ) from error
        raise CutError(
            f"the transfer of {what} stopped: {why}",
            hint="the same command goes on where it ended; ENVBUILDER_REGISTRY_HTTP names registries without TLS",
        ) from error


def open_client(environment: Mapping[str, str], runner: Runner) -> Client:
    """A client with this machine's settings."""
    return Client(probe_settings(environment), environment, runner)


def _read_token(reference: Reference, response: Response) -> str:
    try:
        answer = JsonObject.load(content(response))
        token = answer.text("token") or answer.text("access_token")
    except ValueError as error:
        raise AccessError(f"the token service of `{reference.registry}` sends no token") from error
    if not token:
        raise AccessError(f"the token service of `{reference.registry}` sends no token")
    return token


def _words(response: Response) -> str:
    """Return the registry's error message in one printable line."""
    try:
        errors = JsonObject.load(content(response)).objects("errors")
        told = "; ".join(filter(None, (one.text("message") for one in errors)))
    except (ValueError, TransientError):
        return ""
    plain = "".join(letter for letter in told if letter.isprintable())[:_MOST_TOLD]
    return f": {plain}" if plain else ""
