import subprocess
import sys
from pathlib import Path

from headrace.testing import server

EXAMPLE = Path(__file__).parents[2] / "examples" / "one_stream_three_programs.py"


def test_each_program_reads_what_all_have_written() -> None:
    with server() as started:
        command = [sys.executable, str(EXAMPLE), "--kafka", started.kafka]
        command += ["--http", started.http, "--storage", started.storage]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    everything = "['from Redis', {}, 'from Kafka', 'from OCI']"
    assert lines[0] == "Redis reads " + everything.format("\"{'item': 'tea', 'cups': '2'}\"")
    assert lines[1] == "Kafka reads " + everything.format("""'{"item":"tea","cups":"2"}'""")
    assert lines[2] == "OCI reads   " + everything.format("""'{"item":"tea","cups":"2"}'""")
    assert sorted(lines[3:]) == [
        "group kafka-readers: pending 0, lag 0",
        "group oci-readers: pending 0, lag 0",
        "group redis-readers: pending 0, lag 0",
    ]
