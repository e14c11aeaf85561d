"""A draft of one layer that reads what the target's own layers made of each token (EAGLE-3: Li et al., 2025).

The target has read all of a context but its last token when it is to be drafted after. A layer that is given this
knows more than one that begins from the tokens. A token goes in with the state of the token before it: the target's
where it has read that, and where it has not, the state that the draft itself came to there.
"""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaPreTrainedModel,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

MODEL_TYPE = "hotdraft_hidden_state"
EPSILON = 1e-6
"""Of `at_unit_size`."""

ReadTarget = Callable[[Tensor, Sequence[int]], Tensor]
"""The target's states [1, T, S] for token ids [1, T] of requests of so many tokens each, `at_unit_size`."""


class HiddenStateConfig(LlamaConfig):
    model_type = MODEL_TYPE
    target_layers: list[int] | None = None
    """Behind how many of the target's layers each of its states is taken, ascending."""

    @classmethod
    def beside(
        cls, target: PreTrainedConfig, target_layers: Sequence[int], feed_forward: int | None = None
    ) -> Self:
        """Of a draft for `target`, with its widths."""
        text = target.get_text_config()
        heads = text.num_attention_heads
        rope = getattr(text, "rope_parameters", None)
        kept: dict[str, Any] = {name: getattr(text, name) for name in KEPT if hasattr(text, name)}
        if _is_plain(rope):
            kept["rope_parameters"] = rope
        return cls(
            target_layers=list(target_layers),
            num_hidden_layers=1,
            tie_word_embeddings=bool(text.tie_word_embeddings),
            num_attention_heads=heads,
            num_key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
            intermediate_size=feed_forward or getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
            rms_norm_eps=getattr(text, "rms_norm_eps", 1e-5),
            **kept,
        )

    @property
    def state_size(self) -> int:
        """S: all of a token's states together."""
        return len(self.target_layers or ()) * self.hidden_size


KEPT = (
    "vocab_size",
    "hidden_size",
    "max_position_embeddings",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "dtype",
)
"""Of the target's configuration."""


class HiddenStateDraft(LlamaForCausalLM):
    """Embedding and head are the target's."""

    config_class = HiddenStateConfig

    def __init__(self, config: HiddenStateConfig) -> None:
        LlamaPreTrainedModel.__init__(self, config)
        self.model = HiddenStateModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def read_from(self, target: ReadTarget) -> None:
        """Where states come from that a forward is not given."""
        self.model.read_target = target


class HiddenStateModel(LlamaPreTrainedModel):
    config_class = HiddenStateConfig

    def __init__(self, config: HiddenStateConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.fc = nn.Linear(config.state_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([_Layer(config)])
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = LlamaRotaryEmbedding(config)
        self.read_target: ReadTarget | None = None
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        states: Tensor | None = None,
        steps: int = 1,
        **_: object,
    ) -> BaseModelOutputWithPast:
        """Normalised states [steps, T, H] of token ids [1, T]; `attention_mask` are the lengths of requests side by
        side, as `training.scoring.packed_attention` has them.

        Of the first step each token is given the target's state of the one before it, from `states` [1, T, S] or
        read; of each further one the draft's own from the step before, as if so many more had been drafted.
        """
        lengths = [input_ids.shape[1]] if attention_mask is None else attention_mask[0, 0, -1].tolist()
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        if states is None:
            assert self.read_target is not None, "a draft that reads a target's states, and has no target"
            states = self.read_target(input_ids, lengths)
        inside = (position_ids > 0)[..., None]
        tokens = self.embed_tokens(input_ids)
        before = self.fc(_behind(states.to(self.fc.weight.dtype), 1) * inside)
        layer: _Layer = self.layers[0]  # type: ignore[assignment]
        rotation = self.rotary_emb(tokens, position_ids)
        made, steps_keys = [], []
        for _step in range(steps):
            query, key, value = layer.heads(tokens, before, rotation)
            steps_keys.append((key, value))
            state = layer.rest(before, _attend(query, steps_keys, lengths, layer.self_attn.scaling))
            made.append(self.norm(state))
            before = _behind(state, 1) * inside
        return BaseModelOutputWithPast(last_hidden_state=torch.cat(made))


class _Layer(nn.Module):
    def __init__(self, config: HiddenStateConfig) -> None:
        super().__init__()
        hidden, queries = config.hidden_size, config.num_attention_heads
        keys, size = config.num_key_value_heads or queries, config.head_dim or hidden // queries
        self.self_attn = LlamaAttention(config, 0)
        for name, heads in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            self.self_attn.set_submodule(name, nn.Linear(2 * hidden, heads * size, bias=False))
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        """Of the token's embedding."""
        self.hidden_norm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        """Of the state before it."""
        self.post_attention_layernorm = LlamaRMSNorm(hidden, config.rms_norm_eps)

    def heads(
        self, tokens: Tensor, before: Tensor, rotation: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [1, heads, T, D]."""
        both = torch.cat([self.input_layernorm(tokens), self.hidden_norm(before)], -1)
        of, size = self.self_attn, self.self_attn.head_dim
        query, key, value = (
            project(both).unflatten(-1, (-1, size)).transpose(1, 2) for project in (of.q_proj, of.k_proj, of.v_proj)
        )
        return *apply_rotary_pos_emb(query, key, *rotation), value

    def rest(self, before: Tensor, attended: Tensor) -> Tensor:
        state = before + self.self_attn.o_proj(attended)
        return state + self.mlp(self.post_attention_layernorm(state))


def _attend(query: Tensor, keys: Sequence[tuple[Tensor, Tensor]], lengths: Sequence[int], scaling: float) -> Tensor:
    """[1, T, G*H*D] of query [1, G*H, T, D], request by request; of step s, which `keys` end with.

    A token of step s sees the first step's keys up to s places before it, and of the places between those of the
    step that was as far from here: these a round would have drafted.
    """
    step, parts = len(keys) - 1, []
    by_request = [[part.split(list(lengths), 2) for part in pair] for pair in keys]
    for number, q in enumerate(query.split(list(lengths), 2)):
        own = [(pair[0][number], pair[1][number]) for pair in by_request]
        (key, value), length = own[0], q.shape[2]
        if step == 0:
            parts.append(
                F.scaled_dot_product_attention(q, key, value, is_causal=True, scale=scaling, enable_gqa=True)
            )
            continue
        groups = key.shape[1]
        q = q.unflatten(1, (groups, -1))  # [1, H, G, T, D]
        places = torch.arange(length, device=q.device)
        near = places[:, None] - places < step
        scores = (q @ key[:, :, None].mT).masked_fill(near, -torch.inf)
        later = [_behind(own[step - back][0], back)[:, :, None] for back in range(step)]
        own_scores = [(q * moved).sum(-1, keepdim=True) for moved in later]
        probs = (torch.cat([scores, *own_scores], -1).float() * scaling).softmax(-1).to(value.dtype)
        attended = probs[..., :length] @ value[:, :, None]
        for back in range(step):
            attended = attended + probs[..., length + back, None] * _behind(own[step - back][1], back)[:, :, None]
        parts.append(attended.flatten(1, 2))
    return torch.cat(parts, 2).transpose(1, 2).flatten(2)


def are_layers(found: object, count: int) -> bool:
    """Whether `found` are numbers of layers that a draft may read states behind, of a target with `count`."""
    if not isinstance(found, list) or not found or not all(type(one) is int for one in found):
        return False
    return found == sorted(set(found)) and 1 <= found[0] <= found[-1] <= count


def at_unit_size(states: Tensor) -> Tensor:
    """states [..., H] by their root mean square, in bfloat16: layers differ in it by orders of magnitude."""
    return F.rms_norm(states.float(), states.shape[-1:], eps=EPSILON).bfloat16()


def made_up_states(tokens: int, size: int) -> Tensor:
    """float32 [tokens, size] of unit size, the same everywhere: for probes, where no target is."""
    places = torch.arange(tokens)[:, None] + torch.arange(size) / 7
    return (2.0**0.5) * places.cos()


def probe_inputs(draft: PreTrainedModel, tokens: int) -> dict[str, Tensor]:
    """What `draft` is given on a probe beside so many token ids."""
    if not isinstance(draft, HiddenStateDraft):
        return {}
    return {"states": made_up_states(tokens, draft.config.state_size)[None].to(draft.device)}


def _behind(x: Tensor, places: int) -> Tensor:
    """Of x [..., T, D] at each place what stood so many places before it, and zeros at the first."""
    return F.pad(x[..., : x.shape[-2] - places, :], (0, 0, places, 0)) if places else x


def _is_plain(rope: Any) -> bool:
    return isinstance(rope, dict) and rope.get("rope_type") == "default" and "partial_rotary_factor" not in rope


AutoConfig.register(MODEL_TYPE, HiddenStateConfig)
AutoModelForCausalLM.register(HiddenStateConfig, HiddenStateDraft)
