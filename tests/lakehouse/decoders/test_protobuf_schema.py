"""Protobuf messages as columns; protobuf's own library writes what is right."""

from pathlib import Path

import pytest
from tests.harness.typed_values import split

from headrace.client.errors import OptionError
from headrace.lakehouse.decoders.decoder import Decoding
from headrace.lakehouse.decoders.protobuf_compiler import compiled


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('syntax = "proto3"; message A { Nowhere b = 1; }', '"Nowhere" is not defined'),
        ('syntax = "proto3"; import "no/such.proto"; message A { int32 b = 1; }', "no/such.proto: File not found"),
        ('syntax = "proto3"; message A {}', "A has no fields"),
        ('syntax = "proto3"; enum A { X = 0; }', "the file has no message"),
        ("\0", "is not a .proto file that can be compiled"),
    ],
)
def test_a_schema_that_cannot_be_used_is_one_line(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "value.proto"
    path.write_text(text)
    with pytest.raises(OptionError) as told:
        Decoding.of(str(path))
    assert reason in str(told.value)
    assert "\n" not in str(told.value)


def test_an_import_may_have_any_name(tmp_path: Path) -> None:
    inner = 'syntax = "proto3"; message Inner { int32 n = 1; }'
    names = ["value.proto", "./value1.proto", "VALUE2.proto"]
    imports = "".join(f'import "{name.removeprefix("./")}"; ' for name in names[:1])
    text = f'syntax = "proto3"; {imports} message Outer {{ Inner inner = 1; }}'
    others = {names[0]: inner, names[1]: 'syntax = "proto3";', names[2]: 'syntax = "proto3";'}
    (tmp_path / "value.proto").write_text(inner)
    for made in (
        compiled(text, "a test", others),
        compiled(text, "a test", None, str(tmp_path)),
    ):
        path = tmp_path / "made.desc"
        path.write_bytes(made)
        assert split(Decoding.of(str(path)), [b"\x0a\x02\x08\x05"]).table == {0: {"inner": {"n": 5}}}


def test_an_import_below_a_file_is_refused() -> None:
    with pytest.raises(OptionError, match=r"a test: an import is called 'a.proto/b.proto'"):
        compiled("", "a test", {"a.proto": "", "a.proto/b.proto": ""})
