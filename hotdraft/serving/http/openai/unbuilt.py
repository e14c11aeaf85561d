"""What is known to change an answer and is not built: it is refused by name, and not passed over."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError

_HARMLESS: Mapping[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "ebnf": (),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_json_object": (False,),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "json_schema": (),
    "length_penalty": (1, 1.0),
    "logits_processors": ([],),
    "logprob_token_ids": ([],),
    "modalities": (["text"],),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "regex": (),
    "repetition_detection": (),
    "response_format": ({"type": "text"},),
    "return_prompt_text": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": (),
    "suffix": ("",),
    "thinking_token_budget": (-1,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncate_prompt_tokens": (),
    "typical_p": (1, 1.0),
    "use_beam_search": (False,),
    "watermarking": (False,),
    "web_search_options": (),
}
"""Fields of a request that no model of it has, with the values that ask for nothing (null always does)."""
_OF_A_MESSAGE = ("audio", "function_call", "refusal", "tool_calls")


def refuse_unbuilt(extra: Mapping[str, Any]) -> None:
    """Raises `PydanticCustomError` for the first of a request's other fields that asks for what is not built."""
    for name, value in extra.items():
        harmless = _HARMLESS.get(name)
        if harmless is None or value is None:
            continue
        if not any(type(value) is type(allowed) and value == allowed for allowed in harmless):
            raise PydanticCustomError("unsupported", "{param} is not supported by this server", {"param": name})


def refuse_unbuilt_part(message: Any) -> Any:
    """`message` as a client sent it. Raises `PydanticCustomError` if it holds what no template is told."""
    for name in _OF_A_MESSAGE if isinstance(message, dict) else ():
        if message.get(name):
            says = "{name} of a message is not supported by this server"
            raise PydanticCustomError("unsupported", says, {"name": name})
    return message
