"""Try an image with buildah: it serves, keeps records over a restart, stops with status 0, without root."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.harness.ports import free_ports


def buildah(*arguments: str) -> str:
    """What buildah prints; raises CalledProcessError."""
    return subprocess.run(["buildah", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


class Container:
    """A container of the image whose processes share this machine's network."""

    def __init__(self, image: str) -> None:
        self.name = buildah("from", image)
        # Not such as the kernel gives to others before they are used, or while the server is down.
        self.kafka, self.http = (f"127.0.0.1:{port}" for port in free_ports(2))

    def run(self, *command: str, text: str = "") -> str:
        """What a command in it prints."""
        asked = ["buildah", "run", self.name, "--", "headrace", *command]
        return subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True, input=text).stdout

    def serve(self) -> "subprocess.Popen[str]":
        """Start the server in it, and wait until it is ready."""
        command = ["headrace", "serve", "--kafka", self.kafka, "--http", self.http]
        process = subprocess.Popen(
            ["buildah", "run", self.name, "--", *command], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("ready "), ready
        return process

    def stop(self, process: "subprocess.Popen[str]") -> None:
        """SIGTERM to the server itself, as a container's runtime sends it; status 0 is demanded."""
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"serve" in words and self.kafka.encode() in words and words[0].endswith((b"python3", b"python")):
                os.kill(int(entry.name), signal.SIGTERM)
        assert process.wait(60) == 0, process.returncode


def archive(container: Container) -> None:
    """Bring the topic into a table with Spark, and demand that everything is in it."""
    container.run(
        "archive", "--topic", "flights", "--table", "/table/flights", "--redis", "unix:///data/sock", "--once"
    )
    count = (
        "import deltalake, pyarrow.dataset; "
        "print(pyarrow.dataset.dataset(deltalake.DeltaTable('/table/flights').file_uris()).count_rows())"
    )
    assert buildah("run", container.name, "--", "python3", "-c", count) == "2"


def main(image: str, kind: str = "") -> None:
    """Raise AssertionError or CalledProcessError unless the image does what it should; kind `spark`: archives, too."""
    config = json.loads(buildah("inspect", "--type", "image", image))["Docker"]["config"]
    assert config["User"] == "10001:10001", config["User"]
    assert config["Entrypoint"] == ["headrace"], config["Entrypoint"]
    container = Container(image)
    try:
        print(container.run("--version"))
        assert container.run("--version").count("C extension"), "the compiled parts are missing"
        clients = ["--bootstrap", container.kafka]
        first = container.serve()
        with urllib.request.urlopen(f"http://{container.http}/healthz", timeout=60) as answer:
            assert answer.status == 200
        container.run("topics", "create", "flights", "--partitions", "1", *clients)
        container.run("records", "produce", "flights", *clients, text="UA 1545\nAA 1141\n")
        container.stop(first)
        second = container.serve()
        told = container.run("topics", "list", "--json", *clients)
        assert {"topic": "flights", "partitions": 1, "records": 2} in json.loads(told), told
        if kind == "spark":
            archive(container)
        container.stop(second)
    finally:
        buildah("rm", container.name)
    print(f"{image} serves, keeps its records, and stops in order")


if __name__ == "__main__":
    main(*sys.argv[1:])
