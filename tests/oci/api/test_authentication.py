"""Requests signed by Oracle's Python SDK, and in the shapes of its other SDKs; whatever is wrong is the same 401."""

import base64
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oci._vendor.requests import Request as SdkRequest

import oci
from headrace.oci.api.authentication import Authenticator
from headrace.oci.errors import OciError
from headrace.oci.settings import OciSettings
from headrace.oci.signatures import date_ms
from headrace.security.access.principal import ANONYMOUS, Principal

TENANCY = "ocid1.tenancy.oc1..aaaa"
USER = "ocid1.user.oc1..bbbb"
FINGERPRINT = ":".join(["ab"] * 16)
SOMEBODY = Principal.of(TENANCY, USER)
TEXT = "The required information to complete authentication was not provided or was incorrect."


class Sent:
    """A request as it reaches the server."""

    def __init__(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> None:
        self.method = method
        self.target = target.encode()
        self.headers = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        self.body = body

    def header(self, name: str) -> str:
        return next(value.decode("latin-1") for known, value in self.headers if known.decode().lower() == name)

    def with_header(self, name: str, value: str) -> "Sent":
        kept = {known.decode(): old.decode("latin-1") for known, old in self.headers if known.decode().lower() != name}
        return Sent(self.method, self.target.decode(), kept | {name: value}, self.body)


@pytest.fixture(scope="module")
def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture(scope="module")
def pem(private_key: rsa.RSAPrivateKey) -> str:
    return private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


@pytest.fixture
def keys(tmp_path: Path, private_key: rsa.RSAPrivateKey) -> Path:
    put_key(tmp_path, private_key.public_key())
    return tmp_path


def put_key(directory: Path, public: rsa.RSAPublicKey | ec.EllipticCurvePublicKey) -> Path:
    folder = directory / TENANCY / USER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (FINGERPRINT.replace(":", "-") + ".pem")
    path.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return path


def authenticator(mode: str, keys: Path | str = "") -> Authenticator:
    return Authenticator(OciSettings.of({"oci.auth": mode, "oci.auth.keys": str(keys)}))


def ask(gate: Authenticator, sent: Sent, *, signs_body: bool = True, later_ms: int = 0) -> Principal:
    dates = [value for name, value in sent.headers if name.lower() in {b"date", b"x-date"}]
    now = (date_ms(dates[0].decode()) if dates else 0) + later_ms
    return admit(gate, sent, signs_body=signs_body, now_ms=now)


def admit(gate: Authenticator, sent: Sent, *, signs_body: bool, now_ms: int) -> Principal:
    principal = gate.authenticate(sent.method, sent.target, sent.headers, signs_body=signs_body, now_ms=now_ms)
    gate.check_body(sent.headers, sent.body)
    return principal


def refused(gate: Authenticator, sent: Sent, **options: Any) -> None:
    with pytest.raises(OciError) as caught:
        ask(gate, sent, **options)
    assert (caught.value.status, caught.value.code, caught.value.message) == (401, "NotAuthenticated", TEXT)


# Python's SDK


Sign = Callable[..., Sent]


@pytest.fixture
def sdk(pem: str) -> Sign:
    """Prepares a request and has the SDK's signer sign it, as its clients do."""

    def sign(method: str, path: str, body: str | None = None, *, signer: Any = None, signs_body: bool = True) -> Sent:
        signer = signer or oci.signer.Signer(TENANCY, USER, FINGERPRINT, None, private_key_content=pem)
        prepared = SdkRequest(
            method, "http://127.0.0.1:8080" + path, data=body, headers={"content-type": "application/json"}
        ).prepare()
        signed = signer(prepared) if signs_body else signer.without_content_headers(prepared)
        headers = dict(signed.headers)
        assert signed.path_url
        data = (body or "").encode()
        headers.setdefault("content-length", str(len(data)))
        return Sent(method, signed.path_url, headers, data)

    return sign


@pytest.mark.parametrize("mode", ["verify", "parse", "off"])
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/20180418/streams?compartmentId=ocid1.tenancy.oc1..aaaa&name=a%20b%2Fc", None),
        ("GET", "//20180418/streams/ocid1.stream.oc1..x/messages?cursor=abc%3D%3D&limit=10", None),
        ("DELETE", "/20180418/streams/ocid1.stream.oc1..x", None),
        ("POST", "/20180418/streams", '{"name": "s", "partitions": 1}'),
        ("PUT", "/20180418/streams/ocid1.stream.oc1..x/groups/g%201/x", '{"type": "LATEST"}'),
        ("POST", "/20180418/streams/ocid1.stream.oc1..x/commit?cursor=abc", None),
        ("POST", "/20180418/streams/ocid1.stream.oc1..x/commit?cursor=abc", ""),
    ],
)
def test_requests_of_the_python_sdk(keys: Path, sdk: Sign, mode: str, method: str, path: str, body: str | None) -> None:
    assert ask(authenticator(mode, keys), sdk(method, path, body)) == (ANONYMOUS if mode == "off" else SOMEBODY)


@pytest.mark.parametrize("mode", ["verify", "parse"])
def test_put_messages_is_signed_without_its_body(keys: Path, sdk: Sign, mode: str) -> None:
    sent = sdk("POST", "/20180418/streams/x/messages", '{"messages": []}', signs_body=False)
    assert ask(authenticator(mode, keys), sent, signs_body=False) == SOMEBODY
    refused(authenticator(mode, keys), sent)


def test_put_messages_may_be_signed_with_its_body_and_then_the_body_counts(keys: Path, sdk: Sign) -> None:
    sent = sdk("POST", "/20180418/streams/x/messages", '{"messages": []}')
    assert ask(authenticator("verify", keys), sent, signs_body=False) == SOMEBODY
    sent.body += b" "
    refused(authenticator("verify", keys), sent, signs_body=False)


def test_tokens_and_resource_principals_are_read_but_cannot_be_verified(
    keys: Path, sdk: Sign, private_key: rsa.RSAPrivateKey
) -> None:
    token = oci.auth.signers.SecurityTokenSigner("a.b.c", private_key)
    resource = oci.signer.Signer(
        TENANCY, USER, FINGERPRINT, None, private_key_content=private_key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
        ).decode()
    )  # fmt: skip
    resource.create_signers(
        f"resource/v2.1.1/{TENANCY}/ocid1.instance.oc1..i", private_key, ["date", "(request-target)", "host"], []
    )
    for signer, principal in ((token, ANONYMOUS), (resource, Principal.of(TENANCY, "ocid1.instance.oc1..i"))):
        sent = sdk("GET", "/20180418/streams", signer=signer)
        assert ask(authenticator("parse"), sent) == principal
        refused(authenticator("verify", keys), sent)


# The other SDKs sign alike, and write it differently


def sign_by_hand(
    key: rsa.RSAPrivateKey, shape: str, names: Sequence[str], method: str, target: str, body: bytes = b""
) -> Sent:
    now = formatdate(usegmt=True)
    headers = {"host": "127.0.0.1:8080", "date": now, "x-date": now, "accept": "*/*"}
    if body or method == "POST":
        headers["Content-Type"] = "application/json"
        headers["Content-Length"] = str(len(body))
        headers["X-Content-Sha256"] = base64.b64encode(hashlib.sha256(body).digest()).decode()
    found = {name.lower(): value for name, value in headers.items()} | {
        "(request-target)": f"{method.lower()} {target}"
    }
    text = "\n".join(f"{name.lower()}: {found[name.lower()]}" for name in names)
    signature = base64.b64encode(key.sign(text.encode(), PKCS1v15(), SHA256())).decode()
    values = {"headers": " ".join(names), "keyId": f"{TENANCY}/{USER}/{FINGERPRINT}", "signature": signature}
    return Sent(method, target, headers | {"Authorization": "Signature " + shape.format(**values)}, body)


GO = 'version="1",headers="{headers}",keyId="{keyId}",algorithm="rsa-sha256",signature="{signature}"'
TYPESCRIPT = 'version="1",keyId="{keyId}",algorithm="rsa-sha256",headers="{headers}",signature="{signature}"'
JAVA = 'headers="{headers}",keyId="{keyId}",algorithm="rsa-sha256",signature="{signature}",version="1"'
TOMITRIBE = 'keyId="{keyId}", algorithm="rsa-sha256", headers="{headers}", signature="{signature}"'
GENERIC = ("date", "(request-target)", "host")
WITH_BODY = (*GENERIC, "content-length", "content-type", "x-content-sha256")
MIXED = ("x-date", "(request-target)", "host", "Content-Type", "Content-Length", "x-content-sha256")


@pytest.mark.parametrize("mode", ["verify", "parse"])
@pytest.mark.parametrize(
    ("shape", "names", "method", "body"),
    [
        (GO, GENERIC, "GET", b""),
        (GO, WITH_BODY, "POST", b'{"a": 1}'),
        (TYPESCRIPT, ("x-date", "(request-target)", "host"), "GET", b""),
        (TYPESCRIPT, MIXED, "POST", b'{"a": 1}'),
        (TYPESCRIPT, MIXED, "POST", b""),
        (JAVA, WITH_BODY, "POST", b""),
        (TOMITRIBE, ("(request-target)", "host", "date"), "DELETE", b""),
    ],
)
def test_requests_in_the_shapes_of_the_other_sdks(
    keys: Path, private_key: rsa.RSAPrivateKey, mode: str, shape: str, names: tuple[str, ...], method: str, body: bytes
) -> None:
    sent = sign_by_hand(private_key, shape, names, method, "/20180418/streams/x/groups/a%2Fb?q=%3D", body)
    assert ask(authenticator(mode, keys), sent) == SOMEBODY


# What is wrong


def test_a_request_without_a_header_is_anonymous(keys: Path) -> None:
    sent = Sent("GET", "/20180418/streams", {"host": "h"}, b"")
    assert ask(authenticator("off"), sent) == ANONYMOUS
    for mode in ("parse", "verify"):
        refused(authenticator(mode, keys), sent)


def test_nothing_that_was_signed_may_be_changed(keys: Path, sdk: Sign) -> None:
    gate = authenticator("verify", keys)
    sent = sdk("POST", "/20180418/streams?x=%2F", '{"a": 1}')
    assert ask(gate, sent) == SOMEBODY
    for name, value in (
        ("host", "127.0.0.1:8081"),
        ("content-type", "text/plain"),
        ("content-length", "9"),
        ("x-content-sha256", base64.b64encode(hashlib.sha256(b"").digest()).decode()),
    ):
        refused(gate, sent.with_header(name, value))
    for target in (b"/20180418/streams?x=/", b"/20180418/streams?x=%2F&y", b"//20180418/streams?x=%2F"):
        changed = sdk("POST", "/20180418/streams?x=%2F", '{"a": 1}')
        changed.target = target
        refused(gate, changed)
    changed = sdk("POST", "/20180418/streams", '{"a": 1}')
    changed.body = b'{"a": 2}'
    refused(gate, changed)
    changed = sdk("GET", "/20180418/streams")
    changed.method = "DELETE"
    refused(gate, changed)


def test_a_request_is_good_for_five_minutes_either_way(keys: Path, sdk: Sign) -> None:
    sent = sdk("GET", "/20180418/streams")
    for fine in (-300_000, 300_000):
        assert ask(authenticator("verify", keys), sent, later_ms=fine) == SOMEBODY
    for late in (-301_000, 301_000):
        refused(authenticator("verify", keys), sent, later_ms=late)
        assert ask(authenticator("parse", keys), sent, later_ms=late) == SOMEBODY


# Keys


def test_the_signature_of_another_key_is_refused(keys: Path, private_key: rsa.RSAPrivateKey) -> None:
    other = rsa.generate_private_key(65537, 2048)
    refused(authenticator("verify", keys), sign_by_hand(other, GO, GENERIC, "GET", "/"))
    assert ask(authenticator("verify", keys), sign_by_hand(private_key, GO, GENERIC, "GET", "/")) == SOMEBODY


def test_keys_are_read_when_needed_and_again_when_they_changed(tmp_path: Path, private_key: rsa.RSAPrivateKey) -> None:
    gate = authenticator("verify", tmp_path)
    sent = sign_by_hand(private_key, GO, GENERIC, "GET", "/")
    refused(gate, sent)
    path = put_key(tmp_path, private_key.public_key())
    assert ask(gate, sent) == SOMEBODY
    put_key(tmp_path, rsa.generate_private_key(65537, 2048).public_key())
    os.utime(path, ns=(1, 1))
    refused(gate, sent)
    put_key(tmp_path, private_key.public_key())
    assert ask(gate, sent) == SOMEBODY
    path.unlink()
    refused(gate, sent)


def test_files_that_are_no_rsa_keys_verify_nothing(tmp_path: Path, private_key: rsa.RSAPrivateKey, pem: str) -> None:
    gate = authenticator("verify", tmp_path)
    sent = sign_by_hand(private_key, GO, GENERIC, "GET", "/")
    path = put_key(tmp_path, ec.generate_private_key(ec.SECP256R1()).public_key())
    refused(gate, sent)
    for number, content in enumerate((b"", b"garbage", pem.encode(), b"\xff" * 100), 1):
        path.write_bytes(content)
        os.utime(path, ns=(number, number))
        refused(gate, sent)
    path.unlink()
    path.mkdir()
    refused(gate, sent)


def test_a_key_id_cannot_lead_out_of_the_directory(tmp_path: Path, private_key: rsa.RSAPrivateKey) -> None:
    put_key(tmp_path, private_key.public_key())
    inside = tmp_path / "keys"
    inside.mkdir()
    sent = sign_by_hand(private_key, GO.replace("{keyId}", f"../{TENANCY}/{FINGERPRINT}"), GENERIC, "GET", "/")
    refused(authenticator("verify", inside), sent)
    sent = sign_by_hand(private_key, GO.replace("{keyId}", f"../{TENANCY}/{USER}/{FINGERPRINT}"), GENERIC, "GET", "/")
    refused(authenticator("verify", inside), sent)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    headers=st.lists(
        st.tuples(
            st.sampled_from([b"authorization", b"Host", b"date", b"x-date", b"content-length", b"x-content-sha256"])
            | st.binary(),
            st.binary(),
        )
    ),
    authorization=st.binary() | st.binary().map(b"Signature ".__add__),
    target=st.binary(),
    method=st.text(),
    mode=st.sampled_from(["parse", "verify"]),
)
def test_garbage_is_never_anything_but_a_401(
    keys: Path,
    headers: list[tuple[bytes, bytes]],
    authorization: bytes,
    target: bytes,
    method: str,
    mode: str,
) -> None:
    with pytest.raises(OciError) as caught:
        authenticator(mode, keys).authenticate(
            method, target, [*headers, (b"authorization", authorization)], signs_body=True, now_ms=0
        )
    assert (caught.value.status, caught.value.message) == (401, TEXT)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_good_request_with_one_byte_changed_is_never_anything_but_a_401(
    keys: Path, private_key: rsa.RSAPrivateKey, data: st.DataObject
) -> None:
    gate = authenticator("verify", keys)
    sent = sign_by_hand(private_key, GO, WITH_BODY, "POST", "/20180418/streams", b'{"a": 1}')
    now = date_ms(sent.header("date"))
    signed = [index for index, (name, _) in enumerate(sent.headers) if name.lower() not in {b"accept", b"x-date"}]
    index = data.draw(st.sampled_from(signed))
    name, value = sent.headers[index]
    position = data.draw(st.integers(0, len(value) - 1))
    changed = value[:position] + data.draw(st.binary(min_size=1, max_size=1)) + value[position + 1 :]
    sent.headers[index] = (name, changed)
    try:
        principal = admit(gate, sent, signs_body=True, now_ms=now)
    except OciError as error:
        assert error.status == 401  # noqa: PT017
    else:
        # The same byte again, or one that does not count: the case of the scheme, a name or the algorithm.
        assert principal == SOMEBODY
        assert changed.lower().strip() == value.lower() or name == b"Authorization"
