"""Mistakes that a person makes at the door: each is told in one line that names its origin, without a trace."""

import os
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from hotdraft.cli import main

SHOW = ("config", "show", "--config", "my.yaml")
SERVE = ("serve", "--config", "my.yaml")


@dataclass(frozen=True)
class Mistake:
    words: tuple[str, ...]
    """Of the command."""
    says: str
    """In its one line."""
    yaml: str = "target: TARGET\n"
    variables: dict[str, str] = field(default_factory=dict)
    prepare: Callable[[Path], object] = lambda folder: None


def _folder_for_file(folder: Path) -> None:
    (folder / "my.yaml").unlink()
    (folder / "my.yaml").mkdir()


def _spoiled_model(name: str, text: str, folder: Path) -> None:
    (folder / "spoiled").mkdir()
    for path, says in {"config.json": "{}", "model.safetensors": "", name: text}.items():
        (folder / "spoiled" / path).write_text(says)


MISTAKES = {
    "a section misspelt": Mistake(
        SHOW, "my.yaml:2: engin: no such key; did you mean engine?", "target: m\nengin: {}\n"
    ),
    "a key misspelt": Mistake(
        SHOW,
        "my.yaml:3: engine.num_slot: no such key; did you mean engine.num_slots?",
        "target: m\nengine:\n  num_slot: 4\n",
    ),
    "a key in no section": Mistake(
        SHOW, "my.yaml:2: num_slots: no such key; did you mean engine.num_slots?", "target: m\nnum_slots: 4\n"
    ),
    "a key of another section": Mistake(
        SHOW, "my.yaml:2: engine.port: no such key; did you mean server.port?", "target: m\nengine: {port: 1}\n"
    ),
    "a text for a number": Mistake(
        SHOW,
        "my.yaml:2: engine.num_slots: Input should be a valid integer",
        "target: m\nengine: {num_slots: many}\n",
    ),
    "a switch for a number": Mistake(
        SHOW, "my.yaml:2: engine.num_slots: must not be true", "target: m\nengine: {num_slots: on}\n"
    ),
    "a store of versions that is none": Mistake(
        SHOW,
        "my.yaml:2: tracking.uri: must be of a database (sqlite:///…, postgresql://…) or of an MLflow",
        "target: m\ntracking: {uri: 'foo://x'}\n",
    ),
    "a name that MLflow cannot look for": Mistake(
        SHOW,
        """my.yaml:2: tracking.registered_model: must not have "'" in it""",
        "target: m\ntracking: {registered_model: it's}\n",
    ),
    "a rollback for a reason without end": Mistake(
        ("adapters", "rollback", "-c", "my.yaml", "--reason", "x" * 1001), "has 1001 characters, of at most 1000"
    ),
    "a replay buffer on the web": Mistake(
        SHOW,
        "my.yaml:2: replay.url: must be of a folder or a bucket",
        "target: m\nreplay: {url: 'http://x/y'}\n",
    ),
    "a name of no letters": Mistake(
        SHOW,
        "my.yaml:2: tracking.registered_model: String should have at least 1 character",
        "target: m\ntracking: {registered_model: ''}\n",
    ),
    "a command to show that is of no vLLM": Mistake(
        (*SERVE, "--show-command"), "--show-command is of --engine vllm"
    ),
    "memory without end": Mistake(
        ("predistill", "-c", "my.yaml", "--plan", "--memory-gb", "inf"), "should be less than or equal to 1000000"
    ),
    "a number out of range": Mistake(
        SHOW,
        "my.yaml:2: server.port: Input should be less than or equal to 65535",
        "target: m\nserver: {port: 70000}\n",
    ),
    "a rate without end": Mistake(
        SHOW,
        "my.yaml:2: distill.learning_rate: Input should be a finite number, not inf",
        "target: m\ndistill: {learning_rate: .inf}\n",
    ),
    "more slots than there can be": Mistake(
        (*SERVE, "--max-num-seqs", "1" + "0" * 30), "by flag: engine.num_slots: Input should be less than or equal"
    ),
    "a k of 5000 digits": Mistake(("k", "9" * 5000, "-c", "my.yaml"), "k must be a whole number from 0 to 16"),
    "more threads than there can be": Mistake(
        SHOW,
        "my.yaml:2: engine.threads: Input should be less than or equal to 1024, not 100000000",
        "target: m\nengine: {threads: 100000000}\n",
    ),
    "a wait that no clock can count": Mistake(
        SHOW,
        "my.yaml:2: recorder.flush_seconds: Input should be less than or equal to 3600",
        "target: m\nrecorder: {flush_seconds: 1.0e+10}\n",
    ),
    "a word that is none of the choices": Mistake(
        SHOW, "my.yaml:2: dtype: Input should be 'auto'", "target: m\ndtype: float8\n"
    ),
    "neither of two kinds": Mistake(SHOW, "my.yaml:2: engine.k: ", "target: m\nengine: {k: fast}\n"),
    "a list for a section": Mistake(SHOW, "my.yaml:2: engine: ", "target: m\nengine: [1]\n"),
    "a key twice": Mistake(
        SHOW, "my.yaml:3: target: stands here for the second time", "target: m\ndraft: d\ntarget: n\n"
    ),
    "a key twice, once in capitals": Mistake(
        SHOW,
        "my.yaml:2: Engine: no such key; did you mean engine?",
        "target: m\nEngine: {k: 2}\nengine: {k: 3}\n",
    ),
    "a key of two lines": Mistake(SHOW, "my.yaml:2: a b: no such key", 'target: m\n"a\\nb": 1\n'),
    "a day that is none": Mistake(SHOW, "my.yaml: holds a value that is none of its kind", "target: 2020-13-45\n"),
    "a key with a hyphen": Mistake(
        SHOW,
        "my.yaml:2: engine.num-slots: no such key; did you mean engine.num_slots?",
        "target: m\nengine: {num-slots: 1}\n",
    ),
    "a key that is a number": Mistake(SHOW, "my.yaml:2: 1: is no text", "target: m\n1: 2\n"),
    "one value of two kinds": Mistake(
        SHOW, "my.yaml:2: distill.lora.target_modules: ", "target: m\ndistill: {lora: {target_modules: 3}}\n"
    ),
    "a part that holds itself": Mistake(
        SHOW, "my.yaml:2: engine.b: holds itself", "target: m\nengine: &a {b: *a}\n"
    ),
    "a list that holds itself": Mistake(SHOW, "my.yaml:2: draft.0: holds itself", "target: m\ndraft: &a [*a]\n"),
    "ten levels of ten aliases": Mistake(
        SHOW,
        "my.yaml:2: draft: Input should be a valid string",
        "target: m\ndraft:\n- &a0 []\n" + "".join(f"- &a{n} [{f'*a{n - 1}, ' * 10}]\n" for n in range(1, 11)),
    ),
    "a list in a list in a list": Mistake(SHOW, "my.yaml: is nested too deeply", f"target: {'[' * 5000}\n"),
    "a control character": Mistake(SHOW, "my.yaml: not valid YAML", "target: m\x07\n"),
    "a wrong value that was merged": Mistake(
        SHOW, "engine.k: ", "target: m\nexperiment: {policies: {a: &a {k: -1}}}\nengine: {<<: *a}\n"
    ),
    "a tab": Mistake(SHOW, "my.yaml:3: not valid YAML", "target: m\nengine:\n\tk: 2\n"),
    "an unclosed bracket": Mistake(SHOW, "not valid YAML", "target: [m\n"),
    "a sentence": Mistake(SHOW, "my.yaml: holds a str, and not keys with values", "just a sentence\n"),
    "an empty file": Mistake(SHOW, "my.yaml: target: missing", ""),
    "no target": Mistake(SHOW, "my.yaml: target: missing", "draft: d\n"),
    "no such file": Mistake(("config", "show", "--config", "your.yaml"), "no configuration file at your.yaml"),
    "a folder for the file": Mistake(SHOW, "my.yaml cannot be read: Is a directory", prepare=_folder_for_file),
    "no text": Mistake(
        SHOW,
        "my.yaml cannot be read: it is not UTF-8",
        prepare=lambda folder: (folder / "my.yaml").write_bytes(b"\xff\xfe"),
    ),
    "a variable misspelt": Mistake(
        SHOW,
        "HOTDRAFT_ENGINE__NUM_SLOT: no such key of the configuration; did you mean HOTDRAFT_ENGINE__NUM_SLOTS?",
        variables={"HOTDRAFT_ENGINE__NUM_SLOT": "4"},
    ),
    "a variable with one underscore": Mistake(
        SHOW, "HOTDRAFT_ENGINE_K: no such key", variables={"HOTDRAFT_ENGINE_K": "4"}
    ),
    "a variable below a plain key": Mistake(
        SHOW, "HOTDRAFT_TARGET__X: no such key", variables={"HOTDRAFT_TARGET__X": "4"}
    ),
    "a variable out of range": Mistake(
        SHOW, "HOTDRAFT_ENGINE__K: engine.k: ", variables={"HOTDRAFT_ENGINE__K": "99"}
    ),
    "a variable that is no JSON": Mistake(
        SHOW, "HOTDRAFT_ENGINE: holds no JSON", variables={"HOTDRAFT_ENGINE": "{k: 2"}
    ),
    "a list in a variable that is no JSON": Mistake(
        SHOW, "HOTDRAFT_DISTILL__BLENDS: holds no JSON", variables={"HOTDRAFT_DISTILL__BLENDS": "0.5,"}
    ),
    "a wrong value in a variable of a section": Mistake(
        SHOW, "HOTDRAFT_ENGINE: engine.k: ", variables={"HOTDRAFT_ENGINE": '{"k": 99}'}
    ),
    "a wrong variable beside that of its section": Mistake(
        SHOW,
        "HOTDRAFT_ENGINE__K: engine.k: ",
        variables={"HOTDRAFT_ENGINE": '{"k": 1}', "HOTDRAFT_ENGINE__K": "x"},
    ),
    "an empty key": Mistake(
        SHOW, "HOTDRAFT_SERVER__API_KEYS: server.api_keys", variables={"HOTDRAFT_SERVER__API_KEYS": ""}
    ),
    "an empty key by flag, as of a variable that is not set": Mistake(
        (*SERVE, "--api-key", ""), "by flag: server.api_keys: holds an empty text"
    ),
    "a flag out of range": Mistake((*SHOW, "--port", "70000"), "by flag: server.port: "),
    "nothing to serve": Mistake(("serve",), "name a TARGET"),
    "an unknown flag": Mistake((*SERVE, "--num-slots", "4"), "No such option: --num-slots"),
    "no such folder": Mistake(("serve", "./nowhere", "--port", "PORT"), "target: no model folder at './nowhere'"),
    "a folder that is no model": Mistake(
        ("serve", "./empty", "--port", "PORT"),
        "lacks config.json",
        prepare=lambda folder: (folder / "empty").mkdir(),
    ),
    **{
        f"a spoiled {name}: {text}": Mistake(
            ("serve", "./spoiled", "--port", "PORT"),
            f"target: ./spoiled: spoiled/{name} {says}",
            prepare=partial(_spoiled_model, name, text),
        )
        for name, text, says in (
            ("config.json", "{", "cannot be read: "),
            ("config.json", "[1]", "holds no JSON object"),
            ("model.safetensors.index.json", "{", "cannot be read: "),
            ("model.safetensors.index.json", "{}", "has no weight_map"),
            ("model.safetensors.index.json", '{"weight_map": ["a"]}', "has no weight_map"),
            ("cut.json", "{}", "does not say what the draft was cut from"),
        )
    },
    **{
        f"a replay buffer at {url}": Mistake(
            ("replay", "stats", "-c", "my.yaml"),
            f"the replay buffer {url} cannot be opened: ",
            f"target: m\nreplay: {{url: '{url}'}}\n",
        )
        for url in ("my.yaml/replay", "carrier-pigeon://here")
    },
    "a speculative config of another method": Mistake(
        (*SERVE, "--speculative-config", '{"method": "eagle", "model": "d"}'), "--speculative-config: method: "
    ),
    "a list without end in a variable": Mistake(
        SHOW, "HOTDRAFT_ENGINE: holds no JSON, as a section", variables={"HOTDRAFT_ENGINE": "[" * 100_000}
    ),
    "a folder whose name no file system takes": Mistake(
        SHOW, "run_dir: must be a folder without NUL", f"target: m\nrun_dir: {'x' * 300}\n"
    ),
    "two drafts": Mistake(
        (*SERVE, "--draft", "d", "--speculative-config", '{"model": "e"}'),
        "--draft says d, and --speculative-config e: say it once",
    ),
    "a draft and none": Mistake(
        (*SERVE, "--draft", "d", "--speculative-config", '{"method": "suffix"}'),
        "--draft says d, and --speculative-config none: say it once",
    ),
    "two numbers of tokens": Mistake(
        (*SERVE, "--k", "2", "--speculative-config", '{"model": "e", "num_speculative_tokens": 3}'),
        "--k says 2, and --speculative-config 3: say it once",
    ),
    "a speculative config that is no JSON": Mistake(
        (*SERVE, "--speculative-config", "draft"), "--speculative-config: Invalid JSON"
    ),
    "a speculative config that is empty": Mistake(
        (*SERVE, "--speculative-config", ""), "--speculative-config: Invalid JSON"
    ),
    "a speculative config of fewer than no tokens": Mistake(
        (*SERVE, "--speculative-config", '{"model": "d", "num_speculative_tokens": -1}'),
        "--speculative-config: num_speculative_tokens: Input should be greater than or equal to 0; "
        "num_speculative_tokens: Input should be 'auto' (",
    ),
    "a port that is taken": Mistake((*SERVE, "--port", "TAKEN"), "port: another program listens at 127.0.0.1:"),
    "a host that is none": Mistake(
        (*SERVE, "--host", "no host"),
        "port: 'no host' is no address",
        "target: TARGET\nserver: {open_admin: true, port: 18123}\n",
    ),
    "a host longer than names are": Mistake(
        (*SERVE, "--host", "a" * 64),
        f"port: '{'a' * 64}' is no address",
        "target: TARGET\nserver: {open_admin: true, port: 18123}\n",
    ),
    "open to the world": Mistake(
        (*SERVE, "--host", "0.0.0.0", "--port", "PORT"), "other machines reach /admin at server.host 0.0.0.0"
    ),
    "a run_dir that is a file": Mistake(
        (*SERVE, "--run-dir", "my.yaml/run", "--port", "PORT"), "/my.yaml is no folder: set `run_dir:`"
    ),
    "a file of keys that is not there": Mistake(
        (*SERVE, "--port", "PORT"), "server.api_key_file", "target: TARGET\nserver: {api_key_file: keys}\n"
    ),
}


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_there_are_as_many_as_promised() -> None:
    assert len(MISTAKES) >= 30


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(
    name: str,
    taken: int,
    tiny_target: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    mistake = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    for variable in [variable for variable in os.environ if variable.startswith("HOTDRAFT_")]:
        monkeypatch.delenv(variable)
    for variable, value in mistake.variables.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("COLUMNS", "200")
    Path("my.yaml").write_text(mistake.yaml.replace("TARGET", tiny_target))
    mistake.prepare(tmp_path)
    words = [word.replace("TAKEN", str(taken)).replace("PORT", "0") for word in mistake.words]
    monkeypatch.setattr(sys, "argv", ["hotdraft", *words])
    monkeypatch.setattr(os, "umask", lambda mask: mask)  # it would stay for the tests to come
    with pytest.raises(SystemExit) as ended:
        main()
    said = capfd.readouterr().err
    assert ended.value.code == 2
    assert mistake.says in said
    assert "Traceback" not in said
    if said.startswith("hotdraft: "):  # what Typer refuses has a frame around it
        assert said.count("\n") == 1
