"""CPU seconds of `orchestra --help` and `orchestra list`, against a bare `python -c pass` in the same run."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def cpu_of(command: list[str]) -> float:
    """CPU seconds of a command, children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Medians of ten."""
    orchestra = str(Path(sys.executable).with_name("orchestra"))
    with tempfile.TemporaryDirectory() as home:
        os.environ["ORCHESTRA_HOME"] = home
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "orchestra --help": [orchestra, "--help"],
            "orchestra list": [orchestra, "list"],
        }
        medians = {name: statistics.median(cpu_of(command) for _ in range(10)) for name, command in commands.items()}
    for name, median in medians.items():
        print(f"{name:<18} {median * 1000:6.0f} ms CPU   {median / medians['python -c pass']:.1f} x bare python")
    print(f"goal: --help within 200 ms: {'met' if medians['orchestra --help'] <= 0.2 else 'missed'}")


if __name__ == "__main__":
    main()
