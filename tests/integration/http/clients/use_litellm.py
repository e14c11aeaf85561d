"""What litellm makes of the server at the URL given: run by the interpreter of its own environment."""

import sys

import litellm

url, model = sys.argv[1:]
server = {"api_base": f"{url}/v1", "api_key": "none", "temperature": 0}
hello = [{"role": "user", "content": "alpha"}]

reply = litellm.completion(
    model=f"openai/{model}",
    messages=hello,
    max_tokens=8,
    n=2,
    logprobs=True,
    top_logprobs=2,
    stop=["zzz"],
    **server,
)
assert len(reply.choices) == 2
assert reply.usage.completion_tokens == sum(len(choice.logprobs.content) for choice in reply.choices)
assert len(reply.choices[0].logprobs.content[0].top_logprobs) == 2

options = {"stream": True, "stream_options": {"include_usage": True}}
chunks = list(litellm.completion(model=f"openai/{model}", messages=hello, max_tokens=8, **options, **server))
[usage] = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
assert usage.completion_tokens == 8

text = litellm.text_completion(
    model=f"text-completion-openai/{model}", prompt="alpha", max_tokens=4, logprobs=1, echo=True, **server
)
assert text.choices[0].text.startswith("alpha")
assert len(text.choices[0].logprobs.tokens) == len("alpha") + 4

for error, request in (
    (litellm.NotFoundError, {"model": "openai/none", "messages": hello}),
    (
        litellm.ContextWindowExceededError,
        {"model": f"openai/{model}", "messages": [{**hello[0], "content": "a" * 900}]},
    ),
    (litellm.BadRequestError, {"model": f"openai/{model}", "messages": hello, "temperature": 9}),
):
    try:
        litellm.completion(**{**server, **request})
    except error:
        continue
    raise AssertionError(f"no {error.__name__}")
print("litellm is content")
