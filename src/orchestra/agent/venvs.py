"""The Python environment of a worker: requirements installed once a node, kept by content, used by every rank.

A venv sees the packages of the image's own Python (torch!); what the requirements name is laid over them. A conda
environment brings everything itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_COMPLETE = ".orchestra-complete"
_ABOUT = "import json, site, sys; print(json.dumps([sys.version, sys.prefix, site.getsitepackages()]))"


class NoEnvironment(Exception):
    """It cannot be made; says why and what would help."""


def make(orders_file: str) -> int:
    """`agent.pyz environment ORDERS.json`: makes the environment, or finds it, and writes where it is."""
    orders = json.loads(Path(orders_file).read_text("utf-8"))
    try:
        found = environment(orders, os.environ)
    except NoEnvironment as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    Path(orders["answer"]).write_text(json.dumps({"folder": str(found)}), "utf-8")
    return 0


def environment(orders: Mapping[str, Any], env: Mapping[str, str]) -> Path:
    """The environment's folder. Only one process a node makes it; the others wait, and find it."""
    requirements = Path(orders["workingDir"]) / (orders.get("requirements") or "requirements.txt")
    try:
        text = requirements.read_bytes()
    except OSError as error:
        raise NoEnvironment(f"requirements {requirements}: {error.strerror}") from error
    maker = _Conda(orders, env) if orders.get("manager") == "conda" else _Venv(orders, env)
    key = hashlib.sha256(b"\0".join([text, maker.identity.encode(), _named_files(text, requirements.parent)]))
    folder = Path(orders["cache"]) / f"env-{key.hexdigest()[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.with_suffix(".lock"), "w") as lock:  # noqa: PTH123
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _COMPLETE).exists():
            print(f"environment {folder.name} is here already", flush=True)
            return folder
        shutil.rmtree(folder, ignore_errors=True)  # of one that was killed: an environment cannot be moved
        print(f"making environment {folder.name} from {requirements.name}", flush=True)
        maker.create(folder)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
               "--progress-bar", "off", "-r", str(requirements)]  # fmt: skip
        _run(pip, env, f"the requirements of {requirements.name} could not be installed")
        (folder / _COMPLETE).touch()
    return folder


def _named_files(text: bytes, folder: Path) -> bytes:
    """Content of files beside the requirements that they name: a wheel, `-r more.txt`."""
    digest = hashlib.sha256()
    for word in text.decode("utf-8", "replace").split():
        with contextlib.suppress(OSError, ValueError):
            if (folder / word).is_file():
                digest.update((folder / word).read_bytes())
    return digest.digest()


class _Venv:
    def __init__(self, orders: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self._env = env
        wanted = orders.get("python")
        self._python = orders["interpreter"]
        about = self._about(self._python)
        if wanted and not about[0].startswith(f"{wanted}.") and not about[0].startswith(f"{wanted} "):
            short = ".".join(wanted.split(".")[:2])
            other = shutil.which(f"python{short}", path=env.get("PATH"))
            if other is None:
                raise NoEnvironment(
                    f"environment.python: there is no Python {wanted} here ({self._python} is {about[0].split()[0]}); "
                    f"use an image with python{short}, or manager: conda"
                )
            self._python, about = other, self._about(other)
        self._sites: list[str] = about[2]
        self.identity = json.dumps(["venv", self._python, *about])

    def _about(self, python: str) -> list[Any]:
        done = subprocess.run([python, "-c", _ABOUT], capture_output=True, text=True, check=False, env=dict(self._env))
        if done.returncode:
            raise NoEnvironment(f"{python} does not run: {done.stderr.strip()[-300:]}")
        about: list[Any] = json.loads(done.stdout)
        return about

    def create(self, folder: Path) -> None:
        """A venv over the interpreter's own packages, also where that is a venv itself."""
        _run([self._python, "-m", "venv", str(folder)], self._env, "the venv could not be made (python3-venv missing?)")
        done = subprocess.run([folder / "bin" / "python", "-c", _ABOUT], capture_output=True, text=True, check=True)
        own = Path(json.loads(done.stdout)[2][0])
        (own / "_orchestra_base.pth").write_text(
            "".join(f"import site; site.addsitedir({site!r})\n" for site in self._sites)
        )


class _Conda:
    def __init__(self, orders: Mapping[str, Any], env: Mapping[str, str]) -> None:
        self._env, self._version = dict(env), orders.get("python") or ""
        self._env.setdefault("MAMBA_ROOT_PREFIX", f"{orders['cache']}/mamba")  # micromamba has no place of its own
        self._conda = next((found for name in ("conda", "mamba", "micromamba")
                            if (found := shutil.which(name, path=env.get("PATH")))), None)  # fmt: skip
        if self._conda is None:
            raise NoEnvironment("environment.manager: conda is not installed here; use manager: venv, or another image")
        self.identity = json.dumps(["conda", self._conda, self._version])

    def create(self, folder: Path) -> None:
        """A whole Python of its own."""
        python = f"python={self._version}" if self._version else "python"
        channel = ["-c", "conda-forge"] if str(self._conda).endswith("micromamba") else []  # it has none by default
        _run([str(self._conda), "create", "-y", "-q", "-p", str(folder), *channel, python, "pip"], self._env,
             "the conda environment could not be made")  # fmt: skip


def _run(argv: list[str], env: Mapping[str, str], otherwise: str) -> None:
    try:
        code = subprocess.run(argv, env=dict(env), check=False, stdin=subprocess.DEVNULL).returncode
    except OSError as error:
        raise NoEnvironment(f"{otherwise}: {argv[0]}: {error.strerror}") from error
    if code:
        raise NoEnvironment(f"{otherwise}: exit code {code}")


def inside(folder: str, env: dict[str, str]) -> None:
    """Everything that is started with `env` lives in the environment from now on."""
    env["PATH"] = f"{folder}/bin{os.pathsep}{env.get('PATH', os.defpath)}"
    env["VIRTUAL_ENV"] = folder
    env.pop("PYTHONHOME", None)


def launched_inside(argv: list[str], folder: str) -> list[str]:
    """A launch line whose Python, or torchrun, is the environment's."""
    name = argv[0].rpartition("/")[2] if argv else ""
    python = f"{folder}/bin/python"
    if name == "torchrun":
        return [python, "-m", "torch.distributed.run", *argv[1:]]
    return [python, *argv[1:]] if name.startswith("python") else argv
