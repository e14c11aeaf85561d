"""What a draft reads of a long context: its end alone, from position 0 on.

A small model makes less of what it was not trained for, and its part of a round would grow with the prompt. Keys
that another begin would make are not looked at, so that no attention sinks are needed (StreamingLLM, Xiao et al.,
2024, with keys made anew; TriForce, Sun et al., 2024, on drafts with a window).
"""

from dataclasses import replace

import numpy as np

from hotdraft.pipeline.replay.sample import ReplaySample


def first_read(length: int, window: int | None) -> int:
    """Of a prompt of so many tokens the first that is read: the last `window` are, of more than twice as many."""
    return length - int(lengths_read(np.asarray(length), window))


def most_held(length: int, window: int | None) -> int:
    """Tokens that are held at most of a context that grows to so many: then it is read anew from its end."""
    return length if window is None else min(length, 3 * window)


def lengths_read(lengths: np.ndarray, window: int | None) -> np.ndarray:
    """How much [R] is read of so many tokens [R]."""
    return lengths if window is None else np.where(lengths <= 2 * window, lengths, window)


def in_windows(sample: ReplaySample, window: int | None) -> list[ReplaySample]:
    """`sample` in the parts that its answer is drafted in, each behind what is read before it.

    Once `most_held` is reached, the last `window` tokens are what is read before the next part.
    """
    first = first_read(len(sample.prompt_ids), window)
    whole = sample if first == 0 else replace(sample, prompt_ids=sample.prompt_ids[first:])
    before, length = len(whole.prompt_ids), len(whole.output_ids)
    read = before + length - 1  # nothing is predicted after the last token
    if window is None or most_held(read, window) == read:
        return [whole]
    parts, context, start = [], np.concatenate([whole.prompt_ids, whole.output_ids]), 0
    while start < length:
        read = before if start == 0 else window
        end = start + 3 * window - read + 1
        parts.append(whole.part(slice(start, end), context[before + start - read : before + start]))
        start = end
    return parts
