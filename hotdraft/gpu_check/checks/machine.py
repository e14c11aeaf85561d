"""The step `machine`: figures of the device that explain all others."""

import importlib.util
import platform
import statistics
import time
from importlib.metadata import version

import torch

from hotdraft.gpu_check.plan import CheckPlan, Found
from hotdraft.pipeline.system.resources import cpu_name
from hotdraft.pipeline.system.transfer import received, synchronize
from hotdraft.serving.benchmark.figures.bandwidth import read_bandwidth

PACKAGES = ("bitsandbytes", "datasets", "fastapi", "lightning", "mlflow", "peft", "pydantic_settings", "vllm")
LAUNCHES = 2000


def check(plan: CheckPlan) -> Found:
    found = Found(
        {
            "device": torch.cuda.get_device_name(plan.place) if plan.on_gpu else cpu_name(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "transformers")},
            "missing packages": [name for name in PACKAGES if importlib.util.find_spec(name) is None],
            "reads, GB/s": read_bandwidth(plan.place) / 1e9,
            "a launch, µs": 1e6 * launch_seconds(plan.place),
            "a wait for the device, µs": 1e6 * wait_seconds(plan.place),
        }
    )
    if plan.on_gpu:
        about = torch.cuda.get_device_properties(plan.place)
        found.figures |= {"cuda": torch.version.cuda, "memory, GB": about.total_memory / 1e9}
    return found


def launch_seconds(device: torch.device) -> float:
    """Of an operation that computes next to nothing: what the host takes, or the device if that takes longer."""
    value = torch.zeros(1, device=device)
    value.add_(1)
    synchronize(device)
    began = time.perf_counter()
    for _ in range(LAUNCHES):
        value.add_(1)
    synchronize(device)
    return (time.perf_counter() - began) / LAUNCHES


def wait_seconds(device: torch.device) -> float:
    """From the launch of such an operation until the host has its result: what ends each round."""
    value = torch.zeros(8, dtype=torch.int32, device=device)
    times = []
    for _ in range(50):
        began = time.perf_counter()
        received(value.add_(1))
        times.append(time.perf_counter() - began)
    return statistics.median(times)
