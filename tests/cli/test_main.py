import os
import socket
import socketserver
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from click import Command, Context, Group, Option

from headrace import __version__
from headrace.cli import main
from headrace.cli.command import TeachingCommand
from headrace.protocol.messages import ApiVersionsResponse
from headrace.records import accelerator


def leaves(command: Command, path: str = "headrace") -> list[tuple[str, Command]]:
    """Every command that does something, with its full name."""
    if not isinstance(command, Group):
        return [(path, command)]
    context = Context(command)
    found = []
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        found += leaves(child, f"{path} {name}")
    return found


LEAVES = leaves(main.root)


@pytest.mark.parametrize(("name", "command"), LEAVES, ids=[name for name, _ in LEAVES])
def test_every_command_teaches_by_examples(name: str, command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([*name.split()[1:], "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Examples:\n" in shown
    assert isinstance(command, TeachingCommand)
    assert any(name in example for example in command.examples)
    for parameter in command.params:
        assert not isinstance(parameter, Option) or parameter.help, f"{parameter.name} has no help"


def test_alone_it_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 0
    assert "headrace topics create flights --partitions 6" in capsys.readouterr().out


def test_the_version_names_what_is_at_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"headrace {__version__}"
    assert [line.split()[0] for line in lines] == ["headrace", "python", "valkey", "records"]
    assert lines[2].endswith("(embedded)")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serv"], "headrace: no such command 'serv', did you mean 'serve'? See headrace --help"),
        (["consume", "x"], "headrace: no such command 'consume', it is 'headrace records tail'; see headrace --help"),
        (["version"], "headrace: no such command 'version', it is 'headrace --version'; see headrace --help"),
        (["help", "serve"], "headrace: no such command 'help', it is 'headrace --help'; see headrace --help"),
        (["topics", "help"], "headrace topics: no such command 'help', it is 'headrace topics --help'; see"),
        (["serve", "--kafak", "x"], "headrace serve: no such option '--kafak'"),
        (
            ["topics", "--list"],
            "headrace topics: no such option '--list', it is the command 'headrace topics list'",
        ),
        (["serve", "--set", "num.partition=1"], "headrace: --set: unknown broker setting num.partition, did you mean"),
        (["serve", "--kafka", "9092"], "headrace: --kafka 9092: expected HOST:PORT"),
        (["topics", "describe"], "headrace topics describe: missing argument 'NAME'"),
        (["topics", "create", "t", "--partitions", "0"], "headrace topics create: invalid value for '--partitions'"),
        (
            ["topics", "create", "t", "--partitions", "100001"],
            "headrace topics create: invalid value for '--partitions': 100001 is not in the range 1<=x<=100000",
        ),
        (
            ["topics", "grow", "t", "--partitions", "1000000"],
            "headrace topics grow: invalid value for '--partitions': 1000000 is not in the range 2<=x<=100000",
        ),
        (
            ["records", "consume", "t"],
            "headrace records: no such command 'consume', it is 'headrace records tail'; see headrace records --help",
        ),
        (["groups", "lst"], "headrace groups: no such command 'lst', did you mean 'list'?"),
        (["topics", "create", "t", "--config", "x"], "headrace: --config x: expected KEY=VALUE"),
        (["topics", "list", "--kafka", "9092"], "headrace: --bootstrap: expected HOST:PORT"),
        (["records", "produce", "t", "--key-separator", ""], "headrace: --key-separator: expected at least one"),
        (["records", "produce", "t", "--json", "--key-separator", ":"], "headrace: --key-separator is for plain lines"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_a_near_option_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    main.run(["serve", "--kafak", "x"])
    assert "no such option '--kafak', did you mean '--kafka'? See headrace serve --help" in capsys.readouterr().err


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
def test_an_address_where_nobody_listens_is_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        assert main.run([*arguments, "--bootstrap", address]) == 3
    assert (
        f"nobody answers at {address} (connection refused, named by --bootstrap): start a server"
        in capsys.readouterr().err
    )


def test_a_listener_that_is_no_broker_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        assert main.run(["topics", "list", "--bootstrap", address]) == 3
    assert "does not answer as a Kafka broker" in capsys.readouterr().err


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


def test_an_answer_for_which_there_is_no_room_is_one_line() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123  # a device
        ended = subprocess.run(
            [sys.executable, "-m", "headrace", "completion", "zsh"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (1, "headrace: cannot write the answer: No space left on device\n")


def test_a_locale_without_letters_does_not_cut_an_answer_short() -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "HEADRACE_BOOTSTRAP": "zürich:1"}
    ended = subprocess.run(
        [sys.executable, "-m", "headrace", "topics", "list"],
        env=environment, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 3
    assert ended.stderr.decode().startswith("headrace: nobody answers at zürich:1 (")


@pytest.mark.skipif(not accelerator.available, reason="there are no C extensions")
def test_a_checkout_whose_extensions_are_older_says_what_to_do() -> None:
    # As after a pull that changed the C sources: something is not in them yet.
    older = "import headrace.records._compiled as built; del built.encode_rows"
    command = [sys.executable, "-c", f"{older}; from headrace.cli.main import main; main()", "--version"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 1
    assert told.stderr == (
        "headrace: headrace.records._compiled was built from other sources than these, and has no 'encode_rows': "
        "run `make setup`\n"
    )


def test_a_python_without_what_headrace_needs_says_what_to_do() -> None:
    command = [sys.executable, "-S", "-m", "headrace"]  # -S: without what is installed
    environment = {**os.environ, "PYTHONPATH": str(Path(main.__file__).parents[2])}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode == 1
    assert told.stderr.startswith("headrace: click is not installed for ")
    assert told.stderr.endswith(": run `make setup`, then .venv/bin/headrace\n")
