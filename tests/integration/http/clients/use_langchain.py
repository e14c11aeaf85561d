"""What langchain-openai makes of the server at the URL given: run by the interpreter of its own environment."""

import sys

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI, OpenAI

url, model = sys.argv[1:]
server = {"model": model, "base_url": f"{url}/v1", "api_key": "none", "max_retries": 0, "temperature": 0}
chat = ChatOpenAI(**server, max_tokens=8, logprobs=True, stream_usage=True)

reply = chat.invoke([SystemMessage("be brief"), HumanMessage("alpha")])
assert reply.usage_metadata["output_tokens"] == 8
assert reply.response_metadata["finish_reason"] == "length"
assert len(reply.response_metadata["logprobs"]["content"]) == 8

parts = list(chat.stream("alpha"))
assert len(parts) > 2
whole = parts[0]
for part in parts[1:]:
    whole += part
assert whole.usage_metadata["output_tokens"] == 8

assert len(chat.batch(["alpha", "beta", "gamma"])) == 3
assert len(ChatOpenAI(**server, max_tokens=4, n=2).generate([[HumanMessage("alpha")]]).generations[0]) == 2
assert isinstance(OpenAI(**server, max_tokens=4).invoke("alpha"), str)
print("langchain is content")
