"""Public clients against a real server. Each lives in an environment of its own, as its users have it.

HOTDRAFT_CLIENTS_PYTHON names the interpreter of one with litellm, langchain-openai and lm-eval[api] with
transformers, HOTDRAFT_GUIDELLM_PYTHON that of one with guidellm; without them these tests are skipped. The
`openai` client is what all other tests speak through.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
import yaml

from tests.integration.processes import MODEL, Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CLIENTS = Path(__file__).parent / "clients"
OFFLINE = {"HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


@pytest.fixture(scope="module")
def server(write_config: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = write_config(tmp_path_factory.mktemp("clients"))
    server = Server(config, config.with_name("server.log"))
    yield server
    server.kill()


def python_of(variable: str) -> Path:
    if variable not in os.environ:
        pytest.skip(f"{variable} names no interpreter")
    return Path(os.environ[variable])


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **OFFLINE},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_openai(server: Server) -> None:
    client = server.client
    hello = [{"role": "user", "content": "alpha beta"}]
    options = {"model": MODEL, "messages": hello, "max_tokens": 8, "temperature": 0.0}
    options["extra_body"] = {"ignore_eos": True}
    reply = client.chat.completions.create(**options, n=2, logprobs=True, top_logprobs=3)
    assert reply.choices[0].message.content == reply.choices[1].message.content, "both are greedy"
    told = reply.choices[0].logprobs.content
    assert len(told) == 8
    assert all(token.logprob == token.top_logprobs[0].logprob for token in told), "greedy takes the likeliest"

    stream = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    *chunks, last = stream
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == reply.choices[0].message.content
    assert last.usage.completion_tokens == 8

    whole = reply.choices[0].message.content
    stopped = client.chat.completions.create(**options, stop=[whole[3:5]])
    assert stopped.choices[0].message.content == whole[: whole.index(whole[3:5])]
    assert (stopped.choices[0].finish_reason, stopped.choices[0].stop_reason) == ("stop", whole[3:5])

    penalised = client.chat.completions.create(**{**options, "max_tokens": 64}, frequency_penalty=2.0)
    plain = client.chat.completions.create(**{**options, "max_tokens": 64})
    assert len(set(penalised.choices[0].message.content)) > len(set(plain.choices[0].message.content))

    score = {"prompt": "alpha", "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    scored = client.completions.create(model=MODEL, **score)
    assert scored.choices[0].logprobs.token_logprobs[0] is None
    assert len(scored.choices[0].logprobs.tokens) == 6
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a" * 300}])


@pytest.mark.parametrize("name", ["litellm", "langchain"])
def test_libraries(server: Server, tmp_path: Path, name: str) -> None:
    python = python_of("HOTDRAFT_CLIENTS_PYTHON")
    assert "content" in run(python, CLIENTS / f"use_{name}.py", server.url, MODEL, cwd=tmp_path)


def test_lm_eval(server: Server, pair: tuple[str, str], tmp_path: Path) -> None:
    python = python_of("HOTDRAFT_CLIENTS_PYTHON")
    rows = [{"question": word, "choices": ["beta", "gamma"], "label": i % 2} for i, word in enumerate("abcd")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    common = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "doc_to_text": "{{question}}",
    }
    choice = {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "label"}
    generate = {
        "output_type": "generate_until",
        "doc_to_target": "{{choices[label]}}",
        "generation_kwargs": {"until": ["zz"], "max_gen_toks": 16, "temperature": 0},
        "metric_list": [{"metric": "exact_match"}],
    }
    for name, task in (("choice", choice), ("generate", generate)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"task": f"words_{name}", **common, **task}))
    model = {
        "model": MODEL,
        "base_url": f"{server.url}/v1/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": pair[0],
        "num_concurrent": 2,
        "max_length": 256,
    }
    told = run(
        *(python.with_name("lm_eval"), "--model", "local-completions"),
        *("--model_args", ",".join(f"{key}={value}" for key, value in model.items())),
        *("--tasks", "words_choice,words_generate", "--include_path", tmp_path),
        cwd=tmp_path,
    )
    assert "words_choice" in told
    assert "exact_match" in told


def test_guidellm(server: Server, pair: tuple[str, str], tmp_path: Path) -> None:
    python = python_of("HOTDRAFT_GUIDELLM_PYTHON")
    rows = [{"prompt": f"alpha beta {number}", "output_tokens_count": 16} for number in range(20)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    run(
        *(python.with_name("guidellm"), "run"),
        *("--backend", f"kind=openai_http,target={server.url},model={MODEL}"),
        *("--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=20"),
        *("--data", f"kind=json_file,path={tmp_path / 'prompts.jsonl'}"),
        *("--tokenizer", f"kind=huggingface_auto,model={pair[0]}"),
        *("--output", f"kind=json,path={tmp_path / 'report.json'}", "--disable-console"),
        cwd=tmp_path,
    )
    [benchmark] = json.loads((tmp_path / "report.json").read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (20, 0)
