"""Which names and links may travel. The same rules where a folder is read, where a manifest arrives, where it lands."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

_NAME_BYTES = 255
_PATH_BYTES = 4096
_HOPS = 40


def what_is_wrong_with_name(name: str) -> str | None:
    """Why a single name cannot travel, or None."""
    if name.isascii() and name.isprintable() and "\\" not in name and "/" not in name and 0 < len(name) <= _NAME_BYTES:
        return "`.` and `..` are no names" if name in (".", "..") else None
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if not name or length > _NAME_BYTES:
        return "its name is empty" if not name else f"its name is longer than {_NAME_BYTES} bytes"
    if "\0" in name:
        return "its name holds a NUL"
    if "\\" in name or "/" in name:
        return "its name holds a slash or backslash, which elsewhere separates folders"
    if any(unicodedata.category(letter) == "Cc" for letter in name):
        return "its name holds a control character"
    return None


def what_is_wrong_with_path(path: str) -> str | None:
    """Why a relative path cannot travel, or None."""
    if path.startswith("/"):
        return "it is absolute"
    for name in path.split("/"):
        wrong = what_is_wrong_with_name(name)
        if wrong:
            return wrong
    return None if len(path.encode()) <= _PATH_BYTES else f"it is longer than {_PATH_BYTES} bytes"


class Twins:
    """Finds paths that are one and the same on a file system that folds case or composes accents."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}

    def add(self, path: str) -> str | None:
        """What is wrong with this path beside those before it, or None."""
        folded = path.lower() if path.isascii() else unicodedata.normalize("NFC", path.casefold())
        other = self._seen.setdefault(folded, path)
        return None if other == path else f"is the same name as {other} where case or accents do not count"


def escapes(path: str, links: Mapping[str, str]) -> str | None:
    """Why a link leads out of the tree, or None. `links` are all links of the tree with their targets.

    Follows the other links of the tree as a kernel would: `b/..` is not `.` where `b` is itself a link.
    A link to nothing inside the tree is harmless and allowed.
    """
    target = links[path]
    if not target or "\0" in target:
        return "it points nowhere"
    if target.startswith("/"):
        return f"it points out of the folder, to {target}"
    at = path.split("/")[:-1]
    ahead = target.split("/")[::-1]
    hops = 0
    while ahead:
        name = ahead.pop()
        if name in ("", "."):
            continue
        if name == "..":
            if not at:
                return f"it points out of the folder, to {target}"
            at.pop()
            continue
        at.append(name)
        further = links.get("/".join(at))
        if further is None:
            continue
        hops += 1
        if hops > _HOPS:
            return "it points to itself"
        if further.startswith("/"):
            return f"it points out of the folder, by way of {'/'.join(at)}"
        at.pop()
        ahead.extend(further.split("/")[::-1])
    return None
