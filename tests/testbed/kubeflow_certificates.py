"""Certificates as the training operator's own rotator makes them, and one address more: this machine's loopback.

It takes what it finds, if it would have made the same: RSA, the names it expects, and valid for some months.
"""

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS = 365


def operator_certificates(service: str, authority: str) -> dict[str, bytes]:
    """What its Secret holds: a CA of this name and a server certificate for this Service."""
    ca_key, server_key = _key(), _key()
    ca_name = _name(authority)
    usage = x509.KeyUsage(True, False, True, False, False, True, False, False, False)
    ca = (
        _builder(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(authority)]), critical=False)
        .add_extension(usage, critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    server = (
        _builder(_name(service), ca_name, server_key)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(service), loopback]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return {
        "ca.crt": ca.public_bytes(pem),
        "ca.key": _private(ca_key),
        "tls.crt": server.public_bytes(pem),
        "tls.key": _private(server_key),
    }


def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(subject: x509.Name, issuer: x509.Name, key: rsa.RSAPrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _private(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
