import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from testbed import images
from testbed.images import Symlink


def unpack(archive: bytes) -> tuple[dict[str, Any], dict[str, Any], tarfile.TarFile]:
    """Manifest, config and the layer of a docker-archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        manifest = json.loads(read(tar, "manifest.json"))[0]
        config = json.loads(read(tar, manifest["Config"]))
        layer = read(tar, manifest["Layers"][0])
    return manifest, config, tarfile.open(fileobj=io.BytesIO(layer))


def read(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    assert file is not None
    return file.read()


def test_an_image_holds_text_bytes_links_folders_and_files_of_the_machine(tmp_path: Path) -> None:
    script = tmp_path / "package" / "run.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    (tmp_path / "package" / "__pycache__").mkdir()

    files: dict[str, images.Content] = {
        "/etc/hello": "hello\n",
        "/data": b"\x00\x01",
        "/bin": Symlink("usr/bin"),
        "/tmp": None,
        "/app": tmp_path / "package",
    }
    manifest, config, layer = unpack(images.image("docker.io/local/x:1", files, entrypoint=["/app/run.sh"]))

    assert manifest["RepoTags"] == ["docker.io/local/x:1"]
    assert config["config"]["Entrypoint"] == ["/app/run.sh"]
    assert read(layer, "etc/hello") == b"hello\n"
    assert read(layer, "data") == b"\x00\x01"
    assert layer.getmember("bin").linkname == "usr/bin"
    assert layer.getmember("tmp").mode == 0o1777
    assert layer.getmember("app/run.sh").mode == 0o755
    assert "app/__pycache__" not in layer.getnames()


def test_the_same_input_gives_the_same_bytes() -> None:
    assert images.host_image() == images.host_image()


def test_standard_images_are_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_compile_static", lambda _source: b"\x7fELF")  # not every machine has a compiler
    first = images.standard_images(tmp_path)
    made_at = [tar.stat().st_mtime_ns for tar in first]

    assert images.standard_images(tmp_path) == first
    assert [tar.stat().st_mtime_ns for tar in first] == made_at
