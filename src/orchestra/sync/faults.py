"""What an object store's error means: whether to try again, whether to slow down, and what to tell the user."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass

from orchestra.sync.errors import Changed, Missing, NoAccess, NoRoom, SyncError, Taken, Unreachable

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "specified bucket does not exist")
# Without credentials in the environment the library asks the machine for its role; where there is none, that fails.
_NO_CREDENTIALS = (
    "169.254.169.254", "169.254.170.2", "/latest/api/token", "/latest/meta-data", "computeMetadata", "metadata.google",
    "redential",
)  # fmt: skip
_SLOW_DOWN = {429, 503}
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class Fault:
    """One failed request, understood."""

    kind: type[SyncError]
    words: str
    passing: bool = False
    """Whether the same request may well succeed a little later."""
    slow_down: bool = False

    def told(self, what: str, url: str) -> SyncError:
        """The error for the user."""
        error = self.kind(f"cannot {what} at {url}: {self.words}".replace("  ", " "))
        error.__dict__["fault"] = self
        return error


class AlreadyThere(Fault):
    """A create-only put found an object."""


def fault_of(error: BaseException) -> Fault:
    """Understand an error of obstore. Its own text goes no further: it may hold a signed URL."""
    from obstore import exceptions

    text = str(error).split("\n\nDebug source")[0]
    status = int(found[1]) if (found := _STATUS.search(text)) else 0
    number = int(found[1]) if (found := _OS_ERROR.search(text)) else getattr(error, "errno", None) or 0
    code = found[1] if (found := _CODE.search(text)) else ""
    said = f" ({' '.join(str(one) for one in (status or '', code) if one)})" if status or code else ""
    if isinstance(error, exceptions.AlreadyExistsError):
        return AlreadyThere(Taken, "it is there already")
    if isinstance(error, exceptions.PreconditionError) or status == 412:
        return Fault(Changed, "it was changed by somebody while it was read")
    if any(sign in text for sign in _NO_BUCKET):
        return Fault(Missing, f"there is no such bucket or container{said}; create it, or mend the URL")
    if number in _FULL:
        return Fault(NoRoom, f"the disk is full: {os.strerror(number)}")
    if isinstance(error, FileNotFoundError) or status == 404:
        return Fault(Missing, f"it is not there{said}")
    denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, PermissionError)
    if isinstance(error, denied) or status in (401, 403) or number in (errno.EACCES, errno.EPERM):
        mend = "check the credentials and what they allow"
        return Fault(NoAccess, f"access was denied{said or _os_words(number)}; {mend}")
    if not status and any(sign in text for sign in _NO_CREDENTIALS):
        mend = "set them in the environment, or give the machine a role"
        return Fault(NoAccess, f"there are no credentials for it; {mend}")
    if status:
        return Fault(Unreachable, f"the server answered {status}{f' {code}' if code else ''}",
                     passing=status in _PASSING, slow_down=status in _SLOW_DOWN or code == "SlowDown")  # fmt: skip
    if "HTTP error" in text:
        cause = _URL.sub("", text.split("HTTP error:")[-1]).strip(" -:()\n")[:120]
        return Fault(Unreachable, f"the server did not answer ({cause or 'connection lost'})", passing=True)
    if "No CA certificates" in str(error):
        return Fault(SyncError, "this image has no CA certificates; install ca-certificates, or set SSL_CERT_FILE")
    return Fault(SyncError, _harmless(text))


def _os_words(number: int) -> str:
    return f" ({os.strerror(number)})" if number else ""


def _harmless(text: str) -> str:
    """Words of the library, without addresses and without what our environment holds as secret."""
    text = _URL.sub("...", text.split("\n")[0])[:200]
    for name, value in os.environ.items():
        if len(value) >= 6 and re.search(r"KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL|SAS", name):
            text = text.replace(value, "...")
    return text
