"""An archive in an object store, whose address and keys the server has from its environment."""

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pyarrow.fs as pa_fs
import pytest
from tests.harness.archive import Archiver
from tests.lakehouse.conftest import Kept

from headrace.spark.source.redis_log import LogReader
from headrace.spark.source.topic_log import Subscription


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a folder in a bucket."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as store:
        try:
            assert store.stderr is not None
            endpoint = next(found[1] for line in store.stderr if (found := re.search(r"Running on (http://\S+)", line)))
            urllib.request.urlopen(urllib.request.Request(f"{endpoint}/lake", method="PUT"), timeout=60).close()
            for name, value in {
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
            }.items():
                monkeypatch.setenv(name, value)
            yield "s3://lake/tables/kept"
        finally:
            store.kill()


def test_an_archive_in_a_bucket(kept: Kept, bucket: str) -> None:
    kept.create().fill(60)
    kept.archive(40, rows_per_file=20)
    store, path = pa_fs.FileSystem.from_uri(bucket)
    table = str(kept.folder / "table")
    pa_fs.copy_files(table, path, destination_filesystem=store)
    with LogReader(kept.server.storage) as log:
        topic_id = log.topics(Subscription(names=(kept.name,)))[kept.name].id
    Archiver(kept.server.storage, kept.name, kept.folder / "table").tell(topic_id, {0: 40}, bucket)
    assert kept.retain() == (0, 40)
    assert kept.read(0, 60) == kept.written
