// Steers an answer in the middle of it, and reads what comes of it. Needs `npm install openai tsx` and a server:
//
//     npx tsx examples/clients/steer.ts            # http://127.0.0.1:8080, or MIDSTREAM_URL

import { randomUUID } from "node:crypto";
import OpenAI from "openai";

const url = process.env.MIDSTREAM_URL ?? "http://127.0.0.1:8080";
const apiKey = process.env.MIDSTREAM_API_KEY ?? "none";
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey });

interface Receipt {
  id: string;
  successor_id: string;
}

// Once the receipt is here the instruction is on disk, and is not lost.
async function steer(responseId: string, text: string): Promise<Receipt> {
  const answer = await fetch(`${url}/v1/responses/${responseId}/interventions`, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      authorization: `Bearer ${apiKey}`,
      // Sent again with the same key, after a lost connection say, it is not a second one.
      "idempotency-key": randomUUID(),
    },
    body: JSON.stringify({ input: text, when: "now" }),
  });
  if (!answer.ok) throw new Error(await answer.text());
  return (await answer.json()) as Receipt;
}

// Writes text as it comes; `onText` hears all of it so far.
async function read(responseId: string, onText: (text: string) => void = () => {}): Promise<void> {
  let seen = "";
  for await (const event of await client.responses.retrieve(responseId, { stream: true })) {
    if (event.type !== "response.output_text.delta") continue;
    process.stdout.write(event.delta);
    onText((seen += event.delta));
  }
  console.log();
}

async function main(): Promise<void> {
  // In the background it goes on whoever reads.
  const input = "Write a long story about a ship.";
  const response = await client.responses.create({ input, background: true, max_output_tokens: 2000 });
  let receipt: Promise<Receipt> | undefined;
  await read(response.id, (text) => {
    if (text.length >= 20) receipt ??= steer(response.id, "Make it about a train instead.");
  });
  if (!receipt) throw new Error("the answer ended before it could be steered");
  const { successor_id } = await receipt;
  console.log(`--- steered: ${successor_id} answers both`);
  // What was said stays; the successor goes on behind it.
  await read(successor_id);
  const status = async (id: string) => (await client.responses.retrieve(id)).status;
  console.log(`--- ${await status(response.id)}, ${await status(successor_id)}`);
}

await main();
