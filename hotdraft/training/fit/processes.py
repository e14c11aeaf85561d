"""Training in several processes of one machine, each on a device of its own."""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import torch
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import multiprocessing
from torch.multiprocessing.spawn import ProcessException

from hotdraft.pipeline.config.learning import PredistillConfig
from hotdraft.pipeline.processes.leash import die_with_parent
from hotdraft.pipeline.system.ports import free_port

T = TypeVar("T")

# As in the command, whose logging its processes do not have: they import this before what they are to do.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


class DeviceError(ValueError):
    """Devices or a strategy that this machine or the method does not allow."""


class TrainingProcessError(ChildProcessError):
    """One of the training processes failed, and the others were ended."""


def check_devices(settings: PredistillConfig, device: torch.device, compute: torch.dtype) -> None:
    """Raise `DeviceError` if training on `settings.devices` of `device`'s kind cannot begin."""
    present = torch.cuda.device_count()
    if device.type == "cuda" and settings.devices > present:
        raise DeviceError(f"predistill.devices is {settings.devices}, and torch sees {present} CUDA devices")
    if settings.devices == 1 or settings.strategy != "fsdp":
        return
    if settings.method == "qlora":
        raise DeviceError("predistill.strategy fsdp cannot share out NF4 weights: use ddp, or method lora")
    if compute == torch.float16:
        raise DeviceError("predistill.strategy fsdp does not scale float16 gradients: use bfloat16, float32 or ddp")


def strategy_of(settings: PredistillConfig) -> Strategy | Literal["auto"]:
    """How the processes share the work; for each its own object."""
    if settings.devices == 1:
        return "auto"
    if settings.strategy == "fsdp":
        return ModelParallelStrategy(
            data_parallel_size=settings.devices, tensor_parallel_size=1, save_distributed_checkpoint=False
        )
    return DDPStrategy(gradient_as_bucket_view=True)


def in_processes(work: Callable[[torch.device], T], count: int, device_type: str) -> T:
    """What `work` gives in the first of `count` new processes, which Lightning takes for its own.

    On CPUs they share out the threads of this one. `work` and what it gives are pickled. Raises
    `TrainingProcessError` if one fails. They die with this one, and hear no Ctrl-C of their own.
    """
    threads = max(1, torch.get_num_threads() // count)
    results = multiprocessing.get_context("spawn").SimpleQueue()
    args, started = (work, device_type, free_port(), threads, results), None
    try:
        with _no_ctrl_c():
            started = multiprocessing.spawn(_process, args=args, nprocs=count, join=False)
        while not started.join():
            pass
    except ProcessException as error:
        raise TrainingProcessError(str(error).strip().splitlines()[-1]) from error
    finally:
        for process in started.processes if started else ():
            process.kill()
            process.join()
    return results.get()


@contextmanager
def _no_ctrl_c() -> Iterator[None]:
    """For good in processes that are started meanwhile, which would tell of it in tracebacks; later in this one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _process(
    rank: int, work: Callable[[torch.device], T], device_type: str, port: int, threads: int, results: Any
) -> None:
    die_with_parent(os.getppid())
    os.environ.update(LOCAL_RANK=str(rank), NODE_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if device_type == "cpu":
        torch.set_num_threads(threads)
    result = work(torch.device("cuda", rank) if device_type == "cuda" else torch.device(device_type))
    if rank == 0:
        results.put(result)
