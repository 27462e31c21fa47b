"""What variables say to readers of the storage, to Spark, and to processes that Headrace starts."""

import subprocess
import sys

import pytest

from headrace.text.environment import child_environment, java_places, redis_url, worker_python

EMPTY: dict[str, str] = {}


def test_readers_find_the_storage_by_a_variable() -> None:
    assert redis_url(EMPTY) is None
    assert redis_url({"HEADRACE_REDIS": "redis://h"}) == "redis://h"


def test_java_is_looked_for_where_java_home_and_the_search_path_say() -> None:
    assert java_places(EMPTY) == (None, None)
    assert java_places({"JAVA_HOME": "/java", "PATH": "/bin:/sbin"}) == ("/java", "/bin:/sbin")


def test_workers_run_the_python_that_a_variable_names() -> None:
    assert worker_python(EMPTY) is None
    assert worker_python({"PYSPARK_PYTHON": "/usr/bin/python3.12"}) == "/usr/bin/python3.12"


def test_a_process_that_flags_configure_has_none_of_the_variables() -> None:
    given = {"HEADRACE_KAFKA": "h:1", "HEADRACE_SET": "a=b", "PATH": "/bin", "XHEADRACE_DATA": "d"}
    assert child_environment(given) == {"PATH": "/bin", "XHEADRACE_DATA": "d"}
    assert len(given) == 4


def test_without_a_mapping_it_is_the_environment_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_REDIS", "redis://here")
    monkeypatch.setenv("PYSPARK_PYTHON", "/python")
    assert (redis_url(), worker_python()) == ("redis://here", "/python")
    assert "HEADRACE_REDIS" not in child_environment()


def test_spark_finds_the_storage_without_the_server() -> None:
    """A task that reads Redis loads neither the broker nor a listener."""
    program = (
        "import sys, headrace.spark.source.source, headrace.spark.archive.ranges\n"
        "print(*(name for name in ('server', 'broker', 'kafka', 'oci', 'http') if 'headrace.' + name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
