"""Secrets for jobs: written with the user's own rights, never read back."""

from __future__ import annotations

import base64

from orchestra.api.engine import EngineError, NotFound
from orchestra.cluster.engine import KubernetesEngine
from orchestra.kube.errors import ApiError
from orchestra.kube.listing import Selection
from orchestra.kube.objects import Key, Metadata, MetadataOnly, Resource

SECRETS = Resource("", "v1", "Secret", "secrets")
MANAGED = {"app.kubernetes.io/managed-by": "orchestra-secret"}
_KEYS = "torchrun.ai/keys"
"""An annotation with the names of the keys, so that a list needs no values."""


class Secrets:
    """The secrets that this program made in one namespace."""

    def __init__(self, engine: KubernetesEngine) -> None:
        self._engine = engine

    def create(self, name: str, values: dict[str, str], *, replace: bool = False) -> None:
        """Creates one. One that is there is replaced only if asked, and only if we made it."""
        if not values:
            raise EngineError("there is no NAME=value in it; nothing was created")
        body: dict[str, object] = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {"name": name, "labels": MANAGED, "annotations": {_KEYS: ",".join(sorted(values))}},
            "data": {key: base64.b64encode(value.encode()).decode() for key, value in values.items()},
        }
        self._engine.do(self._create(name, body, replace))

    def names(self) -> list[tuple[str, list[str]]]:
        """Names and keys."""
        selection = Selection(self._engine.namespace, ",".join(f"{key}={value}" for key, value in MANAGED.items()))
        found = self._engine.do(self._engine.client.list_all(SECRETS, MetadataOnly, selection))
        return sorted((one.metadata.name, _keys(one.metadata)) for one in found)

    def delete(self, name: str) -> None:
        """Deletes one that we made."""
        self._engine.do(self._delete(name))

    async def _create(self, name: str, body: dict[str, object], replace: bool) -> None:
        client, key = self._engine.client, Key(self._engine.namespace, name)
        try:
            await client.create(SECRETS, key.namespace, body, MetadataOnly)
            return
        except ApiError as error:
            if not error.already_exists:
                raise
        await self._ours(name)
        if not replace:
            raise EngineError(f"there is a secret {name} already; --replace takes the new values")
        await client.replace(SECRETS, key, body, MetadataOnly)

    async def _delete(self, name: str) -> None:
        there = await self._ours(name)
        await self._engine.client.delete(SECRETS, there.metadata.key, uid=there.metadata.uid)

    async def _ours(self, name: str) -> MetadataOnly:
        key = Key(self._engine.namespace, name)
        there = await self._engine.client.find(SECRETS, key, MetadataOnly)
        if there is None:
            raise NotFound(f"there is no secret {name} in namespace {key.namespace}")
        if not MANAGED.items() <= (there.metadata.labels or {}).items():
            raise EngineError(f"the secret {name} was made by somebody else; it is left as it is")
        return there


def _keys(metadata: Metadata) -> list[str]:
    return [key for key in (metadata.annotations or {}).get(_KEYS, "").split(",") if key]
