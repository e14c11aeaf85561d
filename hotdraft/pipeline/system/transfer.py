"""What crosses between the host and a device, and who waits for it.

A GPU computes what was launched while the host goes on. A copy from or to ordinary memory ends that: the host waits
until the device has done all that came before it. From and to pinned memory only what is read is waited for.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
Values = Sequence[int] | Sequence[float] | Sequence[Sequence[int]] | Sequence[Sequence[float]]


def sent(values: Values | np.ndarray, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`values` on `device`, without waiting for what it computes."""
    return moved(torch.tensor(values, dtype=dtype), device)


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on `device`, likewise."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)


def received(tensor: Tensor) -> np.ndarray:
    """`tensor` on the host, once the device has computed it and what was launched before it."""
    if tensor.device.type == "cpu":
        return tensor.numpy()
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    torch.accelerator.current_stream(tensor.device.index).synchronize()
    return host.numpy()


def synchronize(device: torch.device) -> None:
    """Wait until `device` has computed all that was launched: for those who measure. A CPU has done it."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def in_stream(stream: torch.cuda.Stream | None, work: Callable[[], T]) -> T:
    """The result of `work`, computed in `stream` of a GPU when it returns; other streams do not wait for that."""
    if stream is None:
        return work()
    with torch.cuda.stream(stream):
        result = work()
        stream.synchronize()
    return result
