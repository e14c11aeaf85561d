"""Llama-like decoders by the native library: one call a forward, at the speed that memory allows."""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from hotdraft.serving.models.attention import groups_of
from hotdraft.serving.models.hidden_states.target_states import TargetStates
from hotdraft.serving.models.llama_like import is_llama_like, rotations
from hotdraft.serving.models.runner import Computation, Window
from hotdraft.serving.models.trimmed_head import TrimmedHead
from hotdraft.serving.native.bindings import (
    OWN_STATES,
    DraftingStruct,
    Format,
    LinearStruct,
    ModelStruct,
    ThreadPool,
    native_library,
)
from hotdraft.serving.native.linear import NativeLinear
from hotdraft.serving.native.memory import WeightMemory

WIDTH = 64
"""Norms are rounded up to it."""


def why_not_native(model: PreTrainedModel) -> str | None:
    """What keeps a model from being run by `NativeRunner` on any processor; None if nothing does."""
    config = model.config
    if model.device.type != "cpu":
        return "the model is on a GPU"
    if not is_llama_like(model):
        return f"a {config.model_type} of this form is not known natively"
    if model.dtype not in (torch.float32, torch.bfloat16):
        return f"{model.dtype} is not known natively"
    if config.hidden_act != "silu":
        return f"{config.hidden_act} is not known natively"
    return None


class GreedyDraft(NamedTuple):
    """Tokens that a model follows B rows with."""

    token_ids: np.ndarray
    """int64 [B, K]."""
    num_drafted: np.ndarray
    """int32 [B]: how many of a row's tokens count."""
    confidences: np.ndarray
    """uint8 [B, K]: the model's own chance of each, in parts of `CONFIDENCES`."""
    sound: np.ndarray
    """uint8 [B]: whether all logits were numbers."""
    others: np.ndarray
    """int64 [B, K, R]: the likeliest beside each."""
    chances: np.ndarray
    """float32 [B, K, 1 + R]: the model's own of each token, and of the others; 0 where nothing was drafted."""


class NativeRunner:
    """Runs a Llama-like model over static slots. Its weights are taken over.

    A token's logits do not depend on what is computed beside it: not on k, on other rows, nor on the threads.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: NativeLinear | TrimmedHead,
        num_slots: int,
        max_length: int,
        *,
        format: Format,
        memory: WeightMemory,
        pool: ThreadPool,
        keeps_weights: bool = False,
        states: TargetStates | None = None,
    ) -> None:
        """`states` are what a model reads that is given some."""
        self.head: nn.Module = head
        self._library = native_library()
        self._pool = pool
        self.computation = Computation("native", pool.instructions, format.name.lower())
        linear = head.linear if isinstance(head, TrimmedHead) else head
        assert isinstance(linear, NativeLinear), "a native runner has a native head"
        self.num_outputs = linear.struct.outputs
        """Of the head: with a trimmed one, the tokens that it covers."""
        layers = [
            stacked
            for index, layer in enumerate(model.model.layers)
            for stacked in _linears(f"model.layers.{index}", layer, format, memory, keeps_weights)
        ]
        read: list[NativeLinear] = []
        if states is not None:
            read.append(NativeLinear.of({"model.fc": model.model.fc}, format, memory, keeps=keeps_weights))
        self.linears = [*layers, *read]
        tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        reads_head = tied and linear is head and linear.struct.format in (Format.FLOAT32, Format.BFLOAT16)
        self._held = _held(model, max_length, with_embedding=not reads_head)
        in_order = [*layers, linear, *read]
        self._linears = (POINTER(LinearStruct) * len(in_order))(*(ctypes.pointer(one.struct) for one in in_order))
        self._model = _described(model, max_length, self._held, self._linears)
        size = self._library.hd_slot_bytes(byref(self._model))
        self._keys_values = torch.zeros(num_slots, size, dtype=torch.uint8)
        self._model.keys_values = self._keys_values.data_ptr()
        self._states = states
        if states is not None:
            self._own = torch.zeros(num_slots, OWN_STATES, model.config.hidden_size)
            self._model.own = self._own.data_ptr()
            self._model.reads = ctypes.pointer(states.struct())

    def record_states(self, states: TargetStates) -> None:
        self._states = states
        self._model.records = ctypes.pointer(states.struct())

    @property
    def stalls(self) -> int:
        return self._pool.stalls

    def forward(self, window: Window, token_ids: Tensor, keep: int) -> Tensor:
        rows, count = token_ids.shape
        token_ids, positions = token_ids.contiguous(), window.positions.expand(rows, -1).contiguous()
        keys = None if window.keys is None else window.keys.contiguous()
        counts = window.counts
        logits = torch.empty(rows, keep, self.num_outputs)
        told = (counts, token_ids, positions, keys)
        addresses = [None if tensor is None else tensor.data_ptr() for tensor in told]
        self._compute(window.rows.start, rows, count, addresses, keep, logits.data_ptr())
        if counts is not None:
            for row, computed in enumerate(counts.tolist()):
                if computed < count:
                    logits[row, max(computed - (count - keep), 0) :] = 0
        return logits

    def read(
        self, token_ids: np.ndarray, positions: np.ndarray, counts: np.ndarray, keys: np.ndarray | None
    ) -> np.ndarray:
        """Logits [B, Q, V] of all tokens [B, Q] of the first B rows: `forward` without tensors, which take time.

        Behind the first int32 counts [B] of a row they are anything; all other arrays are int64 and contiguous.
        """
        rows, count = token_ids.shape
        logits = np.empty((rows, count, self.num_outputs), np.float32)
        told = (counts, token_ids, positions, keys)
        addresses = [None if array is None else array.ctypes.data for array in told]
        self._compute(0, rows, count, addresses, count, logits.ctypes.data)
        return logits

    def _compute(
        self, first_slot: int, rows: int, count: int, told: Sequence[int | None], keep: int, logits: int
    ) -> None:
        """`told` are the addresses of counts, tokens, positions and keys."""
        model, pool = byref(self._model), self._pool.handle
        self._library.hd_forward(model, pool, first_slot, rows, count, *told, keep, logits)

    def draft_greedily(
        self,
        positions: np.ndarray,
        token_ids: np.ndarray,
        reads: Sequence[int],
        ks: Sequence[int],
        rates: np.ndarray,
        floors: Sequence[float],
        ranks: int,
    ) -> GreedyDraft:
        """Of each row ks [B] tokens, the likeliest after those before; int64 token_ids [B, Q] come before them.

        They are at int64 positions [B, Q] of the first B slots, and reads [B] of a row, its last ones, are not read
        yet. A row ends early once the chance that all its
        tokens are accepted falls below floors [B]; rates [CONFIDENCES] are those of a token by the model's chance.
        Beside each token the `ranks` next likeliest are told.
        """
        (rows, count), most = token_ids.shape, max(ks)
        draft = GreedyDraft(
            token_ids=np.zeros((rows, most), np.int64),
            num_drafted=np.array(ks, np.int32),
            confidences=np.zeros((rows, most), np.uint8),
            sound=np.zeros(rows, np.uint8),
            others=np.zeros((rows, most, ranks), np.int64),
            chances=np.zeros((rows, most, 1 + ranks), np.float32),
        )
        token_ids, positions = np.ascontiguousarray(token_ids), np.ascontiguousarray(positions)
        rates, least = np.ascontiguousarray(rates, np.float32), np.array(floors, np.float32)
        read = np.array(reads, np.int32)
        drafting = DraftingStruct(
            most=most,
            ranks=ranks,
            ks=draft.num_drafted.ctypes.data,
            reads=read.ctypes.data,
            rates=rates.ctypes.data,
            floors=least.ctypes.data,
            vocabulary=self.head.token_ids.data_ptr() if isinstance(self.head, TrimmedHead) else None,
            drafted=draft.token_ids.ctypes.data,
            confidences=draft.confidences.ctypes.data,
            sound=draft.sound.ctypes.data,
            others=draft.others.ctypes.data,
            chances=draft.chances.ctypes.data,
        )
        self._library.hd_draft(
            byref(self._model),
            self._pool.handle,
            rows,
            count,
            token_ids.ctypes.data,
            positions.ctypes.data,
            byref(drafting),
        )
        return draft

    def read_speed(self, size: int = 768 << 20, repeats: int = 5) -> float:
        """Bytes a second of reading `size` bytes once with the runner's threads, the best of `repeats`."""
        memory = WeightMemory().take(size).fill_(1)
        return max(self._pool.read_speed(memory.data_ptr(), size) for _ in range(repeats))

    def move(self, source: int, destination: int, length: int) -> None:
        self._library.hd_move(byref(self._model), source, destination, length)

    def move_keys(self, sources: Tensor, destinations: Tensor) -> None:
        for slot, (source, destination) in enumerate(zip(sources.tolist(), destinations.tolist(), strict=True)):
            if source != destination:
                self._library.hd_move_key(byref(self._model), slot, source, destination)

    def clear(self, slot: int) -> None:
        self._library.hd_clear(byref(self._model), slot)


def _linears(name: str, layer: Any, format: Format, memory: WeightMemory, keeps: bool) -> list[NativeLinear]:
    def stacked(*parts: str, interleaved: bool = False) -> NativeLinear:
        layers = {f"{name}.{part}": layer.get_submodule(part) for part in parts}
        return NativeLinear.of(layers, format, memory, interleaved=interleaved, keeps=keeps)

    return [
        stacked("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        stacked("self_attn.o_proj"),
        stacked("mlp.gate_proj", "mlp.up_proj", interleaved=True),
        stacked("mlp.down_proj"),
    ]


def _held(model: PreTrainedModel, max_length: int, *, with_embedding: bool) -> dict[str, Tensor]:
    """What the library reads beside linear layers, by its field."""
    layers = model.model.layers
    norms = [norm for layer in layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
    weights = torch.stack([norm.weight.detach().float() for norm in [*norms, model.model.norm]])
    cos, sin = (part.contiguous() for part in rotations(model, torch.float32, max_length))
    held = {
        "norms": F.pad(weights, (0, -weights.shape[1] % WIDTH)).contiguous(),
        "cos": cos,
        "sin": sin,
    }
    if with_embedding:
        held["embedding"] = model.model.embed_tokens.weight.detach().contiguous()
    if hasattr(layers[0], "hidden_norm"):
        norm = layers[0].hidden_norm.weight.detach().float()
        held["state_norm"] = F.pad(norm, (0, -len(norm) % WIDTH)).contiguous()
    if hasattr(layers[0].self_attn, "q_norm"):
        by_head = [norm for layer in layers for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm)]
        held["head_norms"] = torch.stack([norm.weight.detach().float() for norm in by_head]).contiguous()
    return held


def _described(model: PreTrainedModel, max_length: int, held: dict[str, Tensor], linears: Any) -> ModelStruct:
    config, attention = model.config, model.model.layers[0].self_attn
    norm = getattr(attention, "q_norm", model.model.norm)
    return ModelStruct(
        layers=len(model.model.layers),
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_attention_heads // groups_of(config),
        head_dim=attention.head_dim,
        max_length=max_length,
        half=model.dtype == torch.bfloat16,
        epsilon=model.model.norm.variance_epsilon,
        head_epsilon=norm.variance_epsilon,
        scaling=attention.scaling,
        linears=linears,
        **{field: tensor.data_ptr() for field, tensor in held.items()},
    )
