"""The step `sharing`: tokens a second of a full engine, alone and while a job trains on the same device."""

import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial

from hotdraft.gpu_check.checks.configured import conversations, recorded, served, write_config
from hotdraft.gpu_check.plan import CheckError, CheckPlan, Found, Pair
from hotdraft.llm import LLM
from hotdraft.pipeline.processes.command_line import hotdraft_command
from hotdraft.serving.messages.request import SamplingParams

ALONE_SECONDS, ALONE_SECONDS_ON_GPU = 2.0, 8.0
ANSWER = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)


def check(plan: CheckPlan) -> Found:
    if not recorded(plan).is_dir():
        raise CheckError("there is nothing to learn from: see the step `training`")
    pair = Pair.read(plan)
    config = write_config(plan, pair, "sharing")
    seconds = ALONE_SECONDS_ON_GPU if plan.on_gpu else ALONE_SECONDS
    with served(plan, pair) as llm, _Load(llm, max(plan.rows)) as load:
        load.tokens_per_second(partial(time.sleep, seconds))  # first rounds record graphs
        before = load.tokens_per_second(partial(time.sleep, seconds))
        command = hotdraft_command("distill", "--config", str(config))
        job = subprocess.Popen(command, cwd=plan.folder, stdin=subprocess.DEVNULL)
        beside = load.tokens_per_second(job.wait)
        after = load.tokens_per_second(partial(time.sleep, seconds))
    alone = (before + after) / 2
    figures = {"alone, tokens/s": alone, "beside a job, tokens/s": beside, "share that is left": beside / alone}
    return Found(figures, [] if job.returncode == 0 else [f"the job ended with code {job.returncode}"])


class _Load:
    """As many requests as there are slots, each asked again when it is answered, until the end of the block."""

    def __init__(self, llm: LLM, clients: int) -> None:
        self._llm = llm
        self._ending = threading.Event()
        self._tokens = 0
        self._counting = threading.Lock()
        self._clients = [threading.Thread(target=self._ask, args=(row,)) for row in range(clients)]

    def __enter__(self) -> "_Load":
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for client in self._clients:
            client.join()

    def tokens_per_second(self, wait: Callable[[], object]) -> float:
        began, tokens = time.perf_counter(), self._tokens
        wait()
        return (self._tokens - tokens) / (time.perf_counter() - began)

    def _ask(self, row: int) -> None:
        seed = row
        while not self._ending.is_set():
            [conversation] = conversations(1, seed)
            [answer] = self._llm.chat(conversation, ANSWER)
            with self._counting:
                self._tokens += len(answer.outputs[0].token_ids)
            seed += len(self._clients)
