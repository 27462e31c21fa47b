import socket
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from headrace.cli import main
from headrace.protocol.messages import ApiVersionsResponse


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "list"],
        ["topics", "describe", "t"],
        ["groups", "list"],
        ["groups", "describe", "g"],
        ["records", "tail", "t"],
        ["records", "produce", "t"],
    ],
)
def test_an_address_without_a_listener_is_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        assert main.run([*arguments, "--bootstrap", address]) == 3
    assert (
        f"no server responds at {address} (connection refused, named by --bootstrap): start a server"
        in capsys.readouterr().err
    )


def test_a_listener_that_is_no_broker_is_recognized(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        assert main.run(["topics", "list", "--bootstrap", address]) == 3
    assert "does not respond as a Kafka broker" in capsys.readouterr().err


def test_a_broker_that_is_late_is_not_taken_for_a_wrong_port(capsys: pytest.CaptureFixture[str]) -> None:
    """It answers what it can by itself: its storage hangs, or it has too much to do."""
    with only_versions() as address:
        assert main.run(["topics", "list", "--bootstrap", address]) == 3
    said = capsys.readouterr().err
    assert "answers as a Kafka broker, but has not said within 3 s which topics there are" in said
    assert "right port" not in said


@contextmanager
def only_versions() -> Iterator[str]:
    """A server that answers ApiVersions, and nothing else."""
    size = struct.Struct(">i")
    versions = ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=version)
            for key, version in ((3, 1), (18, 0))
        ]
    )

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while head := self.rfile.read(4):
                request = self.rfile.read(size.unpack(head)[0])
                key, version, number = struct.unpack(">hhi", request[:8])
                if key == 18:
                    error = 0 if version == 0 else 35
                    body = number.to_bytes(4, "big") + b"".join(
                        msgspec.structs.replace(versions, error_code=error).encode(0)
                    )
                    self.wfile.write(size.pack(len(body)) + body)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
