"""What can go wrong with a request, as things a caller can tell apart without reading messages."""

import msgspec


class Cause(msgspec.Struct, frozen=True):
    """One of the server's reasons, with the field it is about."""

    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(msgspec.Struct, frozen=True, rename="camel"):
    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: float = 0


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


class Refusal(msgspec.Struct, frozen=True):
    """The server's answer when it did not do what was asked."""

    code: int
    reason: str = ""
    message: str = ""
    retry_after: float | None = None
    """Seconds the server wants to be left alone."""
    causes: tuple[Cause, ...] = ()


class KubeError(Exception):
    """A request that did not succeed."""


class Unreachable(KubeError):
    """No (whole) answer came. A request that changes something may or may not have been carried out."""


class NotLeading(KubeError):
    """The request was not sent: this process no longer leads, and another one may be writing already."""


class ApiError(KubeError):
    """The server answered, and refused."""

    def __init__(self, request: str, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(f"{request}: {refusal.code} {refusal.reason}: {refusal.message}")

    @property
    def code(self) -> int:
        """The HTTP status."""
        return self.refusal.code

    @property
    def retry_after(self) -> float | None:
        """Seconds the server wants to be left alone."""
        return self.refusal.retry_after

    @property
    def not_found(self) -> bool:
        """There is no such object, or no such kind."""
        return self.code == 404

    @property
    def already_exists(self) -> bool:
        """A create found the name taken. (The other 409 says that nothing was done: see `conflict`.)"""
        return self.code == 409 and self.refusal.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """The object, or the quota it counts into, changed meanwhile; or a precondition did not hold."""
        return self.code == 409 and self.refusal.reason != "AlreadyExists"

    @property
    def gone(self) -> bool:
        """The resourceVersion or the continue token is too old: list again."""
        return self.code == 410 or self.refusal.reason in ("Expired", "Gone")


def refusal_of(code: int, body: bytes, retry_after: str | None = None) -> Refusal:
    """Read a Status object; whatever else a proxy in between may send becomes the message."""
    try:
        status = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = _Status(message=body[:500].decode(errors="replace").strip())
    details = status.details or _Details()
    seconds = _seconds(retry_after)
    if seconds is None and details.retry_after_seconds > 0:
        seconds = details.retry_after_seconds
    return Refusal(status.code or code, status.reason, status.message, seconds, details.causes or ())


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else max(0.0, float(header))
    except ValueError:
        return 1.0  # the form with a date, which no API server sends: be polite, and do not read clocks
