from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from hotdraft.pipeline.models.draft_vocabulary import (
    VocabularyError,
    choose_vocabulary,
    count_answers,
    count_prompts,
    merge_rankings,
    rank_tokens,
    read_vocabulary,
    save_vocabulary,
)
from hotdraft.pipeline.replay.buffer import ReplayBuffer
from hotdraft.pipeline.replay.sample import ReplaySample


def sample(prompt_ids: list[int], output_ids: list[int], likeliest: list[int]) -> ReplaySample:
    length = len(output_ids)
    top_ids = np.stack([likeliest, np.full(length, 7)], axis=1)
    return ReplaySample(
        request_id="r", created_at=0.0, domain="d", temperature=0.7, prompt_ids=np.array(prompt_ids, np.int32),
        output_ids=np.array(output_ids, np.int32), target_top_ids=top_ids.astype(np.int32),
        target_top_logprobs=np.zeros((length, 2), np.float16), target_tail_logprob=np.zeros(length, np.float32),
        drafted_ids=np.zeros(length, np.int32), accepted=np.zeros(length, bool),
        draft_versions=np.zeros(length, np.int32),
    )  # fmt: skip


def test_what_was_said_and_what_was_likeliest_count(tmp_path):
    buffer = ReplayBuffer(str(tmp_path))
    buffer.append([sample([5, 6, 5], [1, 2, 2], [1, 3, 2]), sample([6], [9], [2])])
    # said: 1, 2, 2, 9; likeliest: 1, 3, 2, 2. The second likeliest (7) and ids beyond the draft's do not count.
    assert count_answers(buffer.load(), 8).tolist() == [0, 2, 4, 1, 0, 0, 0, 0]
    assert count_prompts(buffer.load(), 8).tolist() == [0, 0, 0, 0, 0, 2, 2, 0]
    assert count_answers(ReplayBuffer(str(tmp_path / "empty")).load(), 3).tolist() == [0, 0, 0]


def test_tokens_rank_by_count_then_by_id_and_the_unseen_not_at_all():
    assert rank_tokens(torch.tensor([2, 0, 5, 2, 0, 7, 2])).tolist() == [5, 2, 0, 3, 6]
    assert rank_tokens(torch.zeros(4, dtype=torch.int64)).tolist() == []


def test_an_id_stands_where_it_first_comes():
    assert merge_rankings([torch.tensor([4, 1]), None, torch.tensor([1, 0, 4, 3])]).tolist() == [4, 1, 0, 3]
    assert merge_rankings([None]).tolist() == []


@pytest.mark.parametrize(
    ("size", "chosen"),
    [
        (1, [9]),
        (3, [2, 5, 9]),  # the second ranking follows the first, which has two
        (6, [0, 1, 2, 3, 5, 9]),  # 9, 5, then 2 and 3, then the lowest left
        (10, list(range(10))),
        (99, list(range(10))),
    ],
)
def test_a_vocabulary_is_filled_in_order_of_precedence(size, chosen):
    ranked = [torch.tensor([9, 5]), torch.tensor([5, 2, 9, 3])]
    ids = choose_vocabulary(ranked, size, 10)
    assert ids.tolist() == chosen
    assert ids.dtype == torch.int64


def test_without_a_ranking_the_lowest_ids_are_chosen():
    assert choose_vocabulary([None, None], 3, 10).tolist() == [0, 1, 2]


def test_a_ranking_comes_back_in_its_order(tmp_path):
    assert read_vocabulary(tmp_path, 10) is None
    save_vocabulary(tmp_path, torch.tensor([9, 0, 4]))
    ranking = read_vocabulary(tmp_path, 10)
    assert ranking is not None
    assert ranking.tolist() == [9, 0, 4]
    assert ranking.dtype == torch.int64


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"token_ids": torch.tensor([1, 10])}, "from 1 to 10, the vocabulary has 10"),
        ({"token_ids": torch.tensor([-1, 3])}, "from -1 to 3"),
        ({"token_ids": torch.tensor([1, 2, 1])}, "1 ids stand there twice"),
        ({"token_ids": torch.tensor([[1, 2]])}, "2-D torch.int64, expected 1-D int32"),
        ({"token_ids": torch.tensor([1.0])}, "1-D torch.float32, expected 1-D int32"),
        ({"ids": torch.tensor([1])}, "expected one tensor 'token_ids'"),
    ],
)
def test_a_wrong_ranking_is_refused_with_its_fault(tmp_path: Path, tensors: dict[str, Tensor], message: str):
    save_file(tensors, tmp_path / "draft_vocabulary.safetensors")
    with pytest.raises(VocabularyError, match=message):
        read_vocabulary(tmp_path, 10)


def test_a_broken_file_is_refused(tmp_path):
    (tmp_path / "draft_vocabulary.safetensors").write_bytes(b"{nonsense")
    with pytest.raises(VocabularyError, match="not a readable safetensors"):
        read_vocabulary(tmp_path, 10)
