"""LIST: which objects, and page by page."""

from typing import Generic, TypeVar

import msgspec

A = TypeVar("A")


class Selection(msgspec.Struct, frozen=True):
    """Which objects of a kind, chosen by the server."""

    namespace: str | None = None
    """None means all namespaces."""
    labels: str = ""
    """A label selector, such as `app=x,tier in (a, b)`."""
    fields: str = ""
    """A field selector, such as `spec.nodeName=a`."""

    def query(self) -> dict[str, str]:
        """As the API wants it."""
        query = {"labelSelector": self.labels} if self.labels else {}
        return {**query, "fieldSelector": self.fields} if self.fields else query


EVERYTHING = Selection()


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    next_page: str = msgspec.field(default="", name="continue")


class _Listed(msgspec.Struct, Generic[A]):
    metadata: _ListMetadata
    items: list[A] | None = None


class Page(msgspec.Struct, Generic[A]):
    """One page of a LIST. An item that cannot be decoded does not take the others along."""

    version: str
    after: str
    """Where the next page begins; empty when there is none."""
    items: list[A]
    unreadable: list[msgspec.Raw] = []


def read_page(body: bytes, kind: type[A]) -> Page[A]:
    """Decode a LIST: all items at once, and one by one only where one of them does not fit."""
    try:
        listed = msgspec.json.decode(body, type=_Listed[kind])  # type: ignore[valid-type]  # a type at run time
        return Page(listed.metadata.resource_version, listed.metadata.next_page, listed.items or [])
    except msgspec.ValidationError:
        raw = msgspec.json.decode(body, type=_Listed[msgspec.Raw])
    page: Page[A] = Page(raw.metadata.resource_version, raw.metadata.next_page, [], [])
    decode = msgspec.json.Decoder(kind).decode
    for item in raw.items or ():
        try:
            page.items.append(decode(item))
        except msgspec.ValidationError:
            page.unreadable.append(item)
    return page
