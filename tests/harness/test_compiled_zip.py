import zipfile
import zipimport
from pathlib import Path

from tests.harness.compiled_zip import compile_in


def test_modules_in_a_zip_are_compiled_in_advance(tmp_path: Path) -> None:
    path = tmp_path / "modules.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("package/__init__.py", "")
        archive.writestr("package/module.py", "NAME = __file__\n")
    assert compile_in(path) == 2
    assert compile_in(path) == 0
    with zipfile.ZipFile(path) as archive:
        assert archive.read("package/module.py") == b"NAME = __file__\n"
    importer = zipimport.zipimporter(f"{path}/package")
    assert importer.get_filename("module") == f"{path}/package/module.pyc"
    names: dict[str, str] = {"__file__": "here"}
    code = importer.get_code("module")
    exec(code, names)
    assert names["NAME"] == "here"
    # Where a traceback says that it is.
    assert code.co_filename == f"{path}/package/module.py"
