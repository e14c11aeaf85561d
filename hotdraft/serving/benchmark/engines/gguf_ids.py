"""A GGUF vocabulary for who hands token ids over and takes token ids back."""

import gguf


def ids_as_tokens(writer: gguf.GGUFWriter, size: int) -> None:
    """A vocabulary of the ids themselves: the text of token 216 is `216 `.

    Token ids are handed over and taken back. That needs no tokenizer, loses nothing to incomplete UTF-8 in a
    stream, and leaves llama.cpp without an end-of-text token to stop at.
    """
    writer.add_vocab_size(size)
    writer.add_tokenizer_model("bert")  # of llama.cpp's kinds, one without an end-of-text token of its own
    writer.add_token_list([f"{token_id} " for token_id in range(size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * size)
