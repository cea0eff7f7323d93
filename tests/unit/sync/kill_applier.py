"""A program that flips a tree between two snapshots as fast as it can, to be killed at any moment."""

import sys
from pathlib import Path

from orchestra.sync.apply import apply
from orchestra.sync.blobs import FolderSource
from orchestra.sync.index import Index
from orchestra.sync.snapshot import snapshot

root, folders = Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
manifests = [snapshot(folder, index=Index(root / "none", folder)).manifest for folder in folders]
print("ready", flush=True)
while True:
    for folder, manifest in zip(folders, manifests, strict=True):
        with FolderSource(folder) as source:
            apply(manifest, source, root, keep=5)
