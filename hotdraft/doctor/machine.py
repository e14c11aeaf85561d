"""The machine: processors, memory, and whether torch can use the GPU that is there."""

from collections.abc import Iterator
from pathlib import Path

import torch

from hotdraft.doctor.finding import Finding, ok, problem, warning
from hotdraft.pipeline.config.settings import HotdraftConfig
from hotdraft.pipeline.models.loading import choose_device, choose_dtype
from hotdraft.pipeline.models.names import ModelError
from hotdraft.pipeline.system.resources import ram_bytes, usable_cores
from hotdraft.serving.native.bindings import NativeError, NotCompiledError, find_instructions

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def examine_machine(config: HotdraftConfig | None) -> Iterator[Finding]:
    cores = usable_cores()
    best = str(choose_dtype("auto", torch.device("cpu"))).removeprefix("torch.")
    yield ok("processor", f"{cores} cores, {ram_bytes() / 1e9:.1f} GB of memory, dtype auto is {best}")
    yield _native("auto" if config is None else config.engine.instructions)
    yield from _gpus()
    if config is not None:
        yield from _configured(config, cores)
        on_cpu = config.device == "cpu" or (config.device == "auto" and not torch.cuda.is_available())
        if on_cpu and config.dtype == "bfloat16" != best:
            yield warning(
                "dtype",
                "this processor emulates bfloat16: several tokens at once take longer than in float32",
                "set `dtype: auto` in the configuration",
            )


def _native(instructions: str) -> Finding:
    if instructions == "none":
        return ok("native library", "left out by `engine.instructions: none`, so torch computes")
    try:
        return ok("native library", f"computes with {find_instructions(instructions)}")
    except NativeError as error:
        if instructions != "auto":
            return problem("native library", str(error), "set `engine.instructions: auto` in the configuration")
        told = f"torch computes instead, slower: {error}"
        if not isinstance(error, NotCompiledError):
            return ok("native library", told)
        mend = "with g++ 10 or newer (Debian: `apt-get install g++`) run `pip install --no-deps -e .` in a checkout"
        return warning("native library", told, mend)


def _gpus() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        if NVIDIA_DRIVER.is_file():
            build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU alone"
            yield warning(
                "GPU",
                f"there is an NVIDIA driver, and torch {torch.__version__}, built for {build}, sees no GPU",
                "install a build of torch that fits the driver: `pip install --force-reinstall torch`, "
                "or `make TORCH=torch test` in a checkout",
            )
        else:
            yield ok("GPU", "none, so the CPU decodes and trains")
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        bf16 = "bfloat16" if torch.cuda.is_bf16_supported() else "no bfloat16"
        name = torch.cuda.get_device_properties(index).name
        says = f"{name}, {free / 1e9:.1f} GB free of {total / 1e9:.1f} GB, CUDA {torch.version.cuda}, {bf16}"
        yield ok(f"GPU {index}", says)


def _configured(config: HotdraftConfig, cores: int) -> Iterator[Finding]:
    for key, device in (("device", config.device), ("distill.device", config.distill.device)):
        if device is None:
            continue
        try:
            choose_device(device)
        except ModelError as error:
            yield problem(key, str(error), f"set `{key}: auto` in the configuration, or cpu")
    for key, threads in (("engine.threads", config.engine.threads), ("distill.threads", config.distill.threads)):
        if threads is not None and threads > cores:
            yield warning(
                key,
                f"{threads} threads share {cores} cores, which is slower than one thread a core",
                f"set `{key}: {cores}` in the configuration, or less",
            )
