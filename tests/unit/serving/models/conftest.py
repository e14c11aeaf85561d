import pytest
import torch
from torch import Tensor

from tests.unit.serving.models.runner_kinds import LENGTHS, MAX_LENGTH


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(64, (len(LENGTHS), MAX_LENGTH), generator=torch.Generator().manual_seed(1))
