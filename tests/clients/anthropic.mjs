// Anthropic's SDK for JavaScript against a server that plays a script: `anthropic.mjs BASE_URL CHECK`.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const [baseURL, check] = process.argv.slice(2);
const client = new Anthropic({ baseURL, apiKey: "sk-ant-fake", maxRetries: 0, timeout: 60_000 });
const model = "scripted";
const properties = { city: { type: "string" } };
const weather = { name: "weather", input_schema: { type: "object", properties } };

const ask = (text, more = {}) => ({
  model,
  max_tokens: 4096,
  messages: [{ role: "user", content: text }],
  ...more,
});
const kinds = (message) => message.content.map((block) => block.type);

const checks = {
  async texts() {
    const message = await client.messages.create(ask("hi"));
    assert.deepEqual([kinds(message), message.content[0].text], [["text"], "Hello there."]);
    let said = "";
    const stream = client.messages.stream(ask("hi")).on("text", (text) => (said += text));
    const final = await stream.finalMessage();
    assert.deepEqual([said, final.stop_reason], ["Hello there.", "end_turn"]);
    assert.deepEqual(final.usage, message.usage);
    const counted = await client.messages.countTokens({ model, messages: ask("hi").messages });
    assert.equal(counted.input_tokens, message.usage.input_tokens);
  },

  async tools() {
    const more = { tools: [weather], thinking: { type: "adaptive" } };
    const message = await client.messages.stream(ask("weather", more)).finalMessage();
    assert.deepEqual(kinds(message), ["thinking", "text", "tool_use"]);
    assert.deepEqual(message.content[2].input, { city: "Oslo" });
    const result = { type: "tool_result", tool_use_id: message.content[2].id, content: "rain" };
    const request = ask("weather", more);
    request.messages.push({ role: "assistant", content: message.content }, { role: "user", content: [result] });
    const answer = await client.messages.create(request);
    assert.equal(answer.content[0].text, "Take an umbrella.");
  },

  async errors() {
    await assert.rejects(client.messages.create({ ...ask("hi"), model: "nobody" }), (error) => {
      assert.ok(error instanceof Anthropic.NotFoundError);
      return true;
    });
    await assert.rejects(client.messages.stream(ask("broken")).finalMessage());
    const stream = client.messages.stream(ask("endless"));
    stream.on("text", () => stream.abort());
    await assert.rejects(stream.finalMessage(), Anthropic.APIUserAbortError);
  },

  async models() {
    const ids = [];
    for await (const listed of client.models.list({ limit: 1 })) ids.push(listed.id);
    assert.deepEqual(ids, [model]);
    assert.ok((await client.models.retrieve(model)).max_input_tokens > 0);
  },
};

await checks[check]();
