"""The command line answers at once and explains every command."""

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from pipeline.cli import app

HEAVY = {"torch", "transformers", "mlflow", "lightning", "datasets", "peft", "fastapi", "matplotlib", "numpy"}

REPORT_IMPORTS = """
import json, sys
from pipeline.cli import main
sys.argv = ["hotdraft", "--help"]
try:
    main()
except SystemExit as end:
    print()
    print(json.dumps([end.code, sorted(sys.modules)]))
"""


def commands(group: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and group under `group`, as the words that call it."""
    children = getattr(group, "commands", {})
    return [path, *(found for name, child in children.items() for found in commands(child, (*path, name)))]


COMMANDS = commands(typer.main.get_command(app))


def test_help_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", REPORT_IMPORTS], capture_output=True, text=True, check=True)
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0
    assert "predistill" in done.stdout
    assert HEAVY.isdisjoint(modules)


def test_all_commands_are_found() -> None:
    assert {
        ("serve",),
        ("simulate",),
        ("demo",),
        ("distill",),
        ("predistill",),
        ("bench",),
        ("adapters", "list"),
        ("adapters", "show"),
        ("adapters", "promote"),
        ("adapters", "rollback"),
        ("replay", "stats"),
        ("models", "fetch"),
    } <= set(COMMANDS)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output
