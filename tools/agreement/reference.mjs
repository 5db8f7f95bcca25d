// The reference's side: what llama.cpp, through node-llama-cpp's prebuilt libraries, makes of the same file and texts.
//
// usage: node reference.mjs MODEL.gguf TEXTS.json OUT_FOLDER [BUILD]
// Writes reference.json (token ids, perplexities, its greedy answer to the question) and logits.f32 (little-endian
// rows of the vocabulary's size: the first POSITIONS of each prompt). With BUILD, the name of the one build that was
// left in place, it writes logits-BUILD.f32 alone. Measures nothing of midstream.
import { createWriteStream, readFileSync, writeFileSync } from "node:fs";
import { once } from "node:events";
import { LlamaLogLevel, getLlama } from "node-llama-cpp";

const POSITIONS = 40; // of each of five prompts
const CONTEXT = 512;
const ANSWER_TOKENS = 48;

const [modelPath, textsPath, out, build] = process.argv.slice(2);
const texts = JSON.parse(readFileSync(textsPath, "utf8"));
const llama = await getLlama({
    gpu: false, build: "never", skipDownload: true, progressLogs: false, logLevel: LlamaLogLevel.error,
});
const model = await llama.loadModel({ modelPath, gpuLayers: 0 });
const context = await model.createContext({
    contextSize: CONTEXT, batchSize: CONTEXT, sequences: 1, flashAttention: false,
    threads: 1, // its threads wait by spinning: on a busy machine two are slower than one
});
const sequence = context.getSequence();

async function evaluate(items) {
    await sequence.clearHistory();
    return await sequence.controlledEvaluate(items);
}

async function promptLogits(ids, file) {
    const items = ids.map((id, at) => at < POSITIONS ? [id, { generateNext: { logits: true } }] : id);
    for (const result of (await evaluate(items)).slice(0, POSITIONS)) {
        const logits = result.next.logits;
        const row = Buffer.alloc(logits.size * 4);
        for (const [token, logit] of logits) row.writeFloatLE(logit, token * 4);
        if (!file.write(row)) await once(file, "drain");
    }
}

// As llama.cpp's own tool: the text in whole chunks of the context, BOS in each chunk's first place where the model
// wants one, and the second half of each chunk scored.
async function perplexity(ids) {
    const first = CONTEXT / 2;
    let sum = 0, count = 0;
    for (let start = 0; start + CONTEXT <= ids.length; start += CONTEXT) {
        const chunk = ids.slice(start, start + CONTEXT);
        if (model.tokens.shouldPrependBosToken) chunk[0] = model.tokens.bos;
        const items = chunk.map((id, at) => {
            if (at < first || at + 1 >= CONTEXT) return id;
            // includeMax would give the largest only if it is among the tokens.
            const logits = { filter: { tokens: [chunk[at + 1]], includeTop: 1 } };
            return [id, { generateNext: { logits, totalLogitWeight: true } }];
        });
        const results = await evaluate(items);
        for (let at = first; at + 1 < CONTEXT; at++) {
            const { logits, totalLogitWeight } = results[at].next;
            sum += Math.max(...logits.values()) + Math.log(totalLogitWeight) - logits.get(chunk[at + 1]);
            count++;
        }
    }
    return { perplexity: Math.exp(sum / count), scored: count };
}

async function answer(ids) {
    await sequence.clearHistory();
    const found = [];
    for await (const token of sequence.evaluate(ids, { temperature: 0 })) {
        if (model.isEogToken(token) || found.push(token) >= ANSWER_TOKENS) break;
    }
    return found;
}

const prompts = texts.prompts.map((text) => model.tokenize(text, true));
const file = createWriteStream(`${out}/logits${build ? `-${build}` : ""}.f32`);
for (const ids of prompts) {
    if (ids.length < POSITIONS) throw new Error(`a prompt has ${ids.length} tokens; ${POSITIONS} are needed`);
    await promptLogits(ids, file);
}
file.end();
await once(file, "finish");
if (!build) {
    const books = [];
    for (const { name, text } of texts.books) {
        const ids = model.tokenize(text, false);
        if (model.tokens.shouldPrependBosToken) ids.unshift(model.tokens.bos);
        books.push({ name, ids, ...await perplexity(ids) });
    }
    const lines = texts.lines.map((text) => model.tokenize(text, false));
    const question = model.tokenize(texts.question, true);
    const reference = { positions: POSITIONS, context: CONTEXT, prompts, lines, books, answer: await answer(question) };
    writeFileSync(`${out}/reference.json`, JSON.stringify(reference));
}
await llama.dispose();
