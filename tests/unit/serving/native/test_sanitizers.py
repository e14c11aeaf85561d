"""The native library under the compiler's sanitizers."""

import shutil
import subprocess
from pathlib import Path

import pytest

from hotdraft.serving.native.bindings import FOLDER

COMPILER = shutil.which("g++")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="g++ is not installed"),
]


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_no_sanitizer_finds_anything(sanitizers: str, tmp_path: Path) -> None:
    program = tmp_path / "exercise"
    sources = [Path(__file__).parent / "exercise.cpp", *(FOLDER / "source").glob("*.cpp")]
    options = ["-std=gnu++20", "-O0", "-g1", "-w", "-pthread", f"-I{FOLDER / 'source'}"]
    options.append("-Dalways_inline=unused")  # inlined, what is watched takes twice as long to compile
    watched = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all"]
    subprocess.run([COMPILER, *options, *watched, *sources, "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
