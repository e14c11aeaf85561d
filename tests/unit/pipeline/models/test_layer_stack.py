import inspect

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from hotdraft.pipeline.models.layer_stack import with_cache
from tests.models import tiny_llama, tiny_neox


class OfOlderTransformers(nn.Module):
    def forward(self, input_ids: Tensor, past_key_values: object = None, use_cache: bool = False) -> Tensor:
        return input_ids


class OfNewerTransformers(nn.Module):
    def forward(self, input_ids: Tensor, cache: object = None, use_cache: bool = False) -> Tensor:
        return input_ids


def test_a_cache_is_handed_over_by_the_name_that_a_model_has_for_it() -> None:
    cache = DynamicCache()
    assert with_cache(OfOlderTransformers(), cache) == {"past_key_values": cache, "use_cache": True}
    assert with_cache(OfNewerTransformers(), cache) == {"cache": cache, "use_cache": True}


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("model", [tiny_llama(layers=2, seed=0), tiny_neox(2, seed=0)], ids=["llama", "neox"])
def test_no_model_warns_of_the_name_and_its_cache_goes_on(model: PreTrainedModel) -> None:
    for asked in (model, model.base_model):
        cache = DynamicCache()
        for seen in (3, 6):
            given = with_cache(asked, cache)
            asked(input_ids=torch.ones(1, 3, dtype=torch.int64), **given)
            assert cache.get_seq_length() == seen
        assert set(given) <= set(inspect.signature(asked.forward).parameters)
