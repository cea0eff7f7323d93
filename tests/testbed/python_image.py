"""A real image, of one layer, with this machine's Python and some packages of the virtual environment.

Nothing of it is borrowed by hostPath, which the `restricted` profile forbids: it is what a registry would hold.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from testbed.images import Content, Symlink, image

_PYTHON = "/opt/python"
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_PACKAGES = f"{_PYTHON}/lib/{_VERSION}/site-packages"
_NOT_NEEDED = ("test", "idlelib", "tkinter", "ensurepip", "lib2to3", "site-packages", "turtledemo", "__pycache__")
_LIBRARY = re.compile(r"=> (/\S+) \(|^\s*(/\S*ld-linux\S+) \(", re.MULTILINE)


def python_image(
    name: str,
    packages: Sequence[str],
    sources: Mapping[str, Path],
    *,
    scripts: Mapping[str, str] | None = None,
    entrypoint: Sequence[str] = (),
    user: str = "",
) -> bytes:
    """The archive of an image with Python and a shell.

    `packages` are distributions with what they require; `sources` maps a package's name to a folder; `scripts` maps
    the name of a program to `module:function`.
    """
    folders = ("/etc", "/tmp", "/proc", "/sys", "/dev", "/run", "/var", "/usr", "/usr/bin")
    files: dict[str, Content] = dict.fromkeys(folders)
    files |= {f"/{link}": Symlink(f"usr/{link}") for link in ("bin", "lib", "lib64", "sbin")}
    files["/etc/passwd"] = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
    files["/etc/group"] = "root:x:0:\nnogroup:x:65534:\n"
    files["/etc/nsswitch.conf"] = "hosts: files dns\n"
    files |= {"/usr/bin/sh": _real("/bin/sh"), "/usr/bin/sleep": _real("/bin/sleep")}
    files[f"{_PYTHON}/bin/python3"] = _real(sys.executable)
    files |= {f"/usr/bin/{link}": Symlink(f"{_PYTHON}/bin/python3") for link in ("python3", "python")}
    files |= _standard_library()
    for distribution in _with_requirements(packages):
        files |= _files_of(distribution)
    files |= {f"{_PACKAGES}/{package}": folder for package, folder in sources.items()}
    for script, target in (scripts or {}).items():
        module, _, function = target.partition(":")
        start = f"#!{_PYTHON}/bin/python3\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        files[f"/usr/bin/{script}"] = start
    files |= _libraries([content for content in files.values() if isinstance(content, Path) and content.is_file()])
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    return image(name, files, entrypoint=entrypoint, environment=environment, user=user)


def _real(path: str) -> Path:
    return Path(os.path.realpath(path))


def _standard_library() -> dict[str, Content]:
    home = Path(sysconfig.get_path("stdlib", vars={"installed_base": os.path.realpath(sys.base_prefix)}))
    files: dict[str, Content] = {}
    for child in sorted(home.iterdir()):
        if child.name == "lib-dynload":
            extensions = (one for one in sorted(child.iterdir()) if not one.name.startswith(("_test", "_tkinter")))
            files |= {f"{_PYTHON}/lib/{_VERSION}/lib-dynload/{one.name}": one for one in extensions}
        elif child.name not in _NOT_NEEDED and not child.name.startswith("config-"):
            files[f"{_PYTHON}/lib/{_VERSION}/{child.name}"] = child
    return files


def _with_requirements(packages: Iterable[str]) -> list[importlib.metadata.Distribution]:
    """Each once, with what it cannot do without; extras and what is only for other machines are left out."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(packages)
    while waiting:
        name = re.split(r"[^A-Za-z0-9._-]", waiting.pop())[0]
        key = name.lower().replace("_", "-")
        if key in found:
            continue
        try:
            found[key] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name in packages:
                raise
            continue  # for another Python or another system
        waiting += [one for one in found[key].requires or () if "extra ==" not in one]
    return list(found.values())


def _files_of(distribution: importlib.metadata.Distribution) -> dict[str, Content]:
    files: dict[str, Content] = {}
    for file in distribution.files or ():
        if file.suffix != ".pyc" and ".." not in file.parts:
            files[f"{_PACKAGES}/{file}"] = Path(str(file.locate()))
    return files


def _libraries(files: Sequence[Path]) -> dict[str, Content]:
    """What these need of shared libraries, where the loader looks for them without any configuration."""
    binary = [file for file in files if file.suffix == ".so" or _is_program(file)]
    said = subprocess.run(["ldd", *map(str, binary)], capture_output=True, text=True, check=False).stdout
    found: dict[str, Content] = {}
    for library, loader in _LIBRARY.findall(said):
        if loader:
            found[f"/usr/lib64/{Path(loader).name}"] = _real(loader)
        else:
            found[f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}/{Path(library).name}"] = _real(library)
    return found


def _is_program(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"\x7fELF"
