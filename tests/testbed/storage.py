"""The cluster's two StorageClasses, and the small provisioner that answers their claims with folders.

`shared` (the default) stands for NFS and its like: ReadWriteMany, bound at once, seen from every node. `local`
stands for a node's own disk: it refuses ReadWriteMany with an event, and binds where its first pod runs.

Run as a program (`python -m testbed.storage KUBECONFIG FOLDER`) it provisions until it is killed.
"""

import datetime
import http.client
import shutil
import sys
import time
from pathlib import Path

from testbed.api import Api, ApiError, Json
from testbed.rights import grant_user

SHARED_CLASS = "shared"
LOCAL_CLASS = "local"
USER = "system:testbed:storage"

_SHARED_PROVISIONER = "orchestra.testbed/shared"
_LOCAL_PROVISIONER = "orchestra.testbed/local"
_STORAGE = "/apis/storage.k8s.io/v1/storageclasses"
_VOLUMES = "/api/v1/persistentvolumes"
_CLAIMS = "/api/v1/persistentvolumeclaims"
_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
_RETRY_SECONDS = 15.0  # how often a refused claim is tried, and its event repeated
_WATCH_SECONDS = 5.0  # how long one look at the claims lasts; also how late a released volume may be removed


def install(api: Api) -> None:
    """Create both classes and the provisioner's rights."""
    api.apply(
        f"{_STORAGE}/{SHARED_CLASS}",
        _storage_class(SHARED_CLASS, _SHARED_PROVISIONER, "Immediate", default=True),
    )
    api.apply(
        f"{_STORAGE}/{LOCAL_CLASS}",
        _storage_class(LOCAL_CLASS, _LOCAL_PROVISIONER, "WaitForFirstConsumer", default=False),
    )
    everything = ["get", "list", "watch", "create", "delete"]
    rules = [
        {"apiGroups": [""], "resources": ["persistentvolumes"], "verbs": everything},
        {"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]},
    ]
    grant_user(api, USER, rules)


class Provisioner:
    """Makes a volume for every claim of our classes that may have one, and removes what was released."""

    def __init__(self, api: Api, folder: Path) -> None:
        """Volumes are folders below `folder`."""
        self._api = api
        self._folder = folder
        self._refused: dict[str, float] = {}  # claim UID -> when to say it again

    def run(self) -> None:
        """Work until killed. The API server may come and go meanwhile."""
        while True:
            try:
                self._wait_for_a_change(since=self.settle())
            except (OSError, http.client.HTTPException, ApiError) as error:
                print(f"storage: {error}; trying again", file=sys.stderr, flush=True)
                time.sleep(0.5)

    def settle(self) -> str:
        """Answer all claims and released volumes there are now; returns the version of the claims seen."""
        claims = self._api.get(_CLAIMS)
        for claim in claims["items"]:
            try:
                self._answer(claim)
            except ApiError as error:
                # Such as a namespace on its way out. The other claims must not wait for it.
                print(f"storage: {claim['metadata']['name']}: {error}", file=sys.stderr, flush=True)
        for volume in self._api.get(_VOLUMES)["items"]:
            self._reclaim(volume)
        version: str = claims["metadata"]["resourceVersion"]
        return version

    def _wait_for_a_change(self, since: str) -> None:
        """Return when a claim changes, at the latest when a released volume or a refused claim is due."""
        seconds = str(int(_WATCH_SECONDS))
        for _ in self._api.watch(_CLAIMS, resource_version=since, timeout=60, timeoutSeconds=seconds):
            return

    def _answer(self, claim: Json) -> None:
        spec, metadata = claim["spec"], claim["metadata"]
        if spec.get("volumeName") or metadata.get("deletionTimestamp"):
            return
        node = metadata.get("annotations", {}).get(_SELECTED_NODE)
        match spec.get("storageClassName"):
            case "shared":
                self._provision(claim, self._folder / SHARED_CLASS, node=None)
            case "local" if node is not None:
                if "ReadWriteMany" in spec["accessModes"]:
                    self._refuse(claim)
                else:
                    self._provision(claim, self._folder / node, node=node)

    def _provision(self, claim: Json, parent: Path, node: str | None) -> None:
        volume = _volume(claim, parent, node)
        path = Path(volume["spec"]["hostPath"]["path"])
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)  # pods that are not root write here too, as on a share that maps users
        try:
            self._api.create(_VOLUMES, volume)
        except ApiError as error:
            if error.status != 409:  # made a moment ago and not yet bound
                raise

    def _refuse(self, claim: Json) -> None:
        """Say no as real provisioners do: a warning event, and the claim stays Pending."""
        uid = claim["metadata"]["uid"]
        if self._refused.get(uid, 0.0) > time.monotonic():
            return
        self._refused[uid] = time.monotonic() + _RETRY_SECONDS
        message = (
            f'failed to provision volume with StorageClass "{LOCAL_CLASS}": '
            "this class supports ReadWriteOnce and ReadWriteOncePod only, not ReadWriteMany"
        )
        namespace = claim["metadata"]["namespace"]
        self._api.create(f"/api/v1/namespaces/{namespace}/events", _event(claim, message))

    def _reclaim(self, volume: Json) -> None:
        metadata = volume["metadata"]
        ours = metadata.get("annotations", {}).get(_PROVISIONED_BY) in (
            _SHARED_PROVISIONER,
            _LOCAL_PROVISIONER,
        )
        if not ours or volume["status"].get("phase") != "Released" or metadata.get("deletionTimestamp"):
            return
        if volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete":
            shutil.rmtree(volume["spec"]["hostPath"]["path"], ignore_errors=True)
            self._api.delete(f"{_VOLUMES}/{metadata['name']}")


def _storage_class(name: str, provisioner: str, binding: str, *, default: bool) -> Json:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "annotations": annotations},
        "provisioner": provisioner,
        "volumeBindingMode": binding,
        "reclaimPolicy": "Delete",
    }


def _volume(claim: Json, parent: Path, node: str | None) -> Json:
    spec, metadata = claim["spec"], claim["metadata"]
    name = f"pvc-{metadata['uid']}"
    volume_spec: Json = {
        "capacity": {"storage": spec["resources"]["requests"]["storage"]},
        "accessModes": spec["accessModes"],
        "storageClassName": spec["storageClassName"],
        "persistentVolumeReclaimPolicy": "Delete",
        "hostPath": {"path": str(parent / name), "type": "Directory"},
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
    }
    if node is not None:
        here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        volume_spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
    provisioner = _SHARED_PROVISIONER if node is None else _LOCAL_PROVISIONER
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {_PROVISIONED_BY: provisioner}},
        "spec": volume_spec,
    }


def _event(claim: Json, message: str) -> Json:
    metadata = claim["metadata"]
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": "Warning",
        "reason": "ProvisioningFailed",
        "message": message,
        "source": {"component": _LOCAL_PROVISIONER},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


if __name__ == "__main__":
    Provisioner(Api.from_kubeconfig(Path(sys.argv[1])), Path(sys.argv[2])).run()
