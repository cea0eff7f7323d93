"""The lines of a watch and what they mean."""

import enum
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from orchestra.kube.errors import ApiError, refusal_of
from orchestra.kube.objects import Metadata

A = TypeVar("A")

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class LineSplitter:
    """Cuts a stream of bytes into lines of any length. A line without its end is never given out."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []  # pieces of an unfinished line, joined once: a large object comes in many

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that these bytes complete, without empty ones."""
        end = data.rfind(b"\n")
        if end < 0:
            self._begun.append(data)
            return []
        lines = b"".join((*self._begun, data[:end])).split(b"\n")
        self._begun = [data[end + 1 :]] if end + 1 < len(data) else []
        return [line for line in lines if line.strip()]


class EventType(enum.Enum):
    """What a line is about."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


class WatchEvent(msgspec.Struct):
    """One line; the object stays raw until its type is known."""

    type: EventType
    object: msgspec.Raw


class ObjectEvent(msgspec.Struct, Generic[A]):
    """One line about an object, decoded in one go: what nearly all lines are."""

    type: EventType
    object: A


class Bookmark(msgspec.Struct):
    """How far the watch has come, though nothing was there to tell."""

    metadata: Metadata

    @property
    def ends_initial_events(self) -> bool:
        """Whether all objects that existed at the start have been sent."""
        return (self.metadata.annotations or {}).get(INITIAL_EVENTS_END) == "true"


def object_event_decoder(kind: type[A]) -> Callable[[bytes], ObjectEvent[A]]:
    """The decoder of lines about objects of a type. Other lines may fit by accident: look at the type."""
    return msgspec.json.Decoder(ObjectEvent[kind]).decode  # type: ignore[valid-type]  # a type at run time


decode_event = msgspec.json.Decoder(WatchEvent).decode
decode_bookmark = msgspec.json.Decoder(Bookmark).decode


def error_of(event: WatchEvent, request: str) -> ApiError:
    """What an ERROR event says. A 410 in here is the same as a 410 in the status line."""
    return ApiError(f"WATCH {request}", refusal_of(500, bytes(event.object)))


def newer(version: str, than: str) -> bool:
    """Whether a resourceVersion comes after another one. Versions that are not numbers are taken as newer: better
    to see a thing twice than never.
    """
    try:
        return int(version) > int(than)
    except ValueError:
        return True
