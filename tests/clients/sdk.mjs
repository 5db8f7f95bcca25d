// OpenAI's SDK for JavaScript against a server that plays a script: `sdk.mjs BASE_URL CHECK`.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

const [baseURL, check] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "sk-fake", maxRetries: 0, timeout: 60_000 });
const model = "scripted";
const parameters = { type: "object", properties: { city: { type: "string" } } };
const tool = { type: "function", name: "weather", parameters, strict: false };
const counted = Array.from({ length: 30 }, (_, index) => `${index + 1} `).join("");

const all = async (stream) => {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
};

const gapless = (events) => {
  const first = events[0].sequence_number;
  assert.deepEqual(events.map((event) => event.sequence_number - first), events.map((_, index) => index));
};

const refused = async (call, status, code) => {
  await assert.rejects(call, (error) => {
    assert.deepEqual([error.status, error.code], [status, code]);
    assert.ok(error.requestID, "an error has the id of its request");
    return true;
  });
};

const checks = {
  async responses() {
    const whole = await client.responses.create({ model, input: "say hi", metadata: { job: "7" } });
    assert.deepEqual([whole.output_text, whole.status, whole.metadata], ["Hello there.", "completed", { job: "7" }]);
    assert.equal((await client.responses.retrieve(whole.id)).output_text, "Hello there.");
    const items = await all(client.responses.inputItems.list(whole.id));
    assert.deepEqual(items.map((item) => item.content[0].text), ["say hi"]);
    const more = await client.responses.create({ model, input: "once more", previous_response_id: whole.id });
    assert.equal(more.output_text, "Hi again.");
    assert.ok((await client.responses.inputTokens.count({ model, input: "hi" })).input_tokens > 0);

    const events = await all(await client.responses.create({ model, input: "think", stream: true }));
    gapless(events);
    assert.deepEqual([events[0].type, events.at(-1).type], ["response.created", "response.completed"]);
    assert.deepEqual(events.at(-1).response.output.map((item) => item.type), ["reasoning", "message"]);
    const stream = client.responses.stream({ model, input: "say hi" });
    await all(stream);
    assert.equal((await stream.finalResponse()).output_text, "Hello there.");

    const first = await client.responses.create({ model, input: "weather", tools: [tool] });
    const call = first.output.find((item) => item.type === "function_call");
    assert.deepEqual(JSON.parse(call.arguments), { city: "Oslo" });
    const input = [{ type: "function_call_output", call_id: call.call_id, output: "rain" }];
    const answer = await client.responses.create({ model, input, previous_response_id: first.id, tools: [tool] });
    assert.equal(answer.output_text, "Take an umbrella.");

    const asked = [{ role: "user", content: "think" }];
    const include = ["reasoning.encrypted_content"];
    const own = await client.responses.create({ model, input: asked, store: false, include });
    const next = [...asked, ...own.output, { role: "user", content: "say hi" }];
    assert.equal((await client.responses.create({ model, input: next, store: false })).output_text, "Hello there.");
    assert.equal((await client.responses.compact({ model, input: next })).output.at(-1).type, "compaction");

    await client.responses.delete(whole.id);
    await refused(() => client.responses.retrieve(whole.id), 404, "response_not_found");
    const lost = { model, input: "hi", previous_response_id: "resp_nobody" };
    await refused(() => client.responses.create(lost), 400, "previous_response_not_found");
  },

  async background() {
    const events = [];
    for await (const event of await client.responses.create({ model, input: "count", background: true, stream: true })) {
      events.push(event);
      if (events.length === 12) break;
    }
    const { id } = events[0].response;
    const starting_after = events.at(-1).sequence_number;
    events.push(...(await all(await client.responses.retrieve(id, { stream: true, starting_after }))));
    gapless(events);
    assert.equal(events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta).join(""), counted);
    const again = await all(client.responses.stream({ response_id: id, starting_after }));
    assert.equal(again.at(-1).type, "response.completed");
    const queued = await client.responses.create({ model, input: "endless", background: true });
    assert.equal((await client.responses.cancel(queued.id)).status, "cancelled");
  },

  async conversations() {
    const { id } = await client.conversations.create({ metadata: { a: "1" } });
    assert.deepEqual((await client.conversations.update(id, { metadata: { b: "2" } })).metadata, { b: "2" });
    const added = await client.conversations.items.create(id, { items: [{ role: "user", content: "say hi" }] });
    const item = added.data[0].id;
    assert.equal((await client.conversations.items.retrieve(item, { conversation_id: id })).content[0].text, "say hi");
    assert.equal((await client.responses.create({ model, input: "once more", conversation: id })).output_text, "Hi again.");
    const items = await all(client.conversations.items.list(id, { order: "asc", limit: 2 }));
    assert.deepEqual(items.map((item) => item.role), ["user", "user", "assistant"]);
    await client.conversations.items.delete(item, { conversation_id: id });
    assert.equal((await client.conversations.delete(id)).deleted, true);
    await refused(() => client.conversations.retrieve(id), 404, "conversation_not_found");
  },

  async chat() {
    const ask = (content) => ({ model, messages: [{ role: "user", content }] });
    const whole = await client.chat.completions.create({ ...ask("say hi"), n: 2, logprobs: true });
    assert.deepEqual(whole.choices.map((choice) => choice.message.content), ["Hello there.", "Hello there."]);
    const stream_options = { include_usage: true };
    const chunks = await all(await client.chat.completions.create({ ...ask("think"), stream: true, stream_options }));
    const joined = (name) => chunks.map((chunk) => chunk.choices[0]?.delta[name] ?? "").join("");
    assert.deepEqual([joined("content"), joined("reasoning_content")], ["so it is", "hm, well"]);
    assert.ok(chunks.at(-1).usage.total_tokens > 0);

    const asked = [];
    const weather = {
      name: "weather", parameters, parse: JSON.parse,
      function: ({ city }) => { asked.push(city); return "rain"; },
    };
    const runner = client.chat.completions.runTools({ ...ask("weather"), stream: true, tools: [{ type: "function", function: weather }] });
    assert.equal(await runner.finalContent(), "Take an umbrella.");
    assert.deepEqual(asked, ["Oslo"]);
    const functions = [{ name: "weather", parameters }];
    const older = await client.chat.completions.create({ ...ask("weather"), functions });
    assert.equal(older.choices[0].message.function_call.name, "weather");

    const kept = await client.chat.completions.create({ ...ask("say hi"), store: true, metadata: { run: "1" } });
    const listed = await all(client.chat.completions.list({ metadata: { run: "1" } }));
    assert.deepEqual(listed.map((found) => found.id), [kept.id]);
    const messages = await all(client.chat.completions.messages.list(kept.id));
    assert.deepEqual(messages.map((message) => message.content), ["say hi"]);
    assert.equal((await client.chat.completions.update(kept.id, { metadata: { run: "2" } })).metadata.run, "2");
    assert.equal((await client.chat.completions.delete(kept.id)).deleted, true);
    await assert.rejects(client.chat.completions.retrieve(kept.id), { status: 404 });
  },

  async completions() {
    const whole = await client.completions.create({ model, prompt: ["say hi", "once more"], max_tokens: 100, logprobs: 1 });
    assert.deepEqual(whole.choices.map((choice) => choice.text), ["Hello there.", "Hi again."]);
    const parts = await all(await client.completions.create({ model, prompt: "say hi", max_tokens: 100, stream: true }));
    assert.equal(parts.map((part) => part.choices[0]?.text ?? "").join(""), "Hello there.");
    assert.deepEqual((await all(client.models.list())).map((model) => model.id), [model]);
  },

  async sockets() {
    const socket = new ResponsesWS(client);
    socket.send({ type: "response.create", model, input: "muse", store: false });
    const kinds = [];
    let first;
    let turn = 1;
    for await (const { type, message, error } of socket) {
      if (type === "error") throw error;
      if (type !== "message") continue;
      kinds.push(message.type);
      first ??= message.response?.id;
      if (message.type === "response.reasoning_text.delta" && turn === 1) {
        turn = 2;
        socket.send({ type: "response.steer", previous_response_id: first, input: "say hi" });
      }
      if (message.type !== "response.completed") continue;
      if (turn === 3) {
        assert.equal(message.response.output[0].content[0].text, "Hi again.");
        break;
      }
      assert.equal(message.response.output[0].content[0].text, "Hello there.");
      turn = 3;
      socket.send({ type: "response.create", model, input: "once more", store: false, previous_response_id: message.response.id });
    }
    assert.ok(kinds.includes("response.steer.accepted") && kinds.includes("response.incomplete"), kinds.join());
    socket.close();
  },

  async retries() {
    const busy = await client.responses.create({ model, input: "endless", store: false, stream: true });
    await busy[Symbol.asyncIterator]().next();
    const statuses = [];
    const seen = async (...request) => {
      const response = await fetch(...request);
      statuses.push(response.status);
      if (response.status === 503) {
        assert.equal(response.headers.get("retry-after"), "1");
        busy.controller.abort();
      }
      return response;
    };
    const patient = client.withOptions({ maxRetries: 10, fetch: seen });
    assert.equal((await patient.responses.create({ model, input: "say hi" })).output_text, "Hello there.");
    assert.ok(statuses[0] === 503 && statuses.at(-1) === 200, statuses.join());
  },
};

await checks[check]();
