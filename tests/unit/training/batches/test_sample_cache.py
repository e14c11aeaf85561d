"""What stays in memory is bounded by its bytes, whatever the number of requests."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hotdraft.training.batches.sample_cache import SampleCache


@dataclass
class Sample:
    values: np.ndarray
    domain: str = "a"


def of_size(size: int) -> Any:
    return Sample(np.zeros(size, np.uint8))


def kept(cache: SampleCache[str], keys: str) -> str:
    return "".join(key for key in keys if cache.get(key) is not None)


def test_those_asked_for_last_stay_as_far_as_there_is_room() -> None:
    cache = SampleCache[str](max_bytes=100)
    sizes: dict[str, Any] = {"a": of_size(40), "b": of_size(40)}
    for key, sample in sizes.items():
        cache.keep(key, sample)
    cache.get("a")
    cache.keep("c", of_size(60))
    assert kept(cache, "abc") == "ac"
    cache.keep("c", sizes["b"])
    assert kept(cache, "abc") == "ac", "a sample in place of another takes its room"
    cache.keep("d", sizes["b"])
    assert kept(cache, "abcd") == "cd"
    cache.clear()
    assert kept(cache, "abcd") == ""
    cache.keep("a", sizes["a"])
    assert kept(cache, "a") == "a"


def test_one_that_never_has_room_displaces_the_others_and_is_not_kept() -> None:
    cache = SampleCache[str](max_bytes=100)
    cache.keep("a", of_size(101))
    assert kept(cache, "a") == ""
