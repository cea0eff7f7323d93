"""Makes `.venv` with everything: pinned, quiet, quick the second time. Needs only Python's own venv and pip."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / ".orchestra-setup"
MINIMUM = (3, 11)
_STEP = re.compile(
    r"^\s*(Collecting|Downloading|Using cached|Installing|Building|Preparing)(?: collected packages:)?\s+([\w.-]+)"
)


def wanted() -> str:
    """What the environment is made from; another text means set-up must run again."""
    parts = [sys.version, str(VENV)]
    parts += [(ROOT / name).read_text() for name in ("pyproject.toml", "constraints.txt")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def install() -> int:
    """Runs pip, showing one line that moves instead of its hundred that do not."""
    command = [
        str(VENV / "bin" / "python"), "-m", "pip", "install", "--progress-bar", "off", "--no-input",
        "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt"), "-e", f"{ROOT}[dev,deepspeed]",
    ]  # fmt: skip
    env = os.environ | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    begun = shown = time.monotonic()
    lines: list[str] = []
    moving = sys.stderr.isatty()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as pip:
        for line in pip.stdout or ():
            lines.append(line)
            step = _STEP.match(line)
            now = time.monotonic()
            if step and (moving or now - shown > 15):
                shown = now
                end = "\r" if moving else "\n"
                text = f"setting up ({now - begun:.0f} s): {step[1].lower()} {step[2]}"
                print(f"{text[:78]:<78}", end=end, file=sys.stderr, flush=True)
    if pip.returncode:
        print("".join(lines[-30:]), file=sys.stderr)
        print("set-up failed: the end of pip's output is above", file=sys.stderr)
        return 1
    print(f"{f'set up in {time.monotonic() - begun:.0f} s':<78}", file=sys.stderr)
    return 0


def main() -> int:
    """0 when the environment is ready."""
    if sys.version_info < MINIMUM:
        have, need = sys.version.split()[0], ".".join(map(str, MINIMUM))
        print(f"Python {need} or newer is needed, this is {have}; try: make PYTHON=python3.12 ...", file=sys.stderr)
        return 1
    mark = wanted()
    if STAMP.exists() and STAMP.read_text() == mark:
        return 0
    print("setting up .venv: torch is large, this takes a minute or two, once", file=sys.stderr)
    if not (VENV / "bin" / "python").exists():
        venv.create(VENV, with_pip=True, symlinks=True)
    STAMP.unlink(missing_ok=True)
    if install():
        return 1
    STAMP.write_text(mark)
    # Gigabytes were just written: unless they reach the disk now, the next program waits for them at its first fsync.
    os.sync()
    return 0


if __name__ == "__main__":
    sys.exit(main())
