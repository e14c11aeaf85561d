"""A function of tensors whose recurring calls are graphs: to draw or to verify is hundreds of small operations."""

import logging
import weakref
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from hotdraft.serving.graphs.graphs import Captured, Graphs
from hotdraft.serving.graphs.recurring import RECURS, GraphCounts, Recurring

logger = logging.getLogger(__name__)

MOST_BYTES = 1 << 30
"""Of arguments that graphs of a function hold; further kinds of calls are computed without."""

Result = TypeVar("Result")


@dataclass
class _Graph:
    given: list[Tensor]
    """Memory that arguments are copied into."""
    last: list[weakref.ref[Tensor]]
    """What was copied last."""
    captured: Captured
    form: Any
    """A result, whose tensors are replaced by those of each call."""


class GraphedFunction(Generic[Result]):
    """Calls are told apart by shapes of tensors, and by all else, in nested dataclasses and tuples of arguments.

    What the function is given it must not change, and no one else either: a tensor that was given to the last call
    is not copied again. It must return tensors in dataclasses or tuples, and nothing else may come of it.
    """

    def __init__(self, function: Callable[..., Result], graphs: Graphs) -> None:
        self._function = function
        self._graphs: Recurring[Hashable, _Graph] = Recurring(graphs)
        self._bytes = 0

    @property
    def counts(self) -> GraphCounts:
        return self._graphs.counts

    def record(self, *arguments: Any) -> None:
        """Ahead of the first call of this kind."""
        self._find(arguments, [], recurs=1)

    def __call__(self, *arguments: Any) -> Result:
        tensors: list[Tensor] = []
        graph = self._find(arguments, tensors)
        if graph is None:
            return self._function(*arguments)
        for at, (held, tensor) in enumerate(zip(graph.given, tensors, strict=True)):
            if graph.last[at]() is not tensor:
                held.copy_(tensor)
                graph.last[at] = weakref.ref(tensor)
        graph.captured.replay()
        return with_tensors(graph.form, (result.clone() for result in graph.captured.results))

    def _find(self, arguments: tuple[Any, ...], tensors: list[Tensor], recurs: int = RECURS) -> _Graph | None:
        """The graph of such a call, whose tensors are put into `tensors`."""
        return self._graphs.find(take_apart(arguments, tensors), lambda: self._recorded(arguments, tensors), recurs)

    def _recorded(self, arguments: tuple[Any, ...], tensors: list[Tensor]) -> _Graph | None:
        size = sum(tensor.nbytes for tensor in tensors)
        name = getattr(self._function, "__name__", "a function")
        name = f"{name} of {[tuple(tensor.shape) for tensor in tensors]}"
        if self._bytes + size > MOST_BYTES:
            logger.warning("%s is computed without a graph, as its arguments take too much memory", name)
            return None
        given = [tensor.clone(memory_format=torch.contiguous_format) for tensor in tensors]

        def compute() -> Result:
            return self._function(*with_tensors(arguments, iter(given)))

        result = compute()
        expected = tensors_of(result)
        captured = self._graphs.record(
            name,
            lambda: tensors_of(compute()),
            given,
            lambda results: float(torch.stack([*map(_distance, results, expected)]).max()),
        )
        if captured is None:
            return None
        self._bytes += size
        form = with_tensors(result, (tensor.to("meta") for tensor in expected))
        return _Graph(given, [weakref.ref(tensor) for tensor in tensors], captured, form)


def take_apart(value: Any, tensors: list[Tensor]) -> Hashable:
    """What is left of it without the values of its tensors, which are put into `tensors`."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return value.shape, value.dtype
    parts = _parts(value)
    return tuple(take_apart(part, tensors) for part in parts) if parts else repr(value)


def tensors_of(value: Any) -> list[Tensor]:
    """In their order."""
    tensors: list[Tensor] = []
    take_apart(value, tensors)
    return tensors


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """The same with other tensors in the places of its own."""
    if isinstance(value, Tensor):
        return next(tensors)
    parts = [with_tensors(part, tensors) for part in _parts(value)]
    if type(value) is tuple:
        return tuple(parts)
    return type(value)(*parts) if parts else value


def _parts(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return list(value)
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    return []


def _distance(result: Tensor, expected: Tensor) -> Tensor:
    """The largest between two elements; NaN where only one of them is."""
    same = (result == expected) | (result.isnan() & expected.isnan())
    return torch.where(same, 0.0, (result.double() - expected.double()).abs()).max()
