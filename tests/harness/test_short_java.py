"""What a JVM of the tests is started with."""

from pathlib import Path

import pytest

from tests.harness import short_java


@pytest.mark.parametrize(("content", "given"), [(b"classes", True), (b"", False), (None, False)])
def test_a_jvm_is_given_the_classes_that_were_kept_and_no_empty_file(
    tmp_path: Path, content: bytes | None, given: bool
) -> None:
    classes = tmp_path / "classes.jsa"
    if content is not None:
        classes.write_bytes(content)
    told = short_java.options(classes)
    assert "-XX:+UseSerialGC" in told
    assert (f"-XX:SharedArchiveFile={classes}" in told) is given
