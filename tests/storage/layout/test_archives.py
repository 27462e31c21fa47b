import msgspec
import pytest

from headrace.storage.layout import archives
from headrace.storage.layout.keys import Keyspace


def test_a_document_has_the_location_and_progress_of_the_archive() -> None:
    document = archives.ArchiveDocument(topic="t", table="file:///lake/t", archived={0: 5, 11: 2**53}, updated_ms=7)
    text = archives.encode(document)
    assert archives.decode(text) == document
    assert text == (
        b'{"topic":"t","table":"file:///lake/t","format":"delta","archived":{"0":5,"11":9007199254740992},"updated_ms":7}'
    )
    assert archives.decode(text[:-1] + b',"later":1}') == document
    assert Keyspace().documents(archives.KIND) == "headrace:{meta}:documents:archives"
    with pytest.raises(msgspec.ValidationError):
        archives.decode(b'{"topic":"t"}')
