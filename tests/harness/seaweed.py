"""SeaweedFS in a process of its own: an object store with an Iceberg REST catalog over it, each asking for its key."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KEY, SECRET = "archivist", "never-to-be-seen"
BUCKET, WAREHOUSE = "lake", "warehouse"
_READY = re.compile(r"S3 Endpoint: +(\S+)\n +Iceberg Catalog: +(\S+)\n")


@dataclass(frozen=True)
class Seaweed:
    """The store and the catalog as their clients name them."""

    endpoint: str
    uri: str

    @property
    def options(self) -> dict[str, str]:
        """delta-rs' storage options."""
        key = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
        return {"aws_endpoint_url": self.endpoint, "aws_region": "us-east-1", "aws_allow_http": "true", **key}

    @property
    def catalog(self) -> dict[str, str]:
        """pyiceberg's options, but for those of S3, which are the store's."""
        return {
            "type": "rest",
            "uri": self.uri,
            "oauth2-server-uri": f"{self.uri}/v1/oauth/tokens",
            "warehouse": WAREHOUSE,
            "credential": f"{KEY}:{SECRET}",
        }


@contextlib.contextmanager
def seaweed(folder: Path) -> Iterator[Seaweed]:
    """Start it with a bucket for anything, and one for what the catalog writes, which takes nothing else.

    Everything that it keeps is in `folder`, which is gone afterwards. Its parts meet at sockets in the folder of
    temporary files that are named by port: there is one at a time on a machine.
    """
    keys = {"name": KEY, "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
    settings = folder / "keys.json"
    settings.write_text(json.dumps({"identities": [keys]}))
    host = _own_address()
    told = {
        "dir": folder,
        "ip": host,
        "ip.bind": host,
        "s3.config": settings,
        "s3.port.lance": 0,
        "bucket": BUCKET,
        "tableBucket": WAREHOUSE,
        "filer.localSocket": folder / "filer.sock",
        "s3.localSocket": folder / "s3.sock",
        "webdav": "false",
        "admin.ui": "false",
        "master.telemetry": "false",
    }
    command = [str(Path(sysconfig.get_path("scripts")) / "weed"), "-logtostderr=true", "mini"]
    command += [f"-{name}={value}" for name, value in told.items()]
    said = folder / "said"
    with (Path(tempfile.gettempdir()) / "headrace-tests-seaweed").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with said.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process:
            try:
                yield Seaweed(*_ready(process, said))
            finally:
                process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def _own_address() -> str:
    """Return a unique loopback address, so that clients of an earlier server never meet the next one."""
    high, low = divmod(os.getpid(), 254 * 254)
    return f"127.{100 + high}.{low // 254 + 1}.{low % 254 + 1}"


def _ready(process: "subprocess.Popen[bytes]", said: Path) -> tuple[str, str]:
    """The store's URL and the catalog's: it chooses other ports where its own are taken."""
    while (found := _READY.search(text := said.read_text("utf-8", "replace"))) is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
            raise AssertionError(text[-2000:])
    return found[1], found[2]
