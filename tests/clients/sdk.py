"""OpenAI's SDK for Python against a server that plays a script: `sdk.py BASE_URL CHECK`."""

import asyncio
import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="sk-fake", max_retries=0, timeout=60)
aclient = openai.AsyncOpenAI(base_url=sys.argv[1], api_key="sk-fake", max_retries=0, timeout=60)
MODEL = "scripted"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "name": "weather", "description": "d", "parameters": PARAMETERS, "strict": False}
CHAT_TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
COUNTED = "".join(f"{number} " for number in range(1, 31))


def equal(found, expected):
    assert found == expected, f"{found!r} is not {expected!r}"


def raises(kind, status, code, call):
    try:
        call()
    except kind as error:
        equal((error.status_code, error.code), (status, code))
        assert error.request_id, "an error has the id of its request"
        return error
    raise AssertionError(f"no {kind.__name__}")


def gapless(events):
    numbers = [event.sequence_number for event in events]
    equal(numbers, list(range(numbers[0], numbers[0] + len(numbers))))


def responses():
    whole = client.responses.create(model=MODEL, input="say hi", metadata={"job": "7"}, service_tier="flex")
    equal((whole.output_text, whole.status, whole.metadata), ("Hello there.", "completed", {"job": "7"}))
    equal(whole.usage.total_tokens, whole.usage.input_tokens + whole.usage.output_tokens)
    equal(client.responses.retrieve(whole.id).output_text, "Hello there.")
    items = client.responses.input_items.list(whole.id).data
    equal([item.content[0].text for item in items], ["say hi"])
    more = client.responses.create(model=MODEL, input="once more", previous_response_id=whole.id)
    equal((more.output_text, more.previous_response_id), ("Hi again.", whole.id))
    counted = client.responses.input_tokens.count(model=MODEL, input="once more", previous_response_id=whole.id)
    assert counted.input_tokens > 0

    events = list(client.responses.create(model=MODEL, input="think", stream=True))
    gapless(events)
    equal((events[0].type, events[-1].type), ("response.created", "response.completed"))
    kinds = {event.type for event in events}
    assert {"response.reasoning_text.delta", "response.output_text.delta", "response.output_item.done"} <= kinds, kinds
    final = events[-1].response
    equal([item.type for item in final.output], ["reasoning", "message"])
    equal("".join(event.delta for event in events if event.type == "response.output_text.delta"), final.output_text)

    with client.responses.stream(model=MODEL, input="say hi") as stream:
        kinds = [event.type for event in stream]
        equal((kinds[0], kinds[-1]), ("response.created", "response.completed"))
        equal(stream.get_final_response().output_text, "Hello there.")

    first = client.responses.create(model=MODEL, input="weather", tools=[TOOL])
    call = next(item for item in first.output if item.type == "function_call")
    equal((call.name, json.loads(call.arguments)), ("weather", {"city": "Oslo"}))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    answer = client.responses.create(model=MODEL, input=[result], previous_response_id=first.id, tools=[TOOL])
    equal(answer.output_text, "Take an umbrella.")

    # A client that keeps its transcript itself sends back what it was given.
    transcript = [{"role": "user", "content": "think"}]
    own = client.responses.create(model=MODEL, input=transcript, store=False, include=["reasoning.encrypted_content"])
    assert own.output[0].encrypted_content
    transcript += [item.model_dump(exclude_none=True) for item in own.output] + [{"role": "user", "content": "say hi"}]
    equal(client.responses.create(model=MODEL, input=transcript, store=False).output_text, "Hello there.")
    raises(openai.NotFoundError, 404, "response_not_found", lambda: client.responses.retrieve(own.id))
    shorter = client.responses.compact(model=MODEL, input=transcript)
    equal(shorter.output[-1].type, "compaction")

    client.responses.delete(whole.id)
    raises(openai.NotFoundError, 404, "response_not_found", lambda: client.responses.retrieve(whole.id))
    unknown = dict(model=MODEL, input="hi", previous_response_id="resp_nobody")
    lost = raises(openai.BadRequestError, 400, "previous_response_not_found", lambda: client.responses.create(**unknown))
    equal(lost.param, "previous_response_id")


def background():
    events = []
    with client.responses.create(model=MODEL, input="count", background=True, stream=True) as stream:
        for event in stream:
            events.append(event)
            if len(events) == 12:
                break
    id, last = events[0].response.id, events[-1].sequence_number
    events += list(client.responses.retrieve(id, stream=True, starting_after=last))
    gapless(events)
    equal(events[-1].response.output_text, COUNTED)
    with client.responses.stream(response_id=id, starting_after=last) as stream:
        again = list(stream)
    equal((again[0].sequence_number, again[-1].type), (last + 1, "response.completed"))

    queued = client.responses.create(model=MODEL, input="endless", background=True)
    assert queued.status in ("queued", "in_progress"), queued.status
    equal(client.responses.cancel(queued.id).status, "cancelled")
    equal(client.responses.retrieve(queued.id).status, "cancelled")


def conversations():
    made = client.conversations.create(metadata={"a": "1"}, items=[{"type": "message", "role": "user", "content": "hi"}])
    equal((made.object, made.metadata), ("conversation", {"a": "1"}))
    equal(client.conversations.update(made.id, metadata={"b": "2"}).metadata, {"b": "2"})
    added = client.conversations.items.create(made.id, items=[{"role": "user", "content": "say hi"}]).data[0]
    equal(client.conversations.items.retrieve(added.id, conversation_id=made.id).content[0].text, "say hi")
    answer = client.responses.create(model=MODEL, input="once more", conversation=made.id)
    equal((answer.output_text, answer.conversation.id), ("Hi again.", made.id))
    roles = [item.role for item in client.conversations.items.list(made.id, order="asc", limit=2)]
    equal(roles, ["user", "user", "user", "assistant"])
    client.conversations.items.delete(added.id, conversation_id=made.id)
    equal(len(client.conversations.items.list(made.id).data), 3)
    equal(client.conversations.retrieve(made.id).id, made.id)
    equal(client.conversations.delete(made.id).deleted, True)
    raises(openai.NotFoundError, 404, "conversation_not_found", lambda: client.conversations.retrieve(made.id))


def chat():
    def ask(text):
        return dict(model=MODEL, messages=[{"role": "user", "content": text}])

    whole = client.chat.completions.create(**ask("say hi"), logprobs=True, top_logprobs=2, service_tier="flex", seed=1)
    equal((whole.choices[0].message.content, whole.choices[0].finish_reason), ("Hello there.", "stop"))
    assert whole.choices[0].logprobs.content and whole.service_tier == "flex"
    several = client.chat.completions.create(**ask("say hi"), n=2)
    equal([(choice.index, choice.message.content) for choice in several.choices], [(0, "Hello there."), (1, "Hello there.")])

    chunks = list(client.chat.completions.create(**ask("think"), stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    thought = "".join(getattr(c.choices[0].delta, "reasoning_content", None) or "" for c in chunks if c.choices)
    equal((text, thought, chunks[-1].choices), ("so it is", "hm, well", []))
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens > 0
    with client.chat.completions.stream(**ask("weather"), tools=[CHAT_TOOL]) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    call = final.choices[0].message.tool_calls[0]
    equal((final.choices[0].finish_reason, json.loads(call.function.arguments)), ("tool_calls", {"city": "Oslo"}))
    messages = ask("weather")["messages"] + [
        final.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "rain"},
    ]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[CHAT_TOOL])
    equal(answer.choices[0].message.content, "Take an umbrella.")
    older = client.chat.completions.create(**ask("weather"), functions=[{"name": "weather", "parameters": PARAMETERS}])
    equal((older.choices[0].message.function_call.name, older.choices[0].finish_reason), ("weather", "function_call"))
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    refused = raises(openai.BadRequestError, 400, "invalid_input", lambda: client.chat.completions.create(model=MODEL, messages=image))
    equal(refused.param, "messages[0].content[0].type")
    raises(openai.NotFoundError, 404, "model_not_found", lambda: client.chat.completions.create(**{**ask("hi"), "model": "x"}))

    kept = client.chat.completions.create(**ask("say hi"), store=True, metadata={"run": "1"})
    equal(client.chat.completions.retrieve(kept.id).choices[0].message.content, "Hello there.")
    client.chat.completions.create(**ask("say hi"), store=True, metadata={"run": "1"})
    equal(len(list(client.chat.completions.list(metadata={"run": "1"}, model=MODEL, limit=1))), 2)
    equal([message.content for message in client.chat.completions.messages.list(kept.id)], ["say hi"])
    equal(client.chat.completions.update(kept.id, metadata={"run": "2"}).metadata, {"run": "2"})
    equal([found.id for found in client.chat.completions.list(metadata={"run": "2"})], [kept.id])
    equal(client.chat.completions.delete(kept.id).deleted, True)
    raises(openai.NotFoundError, 404, "not_found", lambda: client.chat.completions.retrieve(kept.id))


def completions():
    whole = client.completions.create(model=MODEL, prompt=["say hi", "once more"], max_tokens=100, logprobs=1, n=1)
    equal([choice.text for choice in whole.choices], ["Hello there.", "Hi again."])
    assert whole.choices[0].logprobs.tokens
    parts = list(client.completions.create(model=MODEL, prompt="say hi", max_tokens=100, stream=True, echo=True,
                                           stream_options={"include_usage": True}))
    equal("".join(part.choices[0].text for part in parts if part.choices), "say hiHello there.")
    equal(parts[-1].usage.prompt_tokens, len("say hi"))
    equal([model.id for model in client.models.list()], [MODEL])
    equal(client.models.retrieve(MODEL).id, MODEL)


def sockets():
    with client.responses.connect() as connection:
        connection.response.create(model=MODEL, input="muse", store=False)
        events, steered = [], False
        for event in connection:
            events.append(event)
            if event.type == "response.reasoning_text.delta" and not steered:
                steered = True
                connection.response.steer(previous_response_id=events[0].response.id, input="say hi")
            if event.type == "response.incomplete":
                equal(event.response.incomplete_details.reason, "steered")
            if event.type == "response.completed":
                break
        kinds = [event.type for event in events]
        assert "response.steer.accepted" in kinds and "response.incomplete" in kinds, kinds
        equal(events[-1].response.output_text, "Hello there.")
        connection.response.create(model=MODEL, input="once more", store=False,
                                   previous_response_id=events[-1].response.id)
        for event in connection:
            if event.type == "response.completed":
                equal(event.response.output_text, "Hi again.")
                break
        connection.response.create(model=MODEL, input="hi", previous_response_id="resp_nobody")
        for event in connection:
            equal((event.type, event.error.code), ("error", "previous_response_not_found"))
            break


def retries():
    busy = client.responses.create(model=MODEL, input="endless", store=False, stream=True)
    next(busy)
    statuses = []

    def seen(response):
        statuses.append(response.status_code)
        if response.status_code == 503:
            equal(response.headers["retry-after"], "1")
            busy.close()

    http = openai.DefaultHttpxClient(event_hooks={"response": [seen]})
    patient = client.with_options(max_retries=10, http_client=http)
    equal(patient.responses.create(model=MODEL, input="say hi").output_text, "Hello there.")
    assert statuses[0] == 503 and statuses[-1] == 200, statuses


async def together():
    async def ask(text):
        return (await aclient.responses.create(model=MODEL, input=text)).output_text

    equal(await asyncio.gather(ask("say hi"), ask("once more")), ["Hello there.", "Hi again."])
    # Whoever leaves takes his response with him; the next one is served.
    async with await aclient.responses.create(model=MODEL, input="endless", stream=True) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
    equal(await ask("say hi"), "Hello there.")


def asynchronous():
    asyncio.run(together())


globals()[sys.argv[2]]()
