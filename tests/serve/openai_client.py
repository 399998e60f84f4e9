#!/usr/bin/env python3
"""The `openai` package, unmodified, against a server: openai_client.py BASE_URL (http://.../v1).

An oracle for what clients expect of the API; no part of `make test`, which needs no Python.
Needs: pip install openai. The server serves the demo model.
"""
import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
QUESTION = [{"role": "user", "content": "What is 12 + 7?"}]
ANSWER = "12 + 7 = 19."
failures = 0


def check(what, expected, found):
    global failures
    if expected != found:
        failures += 1
        print(f"FAILED {what}\n  expected: {expected!r}\n  found:    {found!r}")
    else:
        print(f"ok {what}")


def refused(what, parameter, call):
    try:
        call()
        check(what, "a refusal", "none")
    except openai.BadRequestError as e:
        check(what, (400, parameter), (e.status_code, e.param))


chat = client.chat.completions.create
complete = client.completions.create

check("models", ["demo"], [m.id for m in client.models.list()])
r = chat(model="demo", messages=QUESTION)
check("chat", ANSWER, r.choices[0].message.content)
check("finish_reason", "stop", r.choices[0].finish_reason)
check("usage", (17, 11, 28),
      (r.usage.prompt_tokens, r.usage.completion_tokens, r.usage.total_tokens))
events = list(chat(model="demo", messages=QUESTION, stream=True,
                   stream_options={"include_usage": True}))
check("stream", ANSWER, "".join(e.choices[0].delta.content or "" for e in events if e.choices))
check("stream: role", "assistant", events[0].choices[0].delta.role)
check("stream: usage", 28, events[-1].usage.total_tokens)
parts = [{"role": "user", "content": [{"type": "text", "text": "What is 12 + 7?"}]}]
check("text parts", ANSWER, chat(model="demo", messages=parts).choices[0].message.content)
r = chat(model="demo", messages=QUESTION, logprobs=True, top_logprobs=2, max_completion_tokens=4)
check("logprobs", (4, 2), (len(r.choices[0].logprobs.content),
                           len(r.choices[0].logprobs.content[0].top_logprobs)))
check("max_completion_tokens", "length", r.choices[0].finish_reason)
check("stop", "12 + 7 ", chat(model="demo", messages=QUESTION, stop="=").choices[0].message.content)
r = chat(model="demo", messages=QUESTION, n=3, temperature=1.5, seed=1)
again = chat(model="demo", messages=QUESTION, n=3, temperature=1.5, seed=1)
check("n", 3, len(r.choices))
check("seed", [c.message.content for c in r.choices], [c.message.content for c in again.choices])
for name, value in [("temperature", 0.5), ("top_p", 0.9), ("presence_penalty", 0.5),
                    ("frequency_penalty", 0.5), ("logit_bias", {"5": -100}), ("user", "u"),
                    ("parallel_tool_calls", True), ("tool_choice", "auto"),
                    ("response_format", {"type": "text"})]:
    chat(model="demo", messages=QUESTION, max_tokens=2, **{name: value})
    check(name, True, True)
for name, value in [("top_k", 5), ("min_p", 0.1), ("repetition_penalty", 1.2), ("min_tokens", 2),
                    ("ignore_eos", True), ("stop_token_ids", [7]), ("cache_salt", "s"),
                    ("priority", 0), ("request_id", "r"), ("return_token_ids", True)]:
    chat(model="demo", messages=QUESTION, max_tokens=2, extra_body={name: value})
    check(name, True, True)
for name, value in [("temperature", -1), ("top_p", 2), ("n", 0), ("top_logprobs", 3),
                    ("response_format", {"type": "xml"}), ("tool_choice", "required")]:
    refused(f"{name} refused", name, lambda: chat(model="demo", messages=QUESTION, **{name: value}))
schema = {"name": "sum", "strict": True, "schema": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 12, "maximum": 12},
                                     "ok": {"type": "boolean"}},
    "required": ["a", "ok"], "additionalProperties": False}}
r = chat(model="demo", messages=QUESTION, max_tokens=200,
         response_format={"type": "json_schema", "json_schema": schema})
check("response_format", (12, True, "stop"),
      (json.loads(r.choices[0].message.content)["a"],
       isinstance(json.loads(r.choices[0].message.content)["ok"], bool),
       r.choices[0].finish_reason))
for name, value, wanted in [("regex", "1[2]", "12"), ("choice", ["yes"], "yes"),
                            ("grammar", 'root ::= "a" "b"', "ab"), ("json", {"const": 1}, "1")]:
    r = chat(model="demo", messages=QUESTION, extra_body={"structured_outputs": {name: value}})
    check(f"structured_outputs.{name}", wanted, r.choices[0].message.content)
refused("unknown", "temprature",
        lambda: chat(model="demo", messages=QUESTION, extra_body={"temprature": 1}))
try:
    chat(model="other", messages=QUESTION)
    check("another model", "a refusal", "none")
except openai.NotFoundError as e:
    check("another model", "model_not_found", e.code)

r = complete(model="demo", prompt=["Once", "Then"], max_tokens=3, n=2, logprobs=2)
check("completions", [0, 1, 2, 3], [c.index for c in r.choices])
check("completions: logprobs", 3, len(r.choices[0].logprobs.token_logprobs))
tokens = complete(model="demo", prompt=[46, 77], max_tokens=3).choices[0].text
check("tokens", tokens, complete(model="demo", prompt=[[46, 77]], max_tokens=3).choices[0].text)
check("echo", True, complete(model="demo", prompt="Once", max_tokens=2,
                             echo=True).choices[0].text.startswith("Once"))
streamed = complete(model="demo", prompt="Once", max_tokens=5, stream=True)
check("completions: stream", complete(model="demo", prompt="Once", max_tokens=5).choices[0].text,
      "".join(e.choices[0].text for e in streamed))

r = client.responses.create(model="demo", input="What is 12 + 7?")
check("responses", ANSWER, r.output_text)
check("responses: usage", 28, r.usage.total_tokens)
with client.responses.stream(model="demo", input="What is 12 + 7?") as stream:
    text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    final = stream.get_final_response()
check("responses: stream", ANSWER, text)
check("responses: final", ANSWER, final.output_text)

print(f"{failures} failed")
sys.exit(failures != 0)
