"""Where the time of a round goes in a whole engine under load: the device, and what the host does beside it.

    hotdraft models inflate smollm2 --to 6b --out runs/smollm2-6b
    python -m tests.benchmarks.serving.bench_round_parts --target runs/smollm2-6b --rows 1 8 32 --json parts.json

As many requests as there are rows are answered at once, each followed by the next, for some seconds. What waits
for the device is `received`; parts within others are told apart from them by name alone.
"""

import argparse
import json
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.traffic.generators import BUILTIN
from hotdraft.serving.decoding import decoder
from hotdraft.serving.decoding.decoder import SpeculativeDecoder
from hotdraft.serving.engine.engine import Engine
from hotdraft.serving.engine.k_choice import KChoice
from hotdraft.serving.engine.load import build_engine
from hotdraft.serving.engine.output_thread import OutputThread
from hotdraft.serving.engine.scheduler import Scheduler
from hotdraft.serving.engine.steps import Steps
from hotdraft.serving.messages.prompt_encoder import encode_chat
from hotdraft.serving.messages.request import GenerationRequest, OutputDelta, SamplingParams

KINDS = ("arithmetic", "text_to_sql", "code")
PROMPTS = 64
"""Of each kind."""
PARTS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (Steps, ("step", "tell")),
    (Scheduler, ("read_prompts", "plan", "_guess", "learn", "advance")),
    (KChoice, ("choose",)),
    (SpeculativeDecoder, ("round", "propose", "_judge")),
    (decoder, ("received",)),
    (OutputThread, ("_tell_round",)),
)


class Timers:
    """Seconds by name of what was called since `clear`."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)

    def watch(self, owner: Any, name: str) -> None:
        called = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return called(*args, **kwargs)
            finally:
                self.seconds[name] += time.perf_counter() - began
                self.calls[name] += 1

        setattr(owner, name, timed)

    def clear(self) -> None:
        self.seconds.clear()
        self.calls.clear()


class Load:
    """Requests one after another, `rows` at once, until the end of the block."""

    def __init__(self, engine: Engine, prompts: list[tuple[int, ...]], rows: int, max_tokens: int) -> None:
        self.tokens = 0
        self._engine, self._prompts = engine, prompts
        self._params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self._free, self._rows = threading.Semaphore(rows), rows
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _ask(self) -> None:
        asked = 0
        while self._free.acquire() and not self._ending.is_set():
            prompt = self._prompts[asked % len(self._prompts)]
            self._engine.submit(GenerationRequest(str(asked), prompt, self._params), self._on_delta)
            asked += 1
        for _ in range(self._rows - 1):
            self._free.acquire()

    def _on_delta(self, delta: OutputDelta) -> None:
        self.tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self._free.release()


def measure(engine: Engine, timers: Timers, load: Load, seconds: float) -> dict[str, Any]:
    time.sleep(seconds)  # graphs of what is new are recorded meanwhile
    began, tokens = time.perf_counter(), load.tokens
    timers.clear()
    time.sleep(seconds)
    took, rounds = time.perf_counter() - began, max(timers.calls["round"], 1)
    return {
        "tokens/s": (load.tokens - tokens) / took,
        "rounds/s": rounds / took,
        "graphs": engine.graphs._asdict(),
        "ms a round": {name: 1000 * spent / rounds for name, spent in dict(timers.seconds).items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--draft", default="smollm2-draft")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--k", nargs="+", default=["0", "4", "auto"])
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each, once to warm up and once measured")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    timers, found = Timers(), []
    for owner, names in PARTS:
        for name in names:
            timers.watch(owner, name)
    with tempfile.TemporaryDirectory() as folder:
        keys = {"num_slots": max(options.rows), "max_model_len": 768, "max_k": 4, "reuse_prefixes": False}
        told = {"device": options.device, "run_dir": Path(folder), "engine": keys}
        engine = build_engine(HotdraftConfig(target=options.target, draft=options.draft, **told), None)
        prompts = [prompt.messages for kind in KINDS for prompt in BUILTIN[kind](PROMPTS, 3)]
        token_ids = [tuple(encode_chat(engine.tokenizer, messages)) for messages in prompts]
        engine.start()
        for rows in options.rows:
            for k in options.k:
                engine.k = k if k == "auto" else int(k)
                with Load(engine, token_ids, rows, options.max_tokens) as load:
                    row = {"rows": rows, "k": k, **measure(engine, timers, load, options.seconds)}
                found.append(row)
                parts = ", ".join(f"{name} {spent:.2f}" for name, spent in row["ms a round"].items())
                print(f"{rows} at once, k {k}: {row['tokens/s']:.0f} tokens/s; ms a round: {parts}")
        engine.stop()
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
