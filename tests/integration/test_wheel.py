"""The wheel, installed into an environment of its own, away from the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from hotdraft.pipeline.processes.local_server import wait_until_healthy
from tests.integration.processes import free_port

ROOT = Path(__file__).parents[2]
HAS_COMPILER = shutil.which("g++") is not None
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its library is optimised for being compiled: that of the checkout is what other tests run."""
    compiler = tmp_path_factory.mktemp("compiler") / "g++"
    compiler.write_text('#!/bin/sh\nexec g++ "$@" -O1\n')
    compiler.chmod(0o755)
    return build(tmp_path_factory, CXX=str(compiler))


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory)


def build(temporary: pytest.TempPathFactory, **environment: str) -> Path:
    """A wheel from a copy of the checkout: setuptools leaves a folder beside what it builds."""
    source, out = temporary.mktemp("source"), temporary.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "hotdraft"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in ["pyproject.toml", "README.md", "LICENSE", *listed.stdout.splitlines()]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    options = ["--quiet", "--no-deps", "--no-build-isolation", "-w", out]
    command = [sys.executable, "-m", "pip", "wheel", *options, source]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})
    [built] = out.glob("*.whl")
    return built


def install(wheel: Path, temporary: pytest.TempPathFactory) -> Path:
    """Python of a new environment with the wheel; what it depends on is borrowed from this one."""
    folder = temporary.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    [site] = folder.glob("lib/python*/site-packages")
    [borrowed] = {path for path in sys.path if path.endswith("site-packages") and (Path(path) / "torch").is_dir()}
    (site / "borrowed.pth").write_text(f"{borrowed}\n")
    return python


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_it_holds_hotdraft_alone(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"hotdraft"}
    assert any(name.endswith("shipped-drafts/smollm2-draft/model.safetensors") for name in names)
    assert any(name.endswith("shipped-configs/demo.yaml") for name in names)
    assert any(name.endswith("dashboard/static/index.html") for name in names)
    assert "hotdraft/training/experiment/shiftbench.yaml" in names
    assert any(name.startswith("hotdraft/serving/native/_native") for name in names) == HAS_COMPILER


def test_the_command_works_outside_the_checkout(python: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("target: smollm2\ndraft: smollm2-draft\n")
    where = run([python, "-c", "import hotdraft; print(hotdraft.__file__)"], tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(python.parents[1]), where.stderr
    done = run([python.parent / "hotdraft", "doctor", "--config", "config.yaml"], tmp_path)
    assert "smollm2-draft" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_library_generates_outside_the_checkout(python: Path, tiny_target: str, tmp_path: Path) -> None:
    done = generate(python, tiny_target, tmp_path)
    assert (done.stdout, done.returncode) == (f"4 {'native' if HAS_COMPILER else 'fused'}\n", 0), done.stderr


def generate(python: Path, target: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(
        "from hotdraft import LLM, SamplingParams\n"
        f"with LLM({target!r}, device='cpu', max_model_len=64) as llm:\n"
        "    [output] = llm.generate('hello', SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))\n"
        "    print(len(output.outputs[0].token_ids), llm._engine.computations['target'].runner)\n"
    )
    return run([python, script], folder)


def test_without_a_compiler_it_installs_serves_by_torch_and_says_so(
    tiny_target: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wheel = build(tmp_path_factory, CC="/bin/false", CXX="/bin/false")
    assert not any("_native" in name for name in zipfile.ZipFile(wheel).namelist())
    python = install(wheel, tmp_path_factory)
    done = generate(python, tiny_target, tmp_path)
    assert (done.stdout, done.returncode) == ("4 fused\n", 0), done.stderr
    told = run([python.parent / "hotdraft", "doctor"], tmp_path).stdout
    assert "hotdraft was installed without a C++ compiler" in " ".join(told.split())


def test_the_readmes_last_line_serves_and_its_question_is_answered(python: Path, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    [line] = re.findall(r"^hotdraft (serve --config smollm2 .*)$", readme, re.MULTILINE)
    [question] = re.findall(r"chat/completions .* -d '(\{.*?\})'", readme, re.DOTALL)
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python.parent / "hotdraft", *line.split(), "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", server, tmp_path / "log")
        url = f"http://127.0.0.1:{port}"
        answer = httpx.post(f"{url}/v1/chat/completions", json=json.loads(question), timeout=60).json()
        assert "Graphics Processing Unit" in answer["choices"][0]["message"]["content"]
        assert "hotdraft" in httpx.get(url, follow_redirects=True).text
    finally:
        server.terminate()
        server.wait(60)
    said = (tmp_path / "log").read_text()
    assert f"{url}/v1" in said
    assert "Warning" not in said
    assert (tmp_path / "runs" / "smollm2" / "mlflow.db").is_file()
