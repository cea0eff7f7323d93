"""What a container really runs: words, a shell line, a script from a ConfigMap, or our own forms."""

from __future__ import annotations

import re

from orchestra.render.agent_form import UPLOAD
from orchestra.render.convert.foreign_script import read_script
from orchestra.render.convert.our_forms import Process, is_our_script, read_launch_spec, read_our_script
from orchestra.render.convert.reading import Findings, Objects, Raw, take

ENTRYPOINT = "THE-IMAGES-ENTRYPOINT"
"""Stands where only the image knows the program."""
_SHELLS = ("sh", "bash", "/bin/sh", "/bin/bash", "/usr/bin/bash", "/usr/bin/env")


def read_process(pod: Raw, container: Raw, env: dict[str, str], objects: Objects, findings: Findings) -> Process:
    """The process of the trainer's container. Takes `command`, `args` and the script's volume away."""
    command, args = take(container, "command", default=[]), take(container, "args", default=[])
    if args and not command:
        findings.guessed.append(f"{ENTRYPOINT}: arguments without a command go to the image's own; write it there")
        command = [ENTRYPOINT]
    words = [*command, *args]
    words = [_kubernetes_variable(word) for word in words]
    files = _config_files(pod, container, objects)
    if findings.ours:
        for path, (_, text, _) in files.items():
            if path.endswith("/launch.json"):
                return read_launch_spec(
                    text, next((one[1] for name, one in files.items() if name.endswith(UPLOAD)), "")
                )
            if is_our_script(text):
                return read_our_script(text)
    if words and words[0] in _SHELLS and len(words) > 1:
        return _shell(words, env, files, pod, container, objects)
    for word in words[:1]:
        if word in files:
            return _script_file(word, env, files, pod, container, objects)
    return Process(words=words)


def _kubernetes_variable(word: str) -> str:
    """`$(NNODES)` of a container's args as a shell writes it."""
    return re.sub(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", r"${\1}", word)


def _shell(
    words: list[str],
    env: dict[str, str],
    files: dict[str, tuple[str, str, Raw]],
    pod: Raw,
    container: Raw,
    objects: Objects,
) -> Process:
    flags = [word for word in words[1:] if word.startswith("-")]
    rest = [word for word in words[1:] if not word.startswith("-")]
    if any("c" in flag for flag in flags) and rest:
        text = rest[0]
        named = [path for path in files if path in text]
        if named:
            return _script_file(named[0], env, files, pod, container, objects)
        read = read_script(text, env)
        return read if read.words else Process(words=words)
    if rest and rest[0] in files:
        return _script_file(rest[0], env, files, pod, container, objects)
    return Process(words=words)


def _script_file(
    path: str, env: dict[str, str], files: dict[str, tuple[str, str, Raw]], pod: Raw, container: Raw, objects: Objects
) -> Process:
    """A script from a ConfigMap: it is understood, so its volume is not needed any more."""
    volume, text, config_map = files[path]
    read = read_script(text, env)
    if not read.words:
        return Process(words=["/bin/sh", path], guessed=[f"{path} launches nothing that is known; it is run as it is"])
    key = path.rpartition("/")[2]
    if set(config_map.get("data", {})) - {key}:
        return read  # other files of the same ConfigMap may be needed: its volume stays
    objects.remove(config_map)
    for tree, name in ((pod.get("spec", {}), "volumes"), (container, "volumeMounts")):
        tree[name] = [one for one in tree.get(name, []) if one.get("name") != volume]
    return read


def _config_files(pod: Raw, container: Raw, objects: Objects) -> dict[str, tuple[str, str, Raw]]:
    """Files that come from ConfigMaps: path -> volume, text, object."""
    volumes = {one.get("name"): one for one in pod.get("spec", {}).get("volumes", [])}
    found: dict[str, tuple[str, str, Raw]] = {}
    for mount in container.get("volumeMounts", []):
        volume = volumes.get(mount.get("name"), {})
        sources = [
            volume.get("configMap"),
            *(one.get("configMap") for one in volume.get("projected", {}).get("sources", [])),
        ]
        for source in [one for one in sources if one]:
            config_map = objects.named("ConfigMap", source.get("name"))
            for key, text in (config_map or {}).get("data", {}).items():
                path = mount["mountPath"] if mount.get("subPath") == key else f"{mount['mountPath'].rstrip('/')}/{key}"
                if mount.get("subPath") in (None, key) and config_map is not None:
                    found[path] = (str(mount["name"]), text, config_map)
    return found
