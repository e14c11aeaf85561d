"""The wheel, installed into an environment of its own, away from the checkout."""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from hotdraft.pipeline.processes.local_server import wait_until_healthy
from tests.integration.processes import free_port

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the checkout: setuptools leaves a folder beside what it builds."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "hotdraft"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in ["pyproject.toml", "README.md", "LICENSE", *listed.stdout.splitlines()]:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        out,
        source,
    ]
    subprocess.run(build, check=True, capture_output=True)
    [built] = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a new environment with the wheel; what it depends on is borrowed from this one."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
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


def test_the_command_works_outside_the_checkout(python: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("target: smollm2\ndraft: smollm2-draft\n")
    where = run([python, "-c", "import hotdraft; print(hotdraft.__file__)"], tmp_path)
    assert Path(where.stdout.strip()).is_relative_to(python.parents[1]), where.stderr
    done = run([python.parent / "hotdraft", "doctor", "--config", "config.yaml"], tmp_path)
    assert "smollm2-draft" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_library_generates_outside_the_checkout(python: Path, tiny_target: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from hotdraft import LLM, SamplingParams\n"
        f"with LLM({tiny_target!r}, device='cpu', max_model_len=64) as llm:\n"
        "    [output] = llm.generate('hello', SamplingParams(temperature=0, max_tokens=4, ignore_eos=True))\n"
        "print(len(output.outputs[0].token_ids))\n"
    )
    done = run([python, script], tmp_path)
    assert (done.stdout, done.returncode) == ("4\n", 0), done.stderr


def test_the_readmes_last_line_serves_and_its_question_is_answered(python: Path, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    [line] = re.findall(r"^hotdraft (serve smollm2 .*)$", readme, re.MULTILINE)
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
    assert (tmp_path / "runs" / "smollm2" / "serve.yaml").is_file()
