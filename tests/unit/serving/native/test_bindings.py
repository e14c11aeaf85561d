"""What is said where there is no library, and of one that is not this version's."""

from pathlib import Path

import pytest

from hotdraft.serving.native import bindings
from hotdraft.serving.native.bindings import NativeError, native_library


def test_a_checkout_that_was_not_built_is_not_taken_for_one_installed_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bindings, "FOLDER", tmp_path / "hotdraft" / "serving" / "native")
    with pytest.raises(NativeError, match="without a C\\+\\+ compiler"):
        native_library.__wrapped__()
    (tmp_path / "pyproject.toml").touch()
    with pytest.raises(
        NativeError, match=f"imported from {tmp_path}, where `pip install -e .` has not compiled it"
    ):
        native_library.__wrapped__()
