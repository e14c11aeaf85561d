"""What a round takes at least, by what it launches and by what it reads."""

from dataclasses import dataclass

from hotdraft.gpu_check.checks.launches import Forward


@dataclass(frozen=True)
class Device:
    launch_seconds: float
    bytes_per_second: float


@dataclass(frozen=True)
class Size:
    """A model, as far as the time of its forwards depends on it."""

    layers: int
    step_bytes: int
    """Of the weights that a forward reads."""


def forward_seconds(forward: Forward, size: Size, device: Device, *, graph: bool) -> float:
    """The host launches while the device computes: the longer of the two counts. A graph is one launch."""
    launches = 1 if graph else forward.of(size.layers)
    return max(launches * device.launch_seconds, size.step_bytes / device.bytes_per_second)


def round_seconds(
    forward: Forward, target: Size, draft: Size, k: int, beside: int, device: Device, *, graph: bool
) -> float:
    """k draft steps, a forward of the target, whose few tokens cost as much as one, and `beside` launches more."""
    draft_step = forward_seconds(forward, draft, device, graph=graph)
    target_forward = forward_seconds(forward, target, device, graph=graph)
    return k * draft_step + target_forward + beside * device.launch_seconds
