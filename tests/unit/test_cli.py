"""The command line answers at once and explains every command."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from hotdraft.cli import app, main
from hotdraft.pipeline.config.serving import EngineConfig, ServerConfig
from hotdraft.pipeline.system.run_lock import run_lock
from tests.unit.command_lines import command_lines, parse

ROOT = Path(__file__).parents[2]

HEAVY = {"torch", "transformers", "mlflow", "lightning", "datasets", "peft", "fastapi", "matplotlib", "numpy"}

REPORT_IMPORTS = """
import json, sys
from hotdraft.cli import main
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
LEAVES = [words for words in COMMANDS if not any(other[:-1] == words for other in COMMANDS)]


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
        ("adapters", "unpin"),
        ("replay", "stats"),
        ("replay", "due"),
        ("models", "fetch"),
        ("config", "show"),
        ("config", "schema"),
    } <= set(COMMANDS)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_shows_examples_of_itself_that_parse(words: tuple[str, ...]) -> None:
    told = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).output
    examples = list(command_lines(re.sub(r" +$", "", told, flags=re.MULTILINE)))  # as 80 columns show them
    assert examples
    for example in examples:
        assert tuple(example[: len(words)]) == words
        parse(example)


def test_the_help_of_serve_names_the_defaults() -> None:
    told = " ".join(CliRunner().invoke(app, ["serve", "--help"]).output.split())
    engine, server = EngineConfig(), ServerConfig()
    assert f"{server.host}:{server.port}, k {engine.k}, {engine.num_slots} requests" in told
    assert f"of {engine.max_model_len} tokens at most" in told


def test_what_does_not_parse_is_told_from_what_does() -> None:
    assert parse(["serve", "-c", "my.yaml", "--port", "9000"])["port"] == 9000
    for wrong in (
        ["serve", "--prot", "1"],
        ["serve", "--port", "many"],
        ["adapters", "show", "0"],
        ["distill", "x"],
    ):
        with pytest.raises(
            Exception, match=r"(?i)no such option|valid integer|greater than|range|missing|unexpected"
        ):
            parse(wrong)


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name)
def test_commands_in_the_documentation_parse(path: Path) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", path.read_text(), re.DOTALL)
    rows = re.findall(r"^\| `(hotdraft [^`]+)`", path.read_text(), re.MULTILINE)
    for words in command_lines("\n".join([*blocks, *rows])):
        parse(words)


def test_the_configuration_may_be_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTDRAFT_CONFIG", "configs/my.yaml")
    for words in LEAVES:
        told = CliRunner().invoke(app, [*words, "--help"]).output
        if "--config" in told and words != ("demo",):  # which brings its own
            assert "-c " in told, words
            assert "HOTDRAFT_CONFIG" in told, words
    assert parse(["serve"])["config"] == Path("configs/my.yaml")
    assert parse(["serve", "-c", "other.yaml"])["config"] == Path("other.yaml")


def test_a_locale_that_lacks_a_sign_ends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("target: m\nserver: {served_model_name: zäh}\n", encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    words = [sys.executable, "-m", "hotdraft", "config", "show", "--changed", "--config", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **plain})
    assert (done.returncode, done.stderr) == (0, "")
    assert r"z\xe4h" in done.stdout


def test_a_log_on_a_full_disk_ends_nothing(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"target: tiny\nrun_dir: {tmp_path / 'run'}\n")
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "hotdraft", "loop", "off", "--config", str(config)]
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=full, text=True)
    assert done.returncode == 0
    assert "off" in done.stdout


def test_whoever_imports_what_asks_for_a_temporary_folder_goes_on_where_all_are_full(tmp_path: Path) -> None:
    program = """
import resource, sys, tempfile
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
from hotdraft.cli import main
sys.argv = ["hotdraft", "--version"]
try:
    main()
finally:
    print(tempfile.gettempdir())
"""
    words = [sys.executable, "-B", "-c", program]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, [str(tmp_path)]), done.stderr


def test_whoever_imports_what_asks_for_a_home_goes_on_as_a_user_who_has_none() -> None:
    program = """
import pwd, sys
from pathlib import Path
from hotdraft.cli import main
def unknown(uid):
    raise KeyError(uid)
pwd.getpwuid = unknown
sys.argv = ["hotdraft", "--version"]
try:
    main()
finally:
    print(Path.home())
"""
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, ["/"]), done.stderr


def test_a_container_that_is_granted_the_time_of_some_cores_computes_with_as_many_threads() -> None:
    program = """
import os, sys
from hotdraft import cli
cli.core_limits, cli.usable_cores = lambda: iter([2.5]), lambda: 2
sys.argv = ["hotdraft", "--version"]
try:
    cli.main()
finally:
    print(os.environ["OMP_NUM_THREADS"])
"""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    for said, threads in (({}, "2"), ({"OMP_NUM_THREADS": "3"}, "3")):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, env={**environment, **said}
        )
        assert done.stdout.splitlines()[1:] == [threads], done.stderr


def test_a_machine_without_git_is_not_told_how_to_get_one_whenever_mlflow_looks_for_it(tmp_path: Path) -> None:
    program = """
import sys
from hotdraft.cli import main
sys.argv = ["hotdraft", "--version"]
try:
    main()
finally:
    from mlflow.utils.git_utils import get_git_commit
    print(get_git_commit("."))
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, env={**environment, "PATH": str(tmp_path)})
    assert (done.stdout.splitlines()[1:], done.stderr) == (["None"], "")


@pytest.mark.parametrize("error", ["MemoryError()", "RuntimeError('[enforce fail] can\\'t allocate memory')"])
def test_a_machine_that_has_no_more_memory_is_told_of_in_a_line(error: str) -> None:
    program = f"""
from hotdraft import cli
def app():
    raise {error}
cli.app = app
cli.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "memory" in line


def test_python_without_docstrings_is_told_of() -> None:
    done = subprocess.run([sys.executable, "-OO", "-m", "hotdraft", "doctor"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "PYTHONOPTIMIZE=2" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_working_directory_that_is_deleted_is_told_in_a_line(tmp_path: Path) -> None:
    program = """
import os, sys
from hotdraft.cli import main
os.chdir(sys.argv[1])
os.rmdir(sys.argv[1])
sys.argv = ["hotdraft", "jobs", "list", "--config", "smollm2"]
main()
"""
    (gone := tmp_path / "gone").mkdir()
    done = subprocess.run([sys.executable, "-c", program, str(gone)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hotdraft: the working directory is deleted: change to one that is there\n"


def test_version() -> None:
    told = CliRunner().invoke(app, ["--version"])
    assert told.exit_code == 0
    assert re.fullmatch(r"hotdraft (\d+\.\d+\S*|unknown)\n", told.output)


@pytest.mark.parametrize(
    "words", ["loop status", "loop off", "k", "k 0", "jobs list", "jobs watch", "replay stats", "replay due"]
)
def test_a_command_says_each_time_that_nothing_has_run_where_it_looks(words: str, tmp_path: Path) -> None:
    config, run_dir = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(f"target: tiny\ndraft: d\nrun_dir: {run_dir}\n")
    for _ in range(2):
        told = CliRunner().invoke(app, [*words.split(), "--config", str(config)])
        assert (told.exit_code, told.stderr) == (0, f"warning: nothing has run in {run_dir} yet\n")
    with run_lock(run_dir, "server"):
        assert not CliRunner().invoke(app, [*words.split(), "--config", str(config)]).stderr


@pytest.mark.parametrize(
    "words",
    ["list", "show 1", "promote 1", "rollback", "unpin", "export 1 --out out", "push 1 --repo me/it"],
)
def test_to_look_for_adapters_makes_no_store(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text("target: tiny\ndraft: d\nrun_dir: run\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hotdraft", "adapters", *words.split(), "--config", "config.yaml"])
    monkeypatch.setattr(os, "umask", lambda mask: mask)  # it would stay for the tests to come
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"there is no store of adapters at {tmp_path / 'run' / 'mlflow.db'}" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_what_a_command_writes_where_nothing_has_run_is_told_and_its_owners_alone(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(f"target: tiny\nrun_dir: {tmp_path / 'run'}\n")
    arguments = ["loop", "off", "--config", str(config)]
    program = f"import sys; sys.argv = ['hotdraft', *{arguments}]; from hotdraft.cli import main; main()"
    run = [sys.executable, "-c", program]
    first, again = (subprocess.run(run, umask=0o022, check=True, capture_output=True, text=True) for _ in range(2))
    assert first.stderr == again.stderr == f"warning: nothing has run in {tmp_path / 'run'} yet\n"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run", *(tmp_path / "run").iterdir())}
    assert modes["run"] == 0o700
    assert modes["control.json"] == 0o600


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_options_and_values(shell: str) -> None:
    assert completed(shell, "hotdraft ad") == {"adapters"}
    assert "rollback" in completed(shell, "hotdraft adapters ")
    assert completed(shell, "hotdraft serve --self") == {"--self-improve"}
    assert completed(shell, "hotdraft serve --dtype bfl") == {"bfloat16"}
    assert completed(shell, "hotdraft predistill --method q") == {"qlora"}


def completed(shell: str, line: str) -> set[str]:
    """What `shell` is offered for the last word of `line`, by the protocol of its completion script."""
    words = line.split(" ")
    if shell == "bash":
        asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    else:
        asked = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['hotdraft']; from hotdraft.cli import main; main()"],
        env={**os.environ, "_HOTDRAFT_COMPLETE": f"complete_{shell}", **asked},
        capture_output=True,
        text=True,
    )
    return set(re.findall(r'^(?:_arguments .*\(\()?"?([-\w]+)', done.stdout, re.MULTILINE))
