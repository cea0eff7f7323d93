"""`.env` files: names and values, as people write them. An error never shows a value."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from orchestra.api.engine import EngineError

_LINE = re.compile(r"^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*(.*?)\s*$")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "\\": "\\", "$": "$"}


def read_env_file(path: Path) -> dict[str, str]:
    """Its variables. Raises `EngineError` with file and line, and without the line's text."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EngineError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    return parse_env(text, str(path))


def parse_env(text: str, path: str) -> dict[str, str]:
    """The variables of a text; `path` is how mistakes call it."""
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise EngineError(f"{path}:{number}: not a line of the form NAME=value")
        name, value = match[1], _value(match[2])
        if value is None:
            raise EngineError(f"{path}:{number}: the quotes of {name} do not close on the same line")
        if name in found:
            raise EngineError(f"{path}:{number}: {name} is there twice")
        found[name] = value
    return found


def _value(text: str) -> str | None:
    """Quotes as a shell reads them, one line only; a comment after a plain value is left out."""
    quote = text[:1]
    if quote not in ("'", '"'):
        return re.split(r"\s+#", text, maxsplit=1)[0]
    end = _closing(text, quote)
    if end is None or not re.fullmatch(r"\s*(#.*)?", text[end + 1 :]):
        return None
    inner = text[1:end]
    if quote == "'":
        return inner
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[0]), inner)


def _closing(text: str, quote: str) -> int | None:
    skip = False
    for index, letter in enumerate(text[1:], 1):
        if skip:
            skip = False
        elif letter == "\\" and quote == '"':
            skip = True
        elif letter == quote:
            return index
    return None


def is_in_git(path: Path) -> bool:
    """Whether git keeps the file: then whoever has the repository has the secrets."""
    where = path.absolute()
    command = ["git", "-C", str(where.parent), "ls-files", "--error-unmatch", where.name]
    try:
        return subprocess.run(command, capture_output=True, check=False, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
