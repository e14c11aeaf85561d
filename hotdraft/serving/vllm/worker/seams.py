"""Putting something before a method that is not ours, after a look at whether it is the one we know."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any


class SeamError(RuntimeError):
    """vLLM is not built here as it was where hotdraft was tried; the message says what differs."""


def check_parameters(method: Callable[..., Any], names: Sequence[str], *, may_have_more: bool = False) -> list[str]:
    """The names of `method`'s parameters. Raises `SeamError` unless they are `names`, or begin with them."""
    found = [name for name in inspect.signature(method).parameters if name != "self"]
    if found != list(names) if not may_have_more else found[: len(names)] != list(names):
        place = getattr(method, "__qualname__", str(method))
        raise SeamError(f"{place} takes ({', '.join(found)}) and not ({', '.join(names)})")
    return found


def put_before(owner: Any, name: str, first: Callable[..., Any]) -> Callable[[], None]:
    """Have `first` called with what `owner.name` is called with, before it; the result takes that back."""
    original = getattr(owner, name)

    def both(*args: Any, **named: Any) -> Any:
        first(*args, **named)
        return original(*args, **named)

    return put_in_place(owner, name, both)


def put_in_place(owner: Any, name: str, method: Callable[..., Any]) -> Callable[[], None]:
    """Have `owner.name` be `method`; the result takes that back."""
    setattr(owner, name, method)
    return lambda: delattr(owner, name)  # the class has it
