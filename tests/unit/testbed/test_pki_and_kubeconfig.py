"""Certificates hold for what they were made for, and a kubeconfig carries all it needs."""

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

from testbed.kubeconfig import Access, read_kubeconfig
from testbed.pki import CertificateAuthority, KeyPair


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> dict[str, object]:
    """What the server learns of the client; ssl.SSLError when one refuses the other."""
    seen: dict[str, object] = {}
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs:
            try:
                with server.wrap_socket(theirs, server_side=True) as tls:
                    seen.update(tls.getpeercert() or {})
                    tls.sendall(b"!")
            except (ssl.SSLError, OSError) as error:
                seen["error"] = error

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ours, client.wrap_socket(ours, server_hostname=name) as tls:
            tls.recv(1)
    finally:
        thread.join()
    return seen


def server_context(authority: CertificateAuthority, pair: KeyPair, folder: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.pair.certificate.decode())
    context.load_cert_chain(*pair.write(folder, "server"))
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def test_a_server_certificate_holds_for_its_names_and_addresses_alone(tmp_path: Path) -> None:
    authority = CertificateAuthority()
    server = server_context(authority, authority.server("api", ["127.0.0.1", "kubernetes.default"]), tmp_path)
    client = ssl.create_default_context(cadata=authority.pair.certificate.decode())
    for name in ("127.0.0.1", "kubernetes.default"):
        handshake(server, client, name)
    for name in ("127.0.0.2", "kubernetes"):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(server, client, name)
    stranger = ssl.create_default_context(cadata=CertificateAuthority().pair.certificate.decode())
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, stranger, "127.0.0.1")


def test_a_client_certificate_names_user_and_groups(tmp_path: Path) -> None:
    authority = CertificateAuthority()
    authority.pair.write(tmp_path, "ca")
    authority = CertificateAuthority.load(tmp_path)  # signs the same after it was written and read again
    server = server_context(authority, authority.server("api", ["127.0.0.1"]), tmp_path)
    client = ssl.create_default_context(cadata=authority.pair.certificate.decode())
    client.load_cert_chain(*authority.client("jane", ["dev", "ops"]).write(tmp_path, "jane"))
    subject = handshake(server, client, "127.0.0.1")["subject"]
    assert subject == (
        (("organizationName", "dev"),),
        (("organizationName", "ops"),),
        (("commonName", "jane"),),
    )


def test_private_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    certificate, key = CertificateAuthority().pair.write(tmp_path, "ca")
    kubeconfig = Access("https://127.0.0.1:1", b"ca", token="secret").write(tmp_path / "kubeconfig")  # noqa: S106
    for path in (certificate, key, kubeconfig):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "access",
    [
        Access("https://127.0.0.1:6443", b"ca", token="secret", namespace="team-a"),  # noqa: S106
        Access("https://127.0.0.1:6443", b"ca", client=KeyPair(b"certificate", b"key")),
    ],
    ids=["token", "certificate"],
)
def test_a_kubeconfig_is_read_as_it_was_written(access: Access, tmp_path: Path) -> None:
    assert read_kubeconfig(access.write(tmp_path / "kubeconfig")) == access
    assert access.through("https://proxy:1").server == "https://proxy:1"
