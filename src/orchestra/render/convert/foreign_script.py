"""Reading a shell script that someone wrote for a pod: where it gets code and data, what it sets up, what it launches.

Not a shell: lines of the common kinds are understood, the rest becomes the set-up command or is listed as left out.
"""

from __future__ import annotations

import re
import shlex

from orchestra.render.convert.our_forms import Process

_ASSIGNMENT = re.compile(r"^(export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)$")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)")
_OURS = frozenset(
    [
        "NNODES",
        "NODE_RANK",
        "RANK",
        "NPROC_PER_NODE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "WORLD_SIZE",
        "POD_NAME",
        "HOSTNAME",
    ]
)
# What only tells, marks or shields, and has its own place in Orchestra.
_NOISE = re.compile(
    r"^(echo|ls|touch|set|pip list|nvidia-smi|env|pwd|mkdir -p|chmod|pkill|exec\s*>|true|:|exit|trap)\b|^(:|exec >.*)$"
)
_LAUNCH = re.compile(r"^(exec\s+|nohup\s+)?(\S*/)?(torchrun|deepspeed|accelerate|python[0-9.]*)\s")


def read_script(text: str, known: dict[str, str]) -> Process:
    """What a script does. `known` are variables of the container."""
    found = Process()
    variables = dict(known)
    setup: list[str] = []
    inside = 0
    for line in _logical_lines(text):
        if re.match(r"^(function\s+)?[A-Za-z_]\w*\s*\(\)\s*\{?$", line) or line.startswith(("while ", "for ", "if ")):
            inside += 1
        if inside:
            _read_loop_line(line, variables, found)
            inside -= line in ("}", "fi") or line.startswith("done")
            continue
        _read_line(line, variables, found, setup)
    if setup and found.words:
        found.setup = "\n".join(setup)
        found.guessed.append(f"lines before the launch became setupCommand: {'; '.join(setup)}")
    return found


def _logical_lines(text: str) -> list[str]:
    joined = text.replace("\\\n", " ")
    lines = [re.sub(r"(^|\s)#.*$", "", line).strip() for line in joined.split("\n")]
    return [part.strip() for line in lines if line for part in _statements(line)]


def _statements(line: str) -> list[str]:
    """`a && b; c` as three, where no quote is in the way."""
    return re.split(r"\s*(?:&&|;)\s+", line) if not re.search(r"['\"]", line) else [line]


def _expand(text: str, variables: dict[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return found[0] if name in _OURS else variables.get(name, found[0])

    expanded = _REFERENCE.sub(value, text)
    # "$FOLDER/file" with a folder that ends in a slash.
    return re.sub(r"(?<!:)//+", "/", expanded) if expanded != text else text


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


def _read_loop_line(line: str, variables: dict[str, str], found: Process) -> None:
    """Of functions and loops only a periodic upload is understood."""
    line = _expand(line, variables)
    if line.startswith("aws s3"):
        _read_sync(_words(line), variables, found)
    elif re.match(r"^sleep \d+", line):
        found.sync["interval"] = int(line.split()[1])
    elif _LAUNCH.match(line):
        found.left_out.append(f"script: {line}")


def _read_line(line: str, variables: dict[str, str], found: Process, setup: list[str]) -> None:
    assigned = _ASSIGNMENT.match(line)
    if assigned and " " not in _unquoted(assigned[3]):
        value = _expand(_unquoted(assigned[3]), variables)
        variables[assigned[2]] = value
        if assigned[1] and assigned[2] not in _OURS:
            found.env[assigned[2]] = value
        return
    line = _expand(line, variables).removesuffix("&").strip()
    words = _words(line)
    if not words:
        return
    if words[:2] == ["aws", "s3"]:
        _read_sync(words, variables, found)
    elif words[0] == "cd" and len(words) == 2:
        found.working_dir = words[1]
    elif words[:2] == ["conda", "create"]:
        version = next((word.partition("=")[2] for word in words if word.startswith("python=")), None)
        found.environment |= {"manager": "conda", **({"python": version} if version else {})}
    elif "pip" in words[:3] and "-r" in words:
        found.environment["requirements"] = words[words.index("-r") + 1]
    elif words[0] in ("source", ".", "conda"):
        found.guessed.append(f"the environment is Orchestra's to activate: {line}")
    elif _LAUNCH.match(line + " ") and not found.words and "-c" not in words[1:2]:
        found.words = words[1:] if words[0] in ("exec", "nohup") else words
    elif not _NOISE.match(line) and not re.match(r"^[A-Za-z_]\w*$", line):
        (found.left_out if found.words else setup).append(line if not found.words else f"script: {line}")


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def _read_sync(words: list[str], variables: dict[str, str], found: Process) -> None:
    """`aws s3 sync FROM TO`: from a store it is code, data or old outputs; to a store it is the output."""
    places = [word for word in words[3:] if not word.startswith("-")][:2]
    if len(places) != 2 or words[2] != "sync":
        found.left_out.append(f"script: {' '.join(words)}")
        return
    source, target = places
    if target.startswith("s3://"):
        found.sync["output"] = target
        found.folders["output"] = source.rstrip("/")
    elif source.startswith("s3://"):
        folder = target.rstrip("/")
        names = {name.lower() for name, value in variables.items() if value.rstrip("/") in (folder, source.rstrip("/"))}
        said = " ".join([folder.rpartition("/")[2], *names])
        what = next((kind for kind in ("output", "data", "code") if kind in said), None)
        if what is None:
            what = "output" if re.search(r"\bout|checkpoint", said) else "data" if "code" in found.sync else "code"
        found.sync.setdefault(what, source)
        if what != "code":
            found.folders[what] = folder
        if what == "code":
            found.working_dir = found.working_dir or folder
