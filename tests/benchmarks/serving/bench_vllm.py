"""What recording costs inside vLLM: tokens/s with the recorder attached and without, block by block in turn.

    python -m tests.benchmarks.serving.bench_vllm --config configs/demo.yaml --blocks 12 --out vllm-recorder.json

One vLLM in one process, in an environment of its own that has both (`make venv-vllm`). Each block serves the same
prompts, arithmetic and text-to-SQL, eight at once; blocks with and without the recorder take turns and change their
order. The ratio is of neighbours, its median with quartiles.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from hotdraft.pipeline.config.settings import load_config
from hotdraft.pipeline.models.names import local_folder
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.traffic.generators import arithmetic, text_to_sql
from hotdraft.serving.engine.recorder import Recorder
from hotdraft.serving.vllm.journal import Journal
from hotdraft.serving.vllm.launch import plain_folder
from hotdraft.serving.vllm.versions import installed
from hotdraft.serving.vllm.worker import runner_v1
from hotdraft.serving.vllm.worker.recording import Recording
from hotdraft.serving.vllm.worker.requests import CLIENT

TOKENS, REQUESTS = 64, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--out", type=Path)
    told = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the runner is to be at hand
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = load_config(told.config, {"run_dir": folder})
        speculative = {"method": "draft_model", "model": str(plain_folder(config)), "num_speculative_tokens": 2}
        llm = LLM(
            str(local_folder(config.target)),
            dtype="bfloat16",
            max_model_len=512,
            max_num_seqs=8,
            enable_prefix_caching=False,
            speculative_config=speculative,
        )
        runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        prompts = [one.messages for one in [*arithmetic(REQUESTS // 2, 0), *text_to_sql(REQUESTS // 2, 0)]]
        sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, extra_args={CLIENT: ""})
        recorder = Recorder(ReplayBuffer(str(folder / "replay")), config.recorder)
        recording = Recording(Journal(folder / "journal", "worker"), recorder, config.recorder.top_k)

        def block(*, record: bool) -> float:
            detach = runner_v1.attach(runner, recording) if record else lambda: None
            started = time.perf_counter()
            llm.chat(prompts, sampling, use_tqdm=False)
            seconds = time.perf_counter() - started
            detach()
            return REQUESTS * TOKENS / seconds

        block(record=True)
        block(record=False)
        rates: dict[bool, list[float]] = {True: [], False: []}
        for number in range(told.blocks):
            for record in (number % 2 == 0, number % 2 == 1):
                rates[record].append(block(record=record))
                print(f"{number} {'with' if record else 'without'} {rates[record][-1]:.1f} tokens/s", flush=True)
        recorder.close()
        assert recording.problem is None
    ratios = [on / off for on, off in zip(rates[True], rates[False], strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    result = {
        "vllm": str(installed()),
        "recorded": recorder.recorded,
        "tokens_per_second": {"with": statistics.median(rates[True]), "without": statistics.median(rates[False])},
        "ratio": {"median": median, "quartiles": [low, high]},
        "blocks": told.blocks,
    }
    print(json.dumps(result, indent=2))
    if told.out:
        told.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
