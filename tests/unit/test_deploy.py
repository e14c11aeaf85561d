"""The files to deploy with agree with the program: its commands, its configuration, its ports and its drain."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from hotdraft.pipeline.config.section import ConfigError
from hotdraft.pipeline.config.serving import ServerConfig
from hotdraft.pipeline.config.settings import HotdraftConfig, load_config
from hotdraft.serving.http.access import read_admin_keys
from hotdraft.serving.http.drain import LAST_WORDS_SECONDS
from tests.unit.command_lines import parse

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("hotdraft:")}
UNITS = sorted(DEPLOY.glob("*.service"))
NOT_KEYS = {"HOTDRAFT_CONFIG", "HOTDRAFT_CACHE"}
DRAIN = ServerConfig().drain_seconds + LAST_WORDS_SECONDS


def instructions(name: str) -> list[str]:
    """Arguments of each `name` in the Dockerfile, in order; continued lines are joined."""
    joined = re.sub(r"\\\n\s*", "", DOCKERFILE)
    return re.findall(rf"^{name} (.*)$", joined, re.MULTILINE)


def image_environment() -> dict[str, str]:
    return dict(part.split("=", 1) for line in instructions("ENV") for part in shlex.split(line))


def unit_settings(path: Path) -> list[tuple[str, str]]:
    lines = [line for line in path.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return [(key, value) for key, _, value in (line.partition("=") for line in lines)]


def unit_environment(path: Path) -> dict[str, str]:
    values = [value for key, value in unit_settings(path) if key == "Environment"]
    return dict(value.split("=", 1) for value in values)


def is_key(variable: str) -> bool:
    """Whether an environment variable sets a value of the configuration."""
    model: Any = HotdraftConfig
    *sections, last = variable.removeprefix("HOTDRAFT_").lower().split("__")
    for section in sections:
        field = model.model_fields.get(section)
        if field is None or not issubclass(field.annotation, BaseModel):
            return False
        model = field.annotation
    return last in model.model_fields


def seconds(duration: str) -> float:
    """Of Compose's and systemd's spelling alike."""
    units = {"": 1, "s": 1, "m": 60, "min": 60}
    number, unit = re.fullmatch(r"(\d+)\s*(\w*)", duration).groups()  # type: ignore[union-attr]
    return float(number) * units[unit]


ENVIRONMENTS = {
    "Dockerfile": image_environment(),
    **{name: service.get("environment", {}) for name, service in OURS.items()},
    **{path.name: unit_environment(path) for path in UNITS},
}


@pytest.mark.parametrize("where", ENVIRONMENTS)
def test_every_variable_is_a_key_of_the_configuration(where: str) -> None:
    names = {name for name in ENVIRONMENTS[where] if name.startswith("HOTDRAFT_")} - NOT_KEYS
    assert [name for name in names if not is_key(name)] == []


def test_every_variable_of_mlflow_is_one_that_it_knows() -> None:
    import mlflow.cli  # takes a second, and every worker imports what stands at the top of all files
    import mlflow.environment_variables

    known = {parameter.envvar for parameter in mlflow.cli.server.params} | vars(mlflow.environment_variables).keys()
    assert set(SERVICES["mlflow"]["environment"]) <= known


def test_what_is_no_key_is_found_out() -> None:
    assert is_key("HOTDRAFT_SERVER__DRAIN_SECONDS")
    assert is_key("HOTDRAFT_RUN_DIR")
    assert not is_key("HOTDRAFT_SERVER__DRAIN")
    assert not is_key("HOTDRAFT_TARGET__URI")


def test_the_image_runs_a_command_of_ours_as_nobody_in_particular() -> None:
    [entrypoint], [command] = instructions("ENTRYPOINT"), instructions("CMD")
    assert json.loads(entrypoint) == ["hotdraft"]
    assert parse([*json.loads(command), "--config", image_environment()["HOTDRAFT_CONFIG"]])["self_improve"] is True
    user, _, group = instructions("USER")[-1].partition(":")
    assert int(user) > 0 < int(group)
    assert instructions("STOPSIGNAL") == ["SIGTERM"]


def test_the_image_listens_where_it_is_asked_for_its_health() -> None:
    port = ServerConfig().port
    assert instructions("EXPOSE") == [str(port)]
    assert f"http://127.0.0.1:{port}/health" in instructions("HEALTHCHECK")[0]
    assert image_environment()["HOTDRAFT_SERVER__HOST"] == "0.0.0.0"


def test_the_image_has_all_packages_and_the_configuration_it_names() -> None:
    copied = {word for line in instructions("COPY") for word in line.split()[:-1] if not word.startswith("--")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]} <= copied
    assert {project["project"]["readme"], *project["project"]["license-files"], "pyproject.toml"} <= copied
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == {name.partition("/")[0] for name in copied if (ROOT / name).exists()}
    extra = re.search(r'pip install "\.\[(\w+)\]"', DOCKERFILE)
    assert extra is not None
    assert extra[1] in project["project"]["optional-dependencies"]
    config = Path(image_environment()["HOTDRAFT_CONFIG"])
    load_config(ROOT / config.relative_to(instructions("WORKDIR")[-1]))
    volumes = json.loads(instructions("VOLUME")[0])
    assert any(image_environment()["HOTDRAFT_CACHE"].startswith(f"{volume}/") for volume in volumes)


def test_an_image_for_a_gpu_can_compile_kernels() -> None:
    """Triton looks for a C compiler, without which layers are computed by torch's slower operations."""
    final = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]
    [told] = [line for line in instructions("RUN") if line.startswith("if ") and line.partition(";")[0] in final]
    assert "site-packages/triton" in told.partition("then")[0], "an image for a CPU needs none"
    assert {"gcc", "libc6-dev"} <= set(told.split())


@pytest.mark.parametrize("name", [name for name in OURS if "entrypoint" not in OURS[name]])
def test_commands_of_the_services_parse(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTDRAFT_CONFIG", image_environment()["HOTDRAFT_CONFIG"])
    parse(SERVICES[name]["command"])


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_pinned_watched_limited_and_restarted(name: str) -> None:
    service = SERVICES[name]
    assert re.search(r":v?\d+(\.\d+)+", service["image"])
    assert service["restart"]
    if name == "models":  # which comes to an end
        return
    assert service["deploy"]["resources"]["limits"]["memory"]
    if name == "trainer":
        assert service["healthcheck"] == {"disable": True}
    elif name != "server":  # whose image has one
        assert service["healthcheck"]["test"][0] == "CMD"


def test_services_wait_for_what_can_be_waited_for() -> None:
    for name, service in SERVICES.items():
        for other, wanted in service.get("depends_on", {}).items():
            check = SERVICES[other].get("healthcheck", {})
            if wanted["condition"] == "service_healthy":
                assert "test" in check, f"{name} waits for the health of {other}"
            if wanted["condition"] == "service_completed_successfully":
                assert SERVICES[other]["restart"] == "on-failure:3", f"{name} waits for {other} to end"


def test_a_model_that_cannot_be_fetched_keeps_no_server_with_one_of_its_own_from_starting() -> None:
    waiting = {name for name, service in SERVICES.items() if "models" in service.get("depends_on", {})}
    assert waiting == {"server", "trainer"}
    assert all(SERVICES[name]["depends_on"]["models"]["required"] is False for name in waiting)
    commands = [value for key, value in unit_settings(DEPLOY / "hotdraft.service") if key == "ExecStartPre"]
    assert [command.startswith("-") and "models fetch" in command for command in commands] == [True]


def test_ports_agree() -> None:
    [published] = SERVICES["server"]["ports"]
    assert published["target"] == ServerConfig().port
    mlflow = SERVICES["mlflow"]
    uri = f"http://mlflow:{mlflow['environment']['MLFLOW_PORT']}"
    for name in ("server", "trainer"):
        assert SERVICES[name]["environment"]["HOTDRAFT_TRACKING__URI"] == uri
    assert uri.removeprefix("http://") in mlflow["environment"]["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert f"{uri.replace('mlflow', '127.0.0.1')}/health" in mlflow["healthcheck"]["test"][-1]
    for name in SERVICES.keys() - {"server"}:  # none of them asks for a password, or not for a good one
        assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", ()))


def test_prometheus_scrapes_the_server_and_grafana_asks_prometheus() -> None:
    [job] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"server:{ServerConfig().port}"]}]
    [port] = SERVICES["prometheus"]["ports"]
    folder = DEPLOY / "grafana" / "provisioning"
    [source] = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert source["url"] == f"http://prometheus:{port.rpartition(':')[2]}"
    [provider] = yaml.safe_load((folder / "dashboards" / "hotdraft.yaml").read_text())["providers"]
    mounts = [volume.split(":")[1] for volume in SERVICES["grafana"]["volumes"]]
    assert provider["options"]["path"] in mounts


def test_server_and_trainer_share_one_run_folder_in_a_volume() -> None:
    server, trainer = SERVICES["server"], SERVICES["trainer"]
    assert server["environment"]["HOTDRAFT_RUN_DIR"] == trainer["environment"]["HOTDRAFT_RUN_DIR"]
    assert server["volumes"] == trainer["volumes"]
    mounts = [volume.split(":")[1] for volume in server["volumes"]]
    assert mounts == json.loads(instructions("VOLUME")[0])
    assert any(server["environment"]["HOTDRAFT_RUN_DIR"].startswith(f"{mount}/") for mount in mounts)


def test_volumes_are_declared_and_mounted_files_exist() -> None:
    mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", ())]
    named = {source for source in mounted if not source.startswith(".")}
    assert named == COMPOSE["volumes"].keys()
    assert [source for source in mounted if source.startswith(".") and not (DEPLOY / source).exists()] == []


def test_variables_to_fill_in_stand_in_the_example() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    used = set(re.findall(r"\$\{(\w+)", text))
    example = dict(line.split("=", 1) for line in (DEPLOY / ".env.example").read_text().splitlines() if "=" in line
                   and not line.startswith("#"))  # fmt: skip
    assert used == example.keys()
    for name in used:
        needed = f"${{{name}:?" in text
        assert needed == (example[name] == ""), name  # what has no default must be filled in
        assert needed == name.endswith(("_PASSWORD", "_KEYS")), name


def test_there_is_time_to_drain() -> None:
    assert seconds(SERVICES["server"]["stop_grace_period"]) > DRAIN
    [stop] = [value for key, value in unit_settings(DEPLOY / "hotdraft.service") if key == "TimeoutStopSec"]
    assert seconds(stop) > DRAIN


def test_the_gpu_is_for_services_that_there_are() -> None:
    override = yaml.safe_load((DEPLOY / "compose.gpu.yaml").read_text())
    assert override["name"] == COMPOSE["name"]
    assert override["services"].keys() <= OURS.keys()


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_run_commands_of_ours(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = unit_settings(path)
    monkeypatch.setenv("HOTDRAFT_CONFIG", unit_environment(path)["HOTDRAFT_CONFIG"])
    commands = [shlex.split(value) for key, value in settings if key.startswith("ExecStart")]
    assert len(commands) == 2
    for program, *words in commands:
        assert program.removeprefix("-") == "/opt/hotdraft/bin/hotdraft"
        parse(words)
    assert ("KillSignal", "SIGTERM") in settings
    assert ("NoNewPrivileges", "yes") in settings
    assert ("ProtectSystem", "strict") in settings


def test_units_share_user_and_folders() -> None:
    assert len(UNITS) == 2
    shared = ("User", "StateDirectory", "CacheDirectory", "WorkingDirectory", "EnvironmentFile")
    server, trainer = (dict(unit_settings(DEPLOY / f"{name}.service")) for name in ("hotdraft", "hotdraft-trainer"))
    assert [server[key] for key in shared] == [trainer[key] for key in shared]
    for path in UNITS:
        environment = unit_environment(path)
        assert environment["HOTDRAFT_RUN_DIR"].startswith(f"/var/lib/{server['StateDirectory']}/")
        assert environment["HOTDRAFT_CACHE"].startswith(f"/var/cache/{server['CacheDirectory']}")
    settings = unit_settings(DEPLOY / "hotdraft.service")
    credentials = {value.partition(":")[0] for key, value in settings if key == "LoadCredential"}
    environment = unit_environment(DEPLOY / "hotdraft.service")
    files = {environment[f"HOTDRAFT_SERVER__{kind}_KEY_FILE"] for kind in ("API", "ADMIN")}
    assert files == {f"%d/{name}" for name in credentials}


def test_what_other_machines_reach_has_an_admin_key() -> None:
    """The image listens at every address, and so no server starts from it that says nothing of /admin."""
    environment = SERVICES["server"]["environment"]
    assert environment["HOTDRAFT_SERVER__ADMIN_KEYS"].startswith("${HOTDRAFT_ADMIN_KEYS:?")
    with pytest.raises(ConfigError):
        read_admin_keys(ServerConfig(host=image_environment()["HOTDRAFT_SERVER__HOST"]))
    guide = (ROOT / "docs" / "deployment.md").read_text().replace("\\\n", " ")
    for command in re.findall(r"^docker run .*", guide, re.MULTILINE):
        assert "models fetch" in command or "HOTDRAFT_SERVER__ADMIN_KEYS" in command


def test_prometheus_calls_the_server_by_a_name_that_it_knows() -> None:
    allowed = SERVICES["server"]["environment"]["HOTDRAFT_SERVER__ALLOWED_HOSTS"]
    [job] = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["scrape_configs"]
    [target] = job["static_configs"][0]["targets"]
    assert allowed == f"${{HOTDRAFT_ALLOWED_HOSTS:-{target.partition(':')[0]}}}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    for unit in UNITS:  # with a program that exists here
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/hotdraft/bin/hotdraft", sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / path.name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
