"""The common ground of every struct: how Python names become API names, and how values are coded."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from orchestra.api.quantity import Quantity

# Kubernetes writes acronyms in capitals where plain camel case would not.
_ACRONYMS = {
    "numGpus": "numGPUs",
    "sizePerGpu": "sizePerGPU",
    "shmSizePerGpu": "shmSizePerGPU",
    "hostIp": "hostIP",
    "hostPid": "hostPID",
    "hostIpc": "hostIPC",
}


def camel(name: str) -> str:
    """`num_gpus` -> `numGPUs`, `rdzv_backend` -> `rdzvBackend`."""
    head, *rest = name.rstrip("_").split("_")
    joined = head + "".join(part.capitalize() for part in rest)
    return _ACRONYMS.get(joined, joined)


class Model(msgspec.Struct, omit_defaults=True, rename=camel):
    """Base of all API structs; never changed once made.

    Unknown fields are ignored when decoding: a cluster may be newer than we are.

    Reading a user's file is stricter (`orchestra.api.load`): there an unknown field is an error.
    """


Raw = dict[str, Any]
"""A piece of someone else's API (Kubernetes' affinity, a volume): passed on as it is, not interpreted here."""

Text = Annotated[str, Meta(max_length=1024)]
LongText = Annotated[str, Meta(max_length=32768)]
Label = Annotated[str, Meta(max_length=63)]
Name = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""The name of another Kubernetes object."""
AbsolutePath = Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^/")]
EnvName = Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
Port = Annotated[int, Meta(ge=1, le=65535)]
Seconds = Annotated[int, Meta(ge=0, le=315360000)]
PositiveSeconds = Annotated[int, Meta(ge=1, le=315360000)]
NodeCount = Annotated[int, Meta(ge=1, le=10000)]
Count = Annotated[int, Meta(ge=0, le=1000000)]

M = TypeVar("M")


def from_builtins(value: Any, to: type[M]) -> M:
    """Plain data (from JSON or YAML) to a struct. Raises `msgspec.ValidationError` at the first mismatch."""
    return msgspec.convert(value, to, dec_hook=decode_hook)


def to_builtins(value: Any) -> Any:
    """A struct to plain data, without the fields that were not given."""
    return msgspec.to_builtins(value, enc_hook=encode_hook)


def decode_hook(to: type, value: Any) -> Any:
    """How values that msgspec does not know are read."""
    if to is Quantity and isinstance(value, str | int) and not isinstance(value, bool):
        return Quantity(value)
    raise ValueError(f"expected a quantity such as 4, 500m or 512Gi, got {type(value).__name__}")


def encode_hook(value: Any) -> Any:
    """How values that msgspec does not know are written."""
    if isinstance(value, Quantity):
        return int(value.text) if value.text.lstrip("-").isdigit() else value.text
    raise NotImplementedError(f"cannot encode {type(value).__name__}")
