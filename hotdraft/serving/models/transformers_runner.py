"""Any causal LM with full attention or sliding windows, run by transformers over a static cache of ragged slots."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, StaticLayer

from hotdraft.pipeline.models.layer_stack import hook_states, with_cache
from hotdraft.serving.models.attention import attention_windows, causal_mask, groups_of
from hotdraft.serving.models.hidden_states.target_states import TargetStates
from hotdraft.serving.models.linear import ServedLinear
from hotdraft.serving.models.runner import Computation, Window


class TransformersRunner:
    """Runs a model by its own layers. Its plain linear layers and its head are replaced."""

    stalls = 0

    def __init__(
        self, model: PreTrainedModel, head: nn.Module, num_slots: int, max_length: int, *, why_not_native: str
    ) -> None:
        dtype = str(model.dtype).removeprefix("torch.")
        self.computation = Computation("transformers", "torch", dtype, why_not_native)
        config = model.config.get_text_config()
        output = model.get_output_embeddings()
        self.linears = []
        for name, module in list(model.named_modules()):
            if type(module) is nn.Linear and module is not output:  # others keep their own way to multiply
                self.linears.append(ServedLinear.of({name: module}))
                model.set_submodule(name, self.linears[-1])
        self.head = head
        model.set_output_embeddings(head)
        self._model = model
        self._groups = groups_of(config)
        self._windows = attention_windows(config)
        self._cache = _SlotCache(config.num_hidden_layers, num_slots, max_length)
        self._with_cache = with_cache(model, self._cache)
        self._window: Window | None = None

    def record_states(self, states: TargetStates) -> None:
        def record(behind: int, hidden: Tensor) -> None:
            assert self._window is not None, "layers run within a forward"
            states.record(self._window, behind, hidden)

        hook_states(self._model, record)

    def forward(self, window: Window, token_ids: Tensor, keep: int) -> Tensor:
        self._window = window
        self._cache.open(window)
        masks = {
            kind: causal_mask(
                window.positions, window.key_length, self._groups, self._model.dtype, seen, window.keys
            )
            for kind, seen in self._windows.items()
        }
        return self._model(
            input_ids=token_ids,
            # Models of one kind of layer know no other mask than a tensor.
            attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
            position_ids=window.positions,
            **self._with_cache,
            logits_to_keep=keep,
        ).logits

    def move(self, source: int, destination: int, length: int) -> None:
        self._cache.move(source, destination, length)

    def move_keys(self, sources: Tensor, destinations: Tensor) -> None:
        self._cache.move_keys(sources, destinations)

    def clear(self, slot: int) -> None:
        self._cache.clear(slot)


class _RaggedLayer(StaticLayer):
    """Keys and values [slots, heads, max_length, head_dim], written at per-row positions."""

    def __init__(self, num_slots: int, max_length: int) -> None:
        super().__init__(max_cache_len=max_length)
        self.num_slots = num_slots
        self.window: Window | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        states = (key_states, value_states)  # of which each may have a width of its own
        super().lazy_initialization(*(some.new_empty(self.num_slots, *some.shape[1:]) for some in states))

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Scatter new states [B, heads, Q, D] into the window; return all keys and values of its rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        window = self.window
        assert window is not None, "a window is opened before every forward"
        assert self.keys is not None
        assert self.values is not None
        keys, values = self.keys[window.rows], self.values[window.rows]
        row = torch.arange(keys.shape[0], device=keys.device)[:, None]
        keys[row, :, window.written] = key_states.transpose(1, 2)
        values[row, :, window.written] = value_states.transpose(1, 2)
        return keys[:, :, : window.key_length], values[:, :, : window.key_length]


class _SlotCache(Cache):
    """`num_slots` rows of up to `max_length` tokens for a model of `num_layers` layers."""

    def __init__(self, num_layers: int, num_slots: int, max_length: int) -> None:
        self.ragged = [_RaggedLayer(num_slots, max_length) for _ in range(num_layers)]
        super().__init__(layers=list(self.ragged))

    def open(self, window: Window) -> None:
        """Say what the next forward writes and reads."""
        for layer in self.ragged:
            layer.window = window

    def move(self, source: int, destination: int, length: int) -> None:
        for layer in self.ragged:
            if layer.keys is not None and layer.values is not None:
                layer.keys[destination, :, :length] = layer.keys[source, :, :length]
                layer.values[destination, :, :length] = layer.values[source, :, :length]

    def move_keys(self, sources: Tensor, destinations: Tensor) -> None:
        slots = torch.arange(len(sources), device=sources.device)
        for layer in self.ragged:
            for states in (layer.keys, layer.values):
                if states is not None:
                    states[slots, :, destinations] = states[slots, :, sources]

    def clear(self, slot: int) -> None:
        for layer in self.ragged:
            if layer.keys is not None and layer.values is not None:
                layer.keys[slot].zero_()
                layer.values[slot].zero_()
