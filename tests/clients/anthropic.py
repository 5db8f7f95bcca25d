"""Anthropic's SDK for Python against a server that plays a script: anthropic.py BASE_URL CHECK."""

import sys

import anthropic

base_url, check = sys.argv[1:]
client = anthropic.Anthropic(base_url=base_url, api_key="sk-ant-fake", max_retries=0, timeout=60)
MODEL = "scripted"
WEATHER = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}


def ask(text, **more):
    return {"model": MODEL, "max_tokens": 4096, "messages": [{"role": "user", "content": text}], **more}


def kinds(message):
    return [block.type for block in message.content]


def texts():
    message = client.messages.create(**ask("hi"))
    assert (kinds(message), message.content[0].text, message.stop_reason) == (["text"], "Hello there.", "end_turn")
    assert message._request_id
    with client.messages.stream(**ask("hi")) as stream:
        said = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert said == final.content[0].text == "Hello there."
    assert final.usage == message.usage, (final.usage, message.usage)
    counted = client.messages.count_tokens(model=MODEL, messages=ask("hi")["messages"])
    assert counted.input_tokens == message.usage.input_tokens
    stopped = client.messages.create(**ask("hi", stop_sequences=[" there"]))
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " there")


def tools():
    thinking = {"type": "adaptive"}
    with client.messages.stream(**ask("weather", tools=[WEATHER], thinking=thinking)) as stream:
        message = stream.get_final_message()
    assert (kinds(message), message.stop_reason) == (["thinking", "text", "tool_use"], "tool_use")
    assert message.content[0].thinking == "hm" and message.content[0].signature
    call = message.content[2]
    assert (call.name, call.input) == ("weather", {"city": "Oslo"})
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
    turns = [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    request = ask("weather", tools=[WEATHER], thinking=thinking)
    request["messages"] += turns
    assert client.messages.create(**request).content[0].text == "Take an umbrella."
    edits = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
    beta = client.beta.messages.create(**request, context_management=edits, betas=["context-management-2025-06-27"])
    assert beta.context_management.applied_edits == []


def errors():
    try:
        client.messages.create(**{**ask("hi"), "model": "nobody"})
        raise AssertionError("no model is called so")
    except anthropic.NotFoundError as error:
        assert error.type == "not_found_error" and error.error_code == "model_not_found" and error.request_id
    try:
        client.messages.create(**ask("hi"), extra_body={"temperature": 1})
        raise AssertionError("this version takes no temperature")
    except anthropic.BadRequestError as error:
        assert error.type == "invalid_request_error", error
    try:
        with client.messages.stream(**ask("broken")) as stream:
            stream.get_final_message()
        raise AssertionError("it breaks")
    except anthropic.APIStatusError as error:
        assert error.type == "api_error", error


def models():
    listed = client.models.list(limit=1)
    assert [model.id for model in listed] == [MODEL]
    model = client.models.retrieve(MODEL)
    assert model.display_name and model.max_input_tokens > 0 and model.created_at.year >= 2024


{"texts": texts, "tools": tools, "errors": errors, "models": models}[check]()
