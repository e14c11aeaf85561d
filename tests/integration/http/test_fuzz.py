"""Requests that schemathesis makes up from our own OpenAPI: nothing valid is refused, nothing invalid taken."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.processes import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

HERE = Path(__file__).parent


@pytest.mark.parametrize(("api_key", "examples"), [(None, 40), ("fuzz-key", 10)])
def test_every_answer_is_what_the_schema_says(
    write_config: Callable[..., Path], tmp_path: Path, api_key: str | None, examples: int
) -> None:
    pytest.importorskip("schemathesis")
    config = write_config(tmp_path, server={"api_keys": [api_key] if api_key else []})
    server = Server(config, tmp_path / "server.log")
    key = ["--header", f"Authorization: Bearer {api_key}"] if api_key else []
    command = [
        *(str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(HERE / "schemathesis.toml")),
        *("run", f"{server.url}/openapi.json", "--max-examples", str(examples), "--seed", "1", *key),
        *("--header", "Content-Type: application/json"),  # of changes without a body as well
    ]
    hooks = {"SCHEMATHESIS_HOOKS": "tests.integration.http.schemathesis_hooks", "PYTHONPATH": str(HERE.parents[2])}
    environment = {**os.environ, **hooks}
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=240, check=False
        )
        assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
        assert " passed" in run.stdout
        server.ask(1, extra_headers={"Authorization": f"Bearer {api_key}"})
    finally:
        server.kill()
