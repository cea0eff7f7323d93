"""Models and data sets of the Hugging Face hub: `hf://org/model[@revision]`, `hf://datasets/org/name[@revision]`.

Once a node, resumable (the hub's own library continues what was cut short), and offline afterwards: what is complete
is used without asking the hub again. The token comes from HF_TOKEN or the user's login.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from orchestra.sync.errors import Missing, NoAccess, NoRoom, SyncError, Unreachable
from orchestra.sync.moving import Told, mib, say

_MARK = ".orchestra-hub.json"


def bring(what: str, url: str, folder: Path) -> None:
    """The files of a repository, as they are, into a folder."""
    kind, repository, revision = parse(url)
    mark = folder / _MARK
    with contextlib.suppress(OSError, ValueError):
        if json.loads(mark.read_text()) == {"url": url}:
            say(f"{what}: {url} is here already")
            return
    if not os.access(Path.home(), os.W_OK):  # a container's user without a home
        os.environ.setdefault("HF_HOME", str(folder / ".cache" / "huggingface"))
    try:
        from huggingface_hub import errors as hub
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise SyncError(f"{url}: needs the package huggingface_hub; pip install 'orchestra[hub]'") from error
    told = Told(what)
    try:
        snapshot_download(repository, repo_type=kind, revision=revision, local_dir=folder)
    except hub.GatedRepoError as error:
        raise NoAccess(f"{url}: its owner has to let you in; ask on the hub, and set HF_TOKEN") from error
    except (hub.RepositoryNotFoundError, hub.RevisionNotFoundError) as error:
        raise Missing(f"{url}: there is no such repository or revision, or HF_TOKEN may not see it") from error
    except hub.LocalEntryNotFoundError as error:
        raise Unreachable(f"{url}: the hub does not answer, and not all of it is here") from error
    except hub.HfHubHTTPError as error:
        raise Unreachable(f"{url}: the hub refused: {type(error).__name__}") from error
    except OSError as error:
        raise NoRoom(f"{url}: cannot be written to {folder}: {error.strerror or type(error).__name__}") from error
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts)
    mark.write_text(json.dumps({"url": url}))
    say(f"{what}: {url}, {mib(size)} in {told.seconds:.1f} s")


def parse(url: str) -> tuple[str, str, str | None]:
    """Kind, repository and revision."""
    path, _, revision = url.removeprefix("hf://").strip("/").partition("@")
    kind, name = ("dataset", path.removeprefix("datasets/")) if path.startswith("datasets/") else ("model", path)
    if not 1 <= len(name.split("/")) <= 2 or not name:
        raise SyncError(f"{url}: write hf://owner/model or hf://datasets/owner/name, with @revision if you like")
    return kind, name, revision or None
