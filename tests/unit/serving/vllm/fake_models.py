"""A model made of layers as vLLM's are: fused, sharded over ranks, and after loading perhaps only a function."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

HEADS, SIZE, VOCAB = 4, 8, 32
HIDDEN = HEADS * SIZE
FUSED = {"q_proj": ("qkv_proj", 0), "k_proj": ("qkv_proj", 1), "v_proj": ("qkv_proj", 2)}


class UnquantizedLinearMethod:
    """`packed` keeps weights as vLLM's build for CPUs does: in a handler, or in a closure."""

    def __init__(self, packed: str | None) -> None:
        self.packed = packed

    def create_weights(self, layer: Any, **told: Any) -> None:
        rows, columns = sum(told["output_partition_sizes"]), told["input_size_per_partition"]
        layer.weight = nn.Parameter(torch.empty(rows, columns, dtype=told["params_dtype"]), requires_grad=False)
        layer.weight.weight_loader = told["weight_loader"]

    def process_weights_after_loading(self, layer: Any) -> None:
        weight = layer.weight.data
        if self.packed == "handler":
            handler = Handler(weight.clone())
            layer.cpu_linear = lambda x: x @ handler.weight().T
        elif self.packed == "tensor":
            kept = weight.clone()
            layer.cpu_linear = lambda x: x @ kept.T
        else:
            return
        layer.weight = nn.Parameter(torch.empty(0), requires_grad=False)


class Handler:
    """oneDNN's, known by an address in a tensor."""

    made: list[Tensor] = []  # noqa: RUF012 -- memory

    def __init__(self, weight: Tensor) -> None:
        self.made.append(weight)
        self.handler_tensor = torch.tensor(len(self.made) - 1)

    def weight(self) -> Tensor:
        return self.made[int(self.handler_tensor)]


class Linear(nn.Module):
    """Its `parts` of `rows` each are shared out over `ranks`."""

    skip_bias_add = False

    def __init__(self, parts: int, columns: int, rows: int, rank: int, ranks: int, packed: str | None) -> None:
        super().__init__()
        self.rank = rank
        self.input_size = self.input_size_per_partition = columns
        self.output_size = parts * rows
        self.output_partition_sizes = [rows // ranks] * parts
        self.params_dtype = torch.float32
        self.quant_method = UnquantizedLinearMethod(packed)
        self.quant_method.create_weights(
            self,
            input_size_per_partition=columns,
            output_partition_sizes=self.output_partition_sizes,
            params_dtype=torch.float32,
            weight_loader=self.weight_loader_v2,
        )
        self.weight.data.normal_()

    def weight_loader_v2(self, parameter: nn.Parameter, loaded: Tensor, part: int) -> None:
        size = self.output_partition_sizes[part]
        shard = loaded[size * self.rank : size * (self.rank + 1)]
        parameter.data[size * part : size * (part + 1)] = shard

    def forward(self, x: Tensor) -> Tensor:
        return self.cpu_linear(x) if self.quant_method.packed else x @ self.weight.T


class Attention(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.num_heads = self.num_kv_heads = heads
        self.head_size = SIZE
        self.impl = SimpleNamespace(scale=SIZE**-0.5)
        self.kv_cache = torch.zeros(1)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        raise AssertionError("vLLM's attention wants metadata of a step")


class Model(nn.Module):
    """One attention layer and a projection, of whose heads a rank has its share."""

    do_not_compile = False

    def __init__(self, *, packed: str | None = None, rank: int = 0, ranks: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.qkv_proj = Linear(3, HIDDEN, HIDDEN, rank, ranks, packed)
        self.o_proj = Linear(1, HIDDEN // ranks, HIDDEN, 0, 1, packed)
        self.attn = Attention(HEADS // ranks)
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False)
        for layer in (self.qkv_proj, self.o_proj):
            layer.quant_method.process_weights_after_loading(layer)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        for name, weight in weights:
            layer, part = FUSED.get(name.split(".")[-2], ("o_proj", 0))
            parameter = getattr(self, layer).weight
            parameter.weight_loader(parameter, weight, part)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        assert self.do_not_compile
        x = self.embed(input_ids)
        query, key, value = self.qkv_proj(x).chunk(3, -1)
        return self.o_proj(self.attn(query, key, value))

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)


def some_weights(seed: int) -> dict[str, Tensor]:
    """Of all linear layers, by names as in a draft's file."""
    generator = torch.Generator().manual_seed(seed)
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    return {f"layers.0.{name}.weight": torch.randn(HIDDEN, HIDDEN, generator=generator) for name in names}


def expected_logits(model: Model, weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """What the layers give with these weights, by plain torch."""
    x = model.embed(ids)
    query, key, value = (
        (x @ weights[f"layers.0.{name}.weight"].T).unflatten(-1, (HEADS, SIZE)).transpose(0, 1)
        for name in ("q_proj", "k_proj", "v_proj")
    )
    mask = torch.full((len(ids), len(ids)), -torch.inf).triu(1)
    mixed = ((query @ key.transpose(-1, -2)) * SIZE**-0.5 + mask).softmax(-1) @ value
    return model.lm_head(mixed.transpose(0, 1).flatten(1) @ weights["layers.0.o_proj.weight"].T)
