#!/usr/bin/env python3
"""Every parameter of `megalith serve` by OpenAI's own Python client: conformance.py PROGRAM DEMO

Each parameter of each endpoint in the server's OpenAPI document has a test of what it does, or is
one of those that change nothing: then its neutral values must be taken and others be refused.
Beside that, every parameter is tried with values outside of its range and of another type, which
must be refused with its name, the value and the range. --table prints the table of README.md; else
that one must be the same. Needs `pip install openai`; ends with 77 where that is missing.
"""
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

try:
    import openai
except ImportError:
    print("skipped: the Python package openai is not installed (pip install openai)")
    sys.exit(77)

PROGRAM, DEMO = sys.argv[1:3]
SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
QUESTION = [{"role": "user", "content": "What is 12 + 7?"}]
ANSWER = "12 + 7 = 19."
TOOLS = [{"type": "function", "function": {"name": "f"}}]
# A template that knows tools, thoughts and a variable; the demo's own knows none.
TEMPLATE = """{%- for tool in tools or [] %}{{ tool | tojson }}
{% endfor %}{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if false %}<tool_call>{% endif %}{% if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking %}<think>
{% endif %}{% endif %}"""


class Server:
    """The program on a free port, and a client for it."""

    def __init__(self, model, *options):
        self.process = subprocess.Popen(
            [PROGRAM, "serve", model, "--port", "0", "--served-model-name", "demo", *options],
            stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            found = re.search(r" at (http\S+)$", line.strip())
            if found:
                break
        else:
            sys.exit("the server did not start")
        self.root = openai.OpenAI(base_url=found[1], api_key="none", max_retries=0)
        self.client = openai.OpenAI(base_url=found[1] + "/v1", api_key="none", max_retries=0)

    def stop(self):
        self.process.terminate()
        self.process.stderr.close()
        self.process.wait()

    def post(self, path, **body):
        return self.root.post(path, body=body, cast_to=object)

    # Parameters that the client's method does not know go into extra_body, as its users do it.
    def call(self, method, body):
        known = inspect.signature(method).parameters
        extra = {name: body.pop(name) for name in list(body) if name not in known}
        return method(**body, extra_body=extra)

    def chat(self, **body):
        return self.call(self.client.chat.completions.create,
                         {"model": "demo", "messages": QUESTION, **body})

    def complete(self, **body):
        return self.call(self.client.completions.create,
                         {"model": "demo", "prompt": "Once upon", "max_tokens": 6, **body})

    def respond(self, **body):
        return self.call(self.client.responses.create,
                         {"model": "demo", "input": "What is 12 + 7?", **body})


tests = {}  # (endpoint, parameter): function
failures = []


def test(endpoint, *parameters):
    def note(function):
        for name in parameters:
            for one in endpoint.split():
                tests[one, name] = function
        return function
    return note


def expect(expected, found):
    if expected != found:
        raise AssertionError(f"expected {expected!r}, found {found!r}")


def refusal(call):
    """The error of a call that must be refused."""
    try:
        call()
    except openai.BadRequestError as error:
        return error
    raise AssertionError("expected a refusal with status 400, found an answer")


# --- what is asked -------------------------------------------------------------------------------

ask = {"chat": lambda s, **b: s.chat(**b), "completions": lambda s, **b: s.complete(**b)}


def text_of(answer):
    choice = answer.choices[0]
    return choice.text if hasattr(choice, "text") else choice.message.content


@test("chat completions responses tokenize detokenize", "model")
def model(s, e):
    def call(**body):
        return s.post(PATHS[e], **{**LEAST[e], **body})
    expect("demo", call(model="demo").get("model", "demo"))  # the last two do not repeat it
    try:
        call(model="other")
    except openai.NotFoundError as error:
        return expect("model_not_found", error.code)
    raise AssertionError("another model was taken")


@test("chat", "messages")
def messages(s, e):
    expect(ANSWER, text_of(s.chat()))
    parts = [{"role": "user", "content": [{"type": "text", "text": "What is 12 + 7?"}]}]
    expect(ANSWER, text_of(s.chat(messages=parts)))
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    expect(True, "models of text only" in refusal(lambda: s.chat(messages=image)).message)


@test("completions", "prompt")
def prompt(s, e):
    ids = s.post("/tokenize", prompt="Once upon")["tokens"]
    texts = [c.text for c in s.complete(prompt=["Once upon", "Once upon"]).choices]
    texts += [c.text for c in s.complete(prompt=[ids, ids]).choices]
    texts += [s.complete(prompt=ids).choices[0].text, s.complete().choices[0].text]
    expect(1, len(set(texts)))


@test("responses", "input", "instructions")
def response_input(s, e):
    expect(ANSWER, s.respond().output_text)
    items = [{"role": "user", "content": [{"type": "input_text", "text": "What is 12 + 7?"}]}]
    expect(ANSWER, s.respond(input=items).output_text)
    longer = s.respond(instructions="Be brief.").usage.input_tokens
    expect(True, longer > s.respond().usage.input_tokens)


# --- how long ------------------------------------------------------------------------------------

@test("chat completions", "max_tokens")
def max_tokens(s, e):
    answer = ask[e](s, max_tokens=3)
    expect((3, "length"), (answer.usage.completion_tokens, answer.choices[0].finish_reason))


@test("chat", "max_completion_tokens")
def max_completion_tokens(s, e):
    expect(3, s.chat(max_completion_tokens=3).usage.completion_tokens)


@test("responses", "max_output_tokens")
def max_output_tokens(s, e):
    answer = s.respond(max_output_tokens=3)
    expect(("incomplete", 3), (answer.status, answer.usage.output_tokens))


@test("chat completions", "min_tokens", "ignore_eos")
def min_tokens(s, e):
    start = {"prompt": "<|im_start|>user\nWhat is 12 + 7?<|im_end|>\n<|im_start|>assistant\n"} \
        if e == "completions" else {}
    free = ask[e](s, max_tokens=40, **start).usage.completion_tokens
    expect(True, free < 20)
    expect(True, ask[e](s, max_tokens=40, min_tokens=20, **start).usage.completion_tokens >= 20)
    expect(40, ask[e](s, max_tokens=40, ignore_eos=True, **start).usage.completion_tokens)


@test("chat completions", "stop", "include_stop_str_in_output")
def stop(s, e):
    whole = text_of(ask[e](s))
    ends = whole.index(whole[4:6]) + 2
    kept = ask[e](s, stop=whole[4:6], include_stop_str_in_output=True)
    expect((whole[:ends], "stop"), (text_of(kept), kept.choices[0].finish_reason))
    expect(whole[:whole.index(whole[4:6])], text_of(ask[e](s, stop=whole[4:6])))
    expect(whole[:whole.index(whole[3:6])], text_of(ask[e](s, stop=["never", whole[3:6]])))


@test("chat completions", "stop_token_ids", "return_token_ids")
def stop_token_ids(s, e):
    ids = ask[e](s, return_token_ids=True).choices[0].token_ids
    answer = ask[e](s, stop_token_ids=[ids[2]], return_token_ids=True).choices[0]
    expect((ids[:ids.index(ids[2]) + 1], "stop"), (answer.token_ids, answer.finish_reason))


# --- how tokens are chosen -----------------------------------------------------------------------

def differs(s, e, **change):
    """A drawn answer is another one with the change, and that is always the same."""
    base = {"temperature": 3, "seed": 3, "max_tokens": 24, "ignore_eos": True}
    changed = text_of(ask[e](s, **{**base, **change}))
    expect(True, changed != text_of(ask[e](s, **base)))
    expect(changed, text_of(ask[e](s, **{**base, **change})))


@test("chat completions", "temperature", "top_p", "top_k", "min_p")
def cuts(s, e):
    greedy = text_of(ask[e](s, max_tokens=24, ignore_eos=True, temperature=0))
    for change in ({"temperature": 0}, {"top_p": 1e-6}, {"top_k": 1}, {"min_p": 1}):
        drawn = {"temperature": 3, "seed": 3, "max_tokens": 24, "ignore_eos": True, **change}
        expect(greedy, text_of(ask[e](s, **drawn)))
        differs(s, e, **change)
    expect(text_of(ask[e](s, temperature=1.5, seed=3)),
           text_of(ask[e](s, temperature=1.5, seed=3, top_k=-1, top_p=1, min_p=0)))


@test("responses", "temperature", "top_p")
def response_sampling(s, e):
    expect(ANSWER, s.respond(temperature=0).output_text)
    expect(ANSWER, s.respond(temperature=2, top_p=1e-6).output_text)


@test("chat completions", "seed")
def seed(s, e):
    differs(s, e, seed=4)


@test("chat completions", "presence_penalty", "frequency_penalty", "repetition_penalty")
def penalties(s, e):
    for change in ({"presence_penalty": 2}, {"frequency_penalty": -2}, {"repetition_penalty": 2}):
        differs(s, e, **change)


@test("chat completions", "logit_bias", "allowed_token_ids")
def biases(s, e):
    ids = ask[e](s, logit_bias={"40": 100}, max_tokens=5, return_token_ids=True)
    expect([40] * 5, ids.choices[0].token_ids)
    ids = ask[e](s, allowed_token_ids=[40, 41], max_tokens=9, temperature=100,
                 return_token_ids=True)
    expect({40, 41}, set(ids.choices[0].token_ids))


@test("chat completions", "bad_words")
def bad_words(s, e):
    start = {"max_tokens": 40, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
    words = text_of(ask[e](s, **start)).split()[:2]
    answer = ask[e](s, bad_words=words, **start)
    expect([], [word for word in words if f" {word} " in text_of(answer)])
    for word in words:
        run = s.post("/tokenize", prompt=" " + word)["tokens"]
        ids = answer.choices[0].token_ids
        expect(False, any(ids[i:i + len(run)] == run for i in range(len(ids))))
    both = {"bad_words": ["x"], "allowed_token_ids": [40]}
    expect(True, "expected one of bad words and allowed tokens" in
           refusal(lambda: ask[e](s, **both)).message)


@test("chat completions", "n")
def n(s, e):
    several = ask[e](s, n=3, temperature=1.5, seed=7)
    expect([0, 1, 2], [c.index for c in several.choices])
    third = ask[e](s, temperature=1.5, seed=9)
    expect(text_of(third), (several.choices[2].text if e == "completions"
                            else several.choices[2].message.content))


# --- prompts ---------------------------------------------------------------------------------------

@test("chat completions", "truncate_prompt_tokens")
def truncated(s, e):
    expect(3, ask[e](s, truncate_prompt_tokens=3).usage.prompt_tokens)
    whole = ask[e](s)
    for most in (1000, -1):
        same = ask[e](s, truncate_prompt_tokens=most)
        expect((text_of(whole), whole.usage), (text_of(same), same.usage))
    if e == "completions":
        ids = s.post("/tokenize", prompt="There was a dog. Once upon")["tokens"]
        last = len(s.post("/tokenize", prompt=" Once upon")["tokens"])
        expect(text_of(s.complete(prompt=ids[-last:])),
               text_of(s.complete(prompt=ids, truncate_prompt_tokens=last)))
        context = s.post("/tokenize", prompt="x")["max_model_len"]
        longest = s.complete(prompt=[40] * (context + 9), truncate_prompt_tokens=-1)
        expect(context - 6, longest.usage.prompt_tokens)
        expect("truncate_prompt_tokens",
               refusal(lambda: s.complete(truncate_prompt_tokens=3, echo=True)).param)


@test("completions tokenize", "add_special_tokens")
def special_in_front(s, e):
    """`other` has a tokenizer that puts a token in front of texts."""
    ids = other.post("/tokenize", prompt="Once upon")["tokens"]
    plain = other.post("/tokenize", prompt="Once upon", add_special_tokens=False)["tokens"]
    expect((BOS, plain), (ids[0], ids[1:]))
    expect(len(ids), other.complete().usage.prompt_tokens)
    expect(len(plain), other.complete(add_special_tokens=False).usage.prompt_tokens)
    chat = other.post("/tokenize", messages=QUESTION, add_special_tokens=False)["count"]
    expect(chat, other.chat(max_tokens=1).usage.prompt_tokens)
    error = refusal(lambda: other.post("/tokenize", messages=QUESTION, add_special_tokens=True))
    expect("add_special_tokens", error.param)


@test("tokenize", "return_token_strs")
def token_strs(s, e):
    found = s.post("/tokenize", prompt="Once upon a time", return_token_strs=True)
    expect((found["count"], "Once upon a time"),
           (len(found["token_strs"]), "".join(found["token_strs"])))
    expect(False, "token_strs" in s.post("/tokenize", prompt="x"))


# --- what is told --------------------------------------------------------------------------------

@test("chat completions", "stream", "stream_options")
def stream(s, e):
    whole = ask[e](s)
    events = list(ask[e](s, stream=True, stream_options={"include_usage": True}))
    pieces = [c.choices[0] for c in events if c.choices]
    text = "".join((p.text if e == "completions" else p.delta.content) or "" for p in pieces)
    expect(text_of(whole), text)
    expect(whole.usage, events[-1].usage)
    expect(whole.choices[0].finish_reason, pieces[-1].finish_reason)


@test("responses", "stream")
def response_stream(s, e):
    with s.client.responses.stream(model="demo", input="What is 12 + 7?") as events:
        text = "".join(x.delta for x in events if x.type == "response.output_text.delta")
        expect((ANSWER, ANSWER), (text, events.get_final_response().output_text))


@test("chat", "logprobs", "top_logprobs")
def chat_logprobs(s, e):
    tokens = s.chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    expect(ANSWER, "".join(t.token for t in tokens)[:len(ANSWER)])
    expect({2}, {len(t.top_logprobs) for t in tokens})
    expect(tokens[0].logprob, tokens[0].top_logprobs[0].logprob)
    s.chat(logprobs=True)


@test("completions", "logprobs", "echo")
def echo(s, e):
    plain = s.complete(logprobs=2)
    echoed = s.complete(logprobs=2, echo=True)
    expect("Once upon" + plain.choices[0].text, echoed.choices[0].text)
    known = echoed.choices[0].logprobs
    count = echoed.usage.prompt_tokens
    expect(None, known.token_logprobs[0])
    expect(True, all(x < 0 for x in known.token_logprobs[1:]))
    expect(plain.choices[0].logprobs.token_logprobs, known.token_logprobs[count:])
    expect("".join(known.tokens), echoed.choices[0].text)
    only = s.complete(logprobs=2, echo=True, max_tokens=0)
    expect(("Once upon", 0), (only.choices[0].text, only.usage.completion_tokens))
    expect(known.token_logprobs[:count], only.choices[0].logprobs.token_logprobs)
    streamed = [c.choices[0] for c in s.complete(logprobs=2, echo=True, stream=True) if c.choices]
    expect(known.token_logprobs,
           [x for c in streamed if c.logprobs for x in c.logprobs.token_logprobs])


@test("chat completions", "prompt_logprobs")
def prompt_logprobs(s, e):
    answer = ask[e](s, prompt_logprobs=2)
    of = answer.prompt_logprobs if e == "chat" else answer.choices[0].prompt_logprobs
    expect(answer.usage.prompt_tokens, len(of))
    expect(None, of[0])
    expect(True, all(2 <= len(x) <= 3 for x in of[1:]))
    if e == "completions":
        known = s.complete(logprobs=0, echo=True).choices[0].logprobs.token_logprobs
        ids = s.post("/tokenize", prompt="Once upon")["tokens"]
        for token, logprob, entry in list(zip(ids, known, of))[1:]:
            expect(logprob, entry[str(token)]["logprob"])


@test("chat completions", "return_tokens_as_token_ids", "skip_special_tokens")
def token_names(s, e):
    ids = ask[e](s, return_token_ids=True, max_tokens=2).choices[0].token_ids
    answer = ask[e](s, return_tokens_as_token_ids=True, max_tokens=2, top_logprobs=0,
                    logprobs=True) if e == "chat" else \
        ask[e](s, return_tokens_as_token_ids=True, max_tokens=2, logprobs=0)
    names = [t.token for t in answer.choices[0].logprobs.content] if e == "chat" else \
        answer.choices[0].logprobs.tokens
    expect([f"token_id:{i}" for i in ids], names)
    special = s.post("/tokenize", messages=QUESTION)["tokens"][0]
    forced = {"allowed_token_ids": [special], "max_tokens": 2, "ignore_eos": True}
    expect("", text_of(ask[e](s, **forced)))
    expect("<|im_start|>" * 2, text_of(ask[e](s, skip_special_tokens=False, **forced)))


@test("chat completions", "request_id", "user", "cache_salt", "priority")
def names(s, e):
    expect(True, ask[e](s, request_id="abc-7").id.endswith("-abc-7"))
    plain = text_of(ask[e](s))
    for change in ({"user": "somebody"}, {"cache_salt": "salt"}, {"priority": -5}):
        expect(plain, text_of(ask[e](s, **change)))


@test("chat", "safety_identifier")
def safety_identifier(s, e):
    expect(ANSWER, text_of(s.chat(safety_identifier="somebody")))


@test("responses", "user", "safety_identifier")
def response_names(s, e):
    expect(ANSWER, s.respond(user="u", safety_identifier="s").output_text)


# --- chats ---------------------------------------------------------------------------------------

@test("chat", "tools", "tool_choice", "parallel_tool_calls")
def tools(s, e):
    plain = other.chat().usage.prompt_tokens
    expect(True, other.chat(tools=TOOLS).usage.prompt_tokens > plain)
    expect(True, other.chat(tools=TOOLS, tool_choice="auto").usage.prompt_tokens > plain)
    expect(plain, other.chat(tools=TOOLS, tool_choice="none").usage.prompt_tokens)
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        answer = caller.chat(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False,
                             max_tokens=100).choices[0]
        call, = answer.message.tool_calls
        expect(("f", "{}", "tool_calls"),
               (call.function.name, call.function.arguments, answer.finish_reason))
    expect("tool_choice", refusal(lambda: other.chat(tool_choice="required")).param)
    expect("tools", refusal(lambda: s.chat(tools=TOOLS)).param)


@test("chat", "include_reasoning")
def include_reasoning(s, e):
    thinks = {"chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 9}
    shown = other.chat(include_reasoning=True, **thinks)
    hidden = other.chat(include_reasoning=False, **thinks)
    expect(True, bool(shown.choices[0].message.reasoning_content))
    expect(None, getattr(hidden.choices[0].message, "reasoning_content", None))
    expect(shown.usage, hidden.usage)
    events = other.chat(include_reasoning=False, stream=True, **thinks)
    expect([], [x for x in events if getattr(x.choices[0].delta, "reasoning_content", None)])


@test("chat", "chat_template_kwargs", "reasoning_effort")
def template(s, e):
    plain = other.chat().usage.prompt_tokens
    thinks = other.chat(chat_template_kwargs={"enable_thinking": True})
    expect(True, thinks.usage.prompt_tokens > plain)
    expect(True, thinks.choices[0].message.reasoning_content is not None)
    expect(thinks.usage.prompt_tokens, other.chat(reasoning_effort="high").usage.prompt_tokens)
    expect(plain, other.chat(reasoning_effort="none").usage.prompt_tokens)
    error = refusal(lambda: other.chat(chat_template_kwargs={"enable_thinkin": True}))
    expect(True, "did you mean enable_thinking?" in error.message)
    expect("reasoning_effort", refusal(lambda: s.chat(reasoning_effort="low")).param)


@test("chat", "continue_final_message", "add_generation_prompt")
def continued(s, e):
    begun = QUESTION + [{"role": "assistant", "content": "12 + 7"}]
    expect(" = 19.", text_of(s.chat(messages=begun, continue_final_message=True,
                                    add_generation_prompt=False)))
    expect("add_generation_prompt",
           refusal(lambda: s.chat(add_generation_prompt=False)).param)


@test("tokenize", "prompt", "messages", "tools", "chat_template_kwargs")
@test("detokenize", "tokens")
def tokenized(s, e):
    ids = s.post("/tokenize", prompt="Once upon")["tokens"]
    expect("Once upon", s.post("/detokenize", tokens=ids)["prompt"])
    for ask_for in ({}, {"tools": TOOLS}, {"chat_template_kwargs": {"enable_thinking": True}}):
        found = other.post("/tokenize", messages=QUESTION, **ask_for)
        expect(other.chat(max_tokens=1, **ask_for).usage.prompt_tokens, found["count"])
        expect(found["count"], len(found["tokens"]))


@test("tokenize", "continue_final_message", "add_generation_prompt")
def tokenized_continued(s, e):
    begun = QUESTION + [{"role": "assistant", "content": "12 + 7"}]
    flags = {"continue_final_message": True, "add_generation_prompt": False}
    expect(s.chat(messages=begun, **flags).usage.prompt_tokens,
           s.post("/tokenize", messages=begun, **flags)["count"])


# --- structured output ---------------------------------------------------------------------------

SCHEMA = {"name": "sum", "strict": True, "schema": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 12, "maximum": 12},
                                     "ok": {"type": "boolean"}},
    "required": ["a", "ok"], "additionalProperties": False}}


def check_sum(text):
    value = json.loads(text)
    expect((["a", "ok"], 12, True), (sorted(value), value["a"], isinstance(value["ok"], bool)))


@test("chat completions", "response_format")
def response_format(s, e):
    expect(text_of(ask[e](s)), text_of(ask[e](s, response_format={"type": "text"})))
    check_sum(text_of(ask[e](s, max_tokens=200, response_format={
        "type": "json_schema", "json_schema": SCHEMA})))
    text = text_of(ask[e](s, max_tokens=60, response_format={"type": "json_object"}))
    expect("{", text.strip()[:1])


@test("responses", "text")
def response_text(s, e):
    expect(ANSWER, s.respond(text={"format": {"type": "text"}}).output_text)
    check_sum(s.respond(max_output_tokens=200, text={
        "format": {"type": "json_schema", **SCHEMA}}).output_text)


@test("chat completions", "structured_outputs")
def structured_outputs(s, e):
    for name, value, wanted in [("regex", "1[2]", "12"), ("choice", ["yes"], "yes"),
                                ("grammar", 'root ::= "a" "b"', "ab"), ("json", {"const": 1}, "1")]:
        expect(wanted, text_of(ask[e](s, structured_outputs={name: value})))
    error = refusal(lambda: ask[e](s, structured_outputs={"regex": "("}))
    expect("structured_outputs", error.param)


# --- every parameter of the document -------------------------------------------------------------

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions",
         "responses": "/v1/responses", "tokenize": "/tokenize", "detokenize": "/detokenize"}
LEAST = {"chat": {"messages": QUESTION, "max_tokens": 1},
         "completions": {"prompt": "x", "max_tokens": 1},
         "responses": {"input": "x", "max_output_tokens": 1},
         "tokenize": {"prompt": "x"}, "detokenize": {"tokens": [1]}}


def wrong_values(schema):
    """Values that a schema refuses: another type, and what lies beside the range."""
    kinds = schema.get("type", [])
    forms = [f for one in schema.get("anyOf", [schema]) for f in one.get("anyOf", [one])]
    numbers = [f for f in forms if "minimum" in f and f.get("type") != "array"]
    for f in numbers:
        for beside in (f["minimum"] - 1, f["maximum"] + 1):
            if abs(beside) < 2**53:
                yield beside
    if "string" not in kinds and not any(f.get("type") == "string" for f in forms):
        yield "wrong"
    yield {"wrong": [1]}


def neutral_values(schema):
    """All values that a schema takes, if these are some only; else none."""
    if all(form == {"type": "null"} for form in schema.get("anyOf", [{}])):
        return [None]
    return schema.get("enum", [])


def check_refusals(s, endpoint, name, schema):
    for value in wrong_values(schema):
        error = refusal(lambda: s.post(PATHS[endpoint], **{**LEAST[endpoint], name: value}))
        shown = json.dumps(value, separators=(",", ":"))
        if error.param != name or f'"{name}"' not in error.message:
            raise AssertionError(f"{shown}: expected a refusal that names it, found {error.message}")


def check_neutral(s, endpoint, name, schema):
    for value in neutral_values(schema):
        s.post(PATHS[endpoint], **{**LEAST[endpoint], name: value})


def run(endpoint, name, check, *arguments):
    try:
        check(*arguments)
        return True
    except Exception as error:  # a refusal that was not expected, too
        failures.append(f"{endpoint} {name}: {type(error).__name__}: {error}")
        return False


def run_all():
    document = main.root.get("/openapi.json", cast_to=object)
    verdicts = {}
    for endpoint, path in PATHS.items():
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        for name, schema in body["schema"]["properties"].items():
            function = tests.get((endpoint, name))
            run(endpoint, name, check_refusals, main, endpoint, name, schema)
            if function is not None:
                run(endpoint, name, function, main, endpoint)
            elif neutral_values(schema):
                run(endpoint, name, check_neutral, main, endpoint, name, schema)
            else:
                failures.append(f"{endpoint} {name}: no test")
            only = " or ".join(json.dumps(v) for v in neutral_values(schema) if v is not None)
            verdict = (WORDS[0], "", function.__name__) if function else \
                (WORDS[1], f" {only}", "check_neutral") if only else \
                (WORDS[2], "", "check_refusals")
            verdicts.setdefault(name, {})[endpoint] = verdict
    for (endpoint, name) in tests:
        if endpoint not in verdicts.get(name, {}):
            failures.append(f"{endpoint} {name}: tested, but no parameter of the document")
    run("chat", "unknown", unknown_names)
    return verdicts


WORDS = ["works", "only so", "refused"]  # of verdicts


def unknown_names():
    error = refusal(lambda: main.chat(temprature=1))
    expect(("temprature", True), (error.param, "did you mean temperature?" in error.message))
    error = refusal(lambda: main.chat(prompt="x"))
    expect(True, "a parameter of /v1/completions" in error.message)


# --- the table -----------------------------------------------------------------------------------

def table(verdicts):
    """Rows of parameters with the same endpoints (letters as in docs/serve.md), verdict and test."""
    letters = {"completions": "C", "chat": "M", "responses": "R", "tokenize": "T", "detokenize": "D"}
    rows = {}
    for name, found in verdicts.items():
        for verdict in dict.fromkeys(found.values()):
            which = "".join(letters[e] for e in letters if found.get(e) == verdict)
            word, values, function = verdict
            rows.setdefault((word, which, function), []).append(f"`{name}`{values}")
    lines = ["| parameters | of | | test |", "|---|---|---|---|"]
    for word, which, function in sorted(rows, key=lambda row: WORDS.index(row[0])):
        end = f" | {which} | {word} | `{function}` |"
        line = "|"
        for cell in rows[word, which, function]:
            if len(line) + len(cell) + len(end) + 2 > 100:
                lines.append(line + end)
                line = "|"
            line += (" " if line == "|" else ", ") + cell
        lines.append(line + end)
    return "\n".join(lines) + "\n"


def check_readme(text):
    with open(os.path.join(SOURCE, "README.md")) as file:
        if text not in file.read():
            failures.append("README.md: its table of parameters is another one (--table prints it)")


folder = tempfile.mkdtemp()
for entry in os.listdir(DEMO):
    os.symlink(os.path.abspath(os.path.join(DEMO, entry)), os.path.join(folder, entry))
with open(os.path.join(folder, "chat_template.jinja"), "w") as file:
    file.write(TEMPLATE)
with open(os.path.join(DEMO, "tokenizer.json")) as file:
    tokenizer = json.load(file)
special = tokenizer["added_tokens"][0]
BOS, name = special["id"], special["content"]
tokenizer["post_processor"] = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": name, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {name: {"id": name, "ids": [BOS], "tokens": [name]}}}
os.remove(os.path.join(folder, "tokenizer.json"))
with open(os.path.join(folder, "tokenizer.json"), "w") as file:
    json.dump(tokenizer, file)
main, other = Server(DEMO), Server(folder)
caller = Server(folder, "--reasoning-parser", "none")  # the demo would think for ever
try:
    verdicts = run_all()
    if "--table" in sys.argv:
        print(table(verdicts), end="")
    else:
        check_readme(table(verdicts))
finally:
    main.stop()
    other.stop()
    caller.stop()
    shutil.rmtree(folder)
for failure in failures:
    print("FAILED", failure, file=sys.stderr)
count = sum(len(words) for words in verdicts.values())
print(f"{count} parameters of {len(PATHS)} endpoints, openai {openai.__version__}, "
      f"{len(failures)} failed", file=sys.stderr)
sys.exit(len(failures) > 0)
