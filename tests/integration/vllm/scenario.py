"""A vLLM of its own, in a process of its own: `python -m tests.integration.vllm.scenario FILE`.

FILE is a `Scenario` as JSON; what came of each of its acts is written beside it.
"""

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Scenario:
    target: str
    draft: str
    run_dir: str
    acts: list[dict[str, Any]]
    """{"generate": sampling parameters, "prompts": token ids}, {"swap": version, "folder": its adapter},
    in the order of their happening."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of vLLM's `LLM`."""
    speculate: bool = True
    fingerprint: str | None = None

    def play(self) -> list[Any]:
        """In another process; what each act gave."""
        import subprocess

        file = Path(self.run_dir) / f"scenario-{time.monotonic_ns()}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self)))
        command = [sys.executable, "-m", "tests.integration.vllm.scenario", str(file)]
        cores = "|".join(str(rank) for rank in range(self.options.get("tensor_parallel_size", 1)))
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": cores}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=environment)
        assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-6000:]
        return json.loads(file.with_suffix(".came").read_text())


def run(scenario: Scenario) -> list[Any]:
    from vllm import LLM

    from hotdraft.pipeline.config.settings import HotdraftConfig
    from hotdraft.pipeline.models.loading import fingerprint
    from hotdraft.serving.vllm.front.followed_engine import FollowedEngine
    from hotdraft.serving.vllm.front.loop import worker_settings
    from hotdraft.serving.vllm.front.swapper import VllmSwapper
    from hotdraft.serving.vllm.journal import JournalFollower
    from hotdraft.serving.vllm.launch import EXTENSION

    options: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 16, "enforce_eager": True, **scenario.options}
    if scenario.speculate:
        told: dict[str, Any] = {"method": "draft_model", "model": scenario.draft, "num_speculative_tokens": 3}
        told["draft_tensor_parallel_size"] = options.get("tensor_parallel_size", 1)
        options |= {"speculative_config": told, "worker_extension_cls": EXTENSION}
    llm = LLM(scenario.target, seed=0, **options)
    folder = Path(scenario.run_dir) / "journal"
    engine = FollowedEngine(JournalFollower(folder), engines=["engine0"], k=3, num_slots=16, max_model_len=256)
    swapper = VllmSwapper(engine, lambda method, *args: llm.collective_rpc(method, args=args))
    if scenario.speculate:
        config = HotdraftConfig(
            target=scenario.target,
            draft=scenario.draft,
            run_dir=Path(scenario.run_dir),
            recorder={"shard_requests": 8, "flush_seconds": 0.5},
        )
        known = scenario.fingerprint or fingerprint(scenario.draft)
        settings = worker_settings(config, folder, Path(scenario.draft), known)
        llm.collective_rpc("hotdraft_attach", args=(settings,))
        engine.start()
        while len(engine.workers) < options.get("tensor_parallel_size", 1):
            time.sleep(0.05)
    came = [_act(act, llm, swapper) for act in scenario.acts]
    if scenario.speculate:
        llm.collective_rpc("hotdraft_status")  # before the next call the engine says what has finished
        llm.collective_rpc("hotdraft_close")
        time.sleep(0.5)
        engine.stop()
    return [*came, {"workers": list(engine.workers.values()), "failures": dict(engine.failures)}]


def _act(act: dict[str, Any], llm: Any, swapper: Any) -> Any:
    from vllm import SamplingParams

    from hotdraft.serving.vllm.worker.requests import CLIENT

    if "generate" in act:
        prompts = [{"prompt_token_ids": ids} for ids in act["prompts"]]
        sampling = SamplingParams(**act["generate"], extra_args={CLIENT: ""})
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        return {"tokens": [[list(one.token_ids) for one in output.outputs] for output in outputs]}
    try:
        event = swapper.swap(
            swapper.stage(act["swap"], None if act.get("folder") is None else Path(act["folder"])), "promotion"
        )
    except Exception as error:  # noqa: BLE001 -- told to the test
        return {"error": f"{type(error).__name__}: {error}", "live": swapper.live_version}
    return {"version": event.version, "seconds": event.stall_seconds, "live": swapper.live_version}


if __name__ == "__main__":
    told = Path(sys.argv[1])
    told.with_suffix(".came").write_text(json.dumps(run(Scenario(**json.loads(told.read_text())))))
