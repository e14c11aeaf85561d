"""What is said where there is no library, and what becomes of its threads."""

import os
import platform
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from hotdraft.serving.native import bindings
from hotdraft.serving.native.bindings import NativeError, NotCompiledError, fingerprint, native_library


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


def test_a_library_of_other_sources_than_the_checkouts_is_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "hotdraft" / "serving" / "native"
    monkeypatch.setattr(bindings, "FOLDER", folder)
    (folder / "source").mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    (folder / "source" / "native.h").write_text("before a pull")
    (folder / f"_native{EXTENSION_SUFFIXES[0]}").write_text(f"no library, but of {fingerprint()}.")
    with pytest.raises(NativeError, match="cannot be loaded"):
        native_library.__wrapped__()
    (folder / "source" / ".native.h.swp").write_text("an editor's")
    with pytest.raises(NativeError, match="cannot be loaded"):
        native_library.__wrapped__()
    (folder / "source" / "native.h").write_text("after it")
    with pytest.raises(NotCompiledError, match=r"`pip install -e \.` has not compiled its present sources"):
        native_library.__wrapped__()


def test_a_processor_of_another_kind_is_not_sent_to_look_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(NativeError, match="this processor is aarch64") as raised:
        native_library.__wrapped__()
    assert not isinstance(raised.value, NotCompiledError)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process is forked off here")
def test_a_process_that_was_forked_off_ends_without_threads_that_it_does_not_have() -> None:
    program = """
import os, time
from hotdraft.serving.native.bindings import ThreadPool, find_instructions
pool = ThreadPool(find_instructions(), 2)
time.sleep(0.5)  # until its threads wait for work
child = os.fork()
del pool
if child:
    raise SystemExit(os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
