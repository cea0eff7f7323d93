"""Proving who we are, again and again: tokens rotate, plugins' credentials expire.

A ServiceAccount's token is replaced in its file long before it ends; whoever reads it once is locked out within the
hour.
"""

import asyncio
import datetime
import os
import time
from collections.abc import Callable

import msgspec

from orchestra.kube.config import Access, ConfigError, ExecPlugin

_RE_READ_SECONDS = 60.0
_PLUGIN_SECONDS = 60.0
_EARLY_SECONDS = 10.0
"""A credential is renewed this long before it ends: a request takes its time too."""


class Credential(msgspec.Struct, frozen=True):
    """What a request carries: a token, a client certificate (PEM, with its key), both or neither."""

    token: str | None = None
    certificate: bytes | None = None
    key: bytes | None = None


class _PluginStatus(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: datetime.datetime | None = None


class _PluginAnswer(msgspec.Struct, rename="camel"):
    status: _PluginStatus


class Identity:
    """The credential of an `Access`, kept fresh."""

    def __init__(
        self,
        access: Access,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._access = access
        self._clock = clock
        self._wall_clock = wall_clock
        self._credential: Credential | None = None
        self._good_until = 0.0
        self._ends: float | None = None
        self._lock = asyncio.Lock()

    def cached(self) -> Credential | None:
        """The credential at hand when it is still good: most requests wait for nothing."""
        if self._credential is None or self._clock() >= self._good_until:
            return None
        if self._ends is not None and self._wall_clock() >= self._ends - _EARLY_SECONDS:
            return None
        return self._credential

    async def credential(self, rejected: Credential | None = None) -> Credential:
        """A credential that is good as far as we know; one the server rejected (401) is not given out again
        without having been read anew.
        """
        async with self._lock:  # a hundred requests with one expired token start one plugin
            current = self.cached()
            if current is not None and current is not rejected:
                return current
            if self._access.plugin is not None:
                self._credential = await self._ask_plugin(self._access.plugin)
            else:
                self._credential = self._read_files()
            return self._credential

    def _read_files(self) -> Credential:
        access = self._access
        token = access.token
        if access.token_file is not None:
            try:
                token = access.token_file.read_text().strip()
            except OSError as error:
                raise ConfigError(f"the token file {access.token_file}: {error.strerror}") from error
        certificate = access.certificate.read() if access.certificate is not None else None
        key = access.key.read() if access.key is not None else None
        self._good_until = self._clock() + _RE_READ_SECONDS
        return Credential(token, certificate, key)

    async def _ask_plugin(self, plugin: ExecPlugin) -> Credential:
        status = (await _run(plugin, self._access)).status
        ends = status.expiration_timestamp
        if ends is not None and ends.tzinfo is None:
            ends = ends.replace(tzinfo=datetime.UTC)
        self._ends = None if ends is None else ends.timestamp()
        self._good_until = float("inf")  # without an end it is good until the server says 401
        certificate, key = status.client_certificate_data, status.client_key_data
        if not status.token and not (certificate and key):
            raise ConfigError(f"the credential plugin {plugin.command} printed neither a token nor a certificate")
        return Credential(status.token, certificate.encode() if certificate else None, key.encode() if key else None)


async def _run(plugin: ExecPlugin, access: Access) -> _PluginAnswer:
    spec: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = {"server": access.server, "insecure-skip-tls-verify": not access.verify}
        if access.authority is not None:
            spec["cluster"] |= {"certificate-authority-data": access.authority.read()}  # type: ignore[operator]
    info = msgspec.json.encode({"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}).decode()
    extra = {one["name"]: one["value"] for one in plugin.env or ()}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *(plugin.args or ()),
            env={**os.environ, **extra, "KUBERNETES_EXEC_INFO": info},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        hint = f" {plugin.install_hint}" if plugin.install_hint else ""
        raise ConfigError(f"the credential plugin {plugin.command} does not start: {error.strerror}.{hint}") from error
    try:
        async with asyncio.timeout(_PLUGIN_SECONDS):
            output, said = await process.communicate()
    except BaseException as error:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if isinstance(error, TimeoutError):
            raise ConfigError(f"the credential plugin {plugin.command} took over {_PLUGIN_SECONDS:g} s") from error
        raise
    if process.returncode != 0:
        tail = said.decode(errors="replace").strip()[-500:]
        raise ConfigError(f"the credential plugin {plugin.command} ended with {process.returncode}: {tail}")
    try:
        return msgspec.json.decode(output, type=_PluginAnswer)
    except msgspec.DecodeError as error:
        raise ConfigError(f"the credential plugin {plugin.command} printed no ExecCredential: {error}") from error
