"""What stays in memory is bounded by its bytes, whatever the number of things."""

import numpy as np

from hotdraft.training.batches.byte_cache import ByteCache


def of_size(size: int) -> np.ndarray:
    return np.zeros(size, np.uint8)


def kept(cache: ByteCache[str, np.ndarray], keys: str) -> str:
    return "".join(key for key in keys if cache.get(key) is not None)


def test_those_asked_for_last_stay_as_far_as_there_is_room() -> None:
    cache = ByteCache[str, np.ndarray](max_bytes=100)
    sizes = {"a": of_size(40), "b": of_size(40)}
    for key, sample in sizes.items():
        cache.keep(key, sample)
    cache.get("a")
    cache.keep("c", of_size(60))
    assert kept(cache, "abc") == "ac"
    cache.keep("c", sizes["b"])
    assert kept(cache, "abc") == "ac", "one in place of another takes its room"
    cache.keep("d", sizes["b"])
    assert kept(cache, "abcd") == "cd"
    cache.clear()
    assert kept(cache, "abcd") == ""
    cache.keep("a", sizes["a"])
    assert kept(cache, "a") == "a"


def test_one_that_never_has_room_displaces_the_others_and_is_not_kept() -> None:
    cache = ByteCache[str, np.ndarray](max_bytes=100)
    cache.keep("a", of_size(101))
    assert kept(cache, "a") == ""


def test_what_is_dropped_leaves_its_room() -> None:
    cache = ByteCache[str, np.ndarray](max_bytes=100)
    for key in "ab":
        cache.keep(key, of_size(50))
    cache.drop("a")
    cache.drop("a")
    cache.keep("c", of_size(50))
    assert [key for key, _ in cache.items()] == ["b", "c"]
