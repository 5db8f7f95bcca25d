"""Writes the logits that exact arithmetic gives: the file's weights as they are, everything else in float64.

usage: exact.py MODEL.gguf OUT_FOLDER (with reference.json); writes exact.f32, laid out like the reference's logits.f32.
The judge where two implementations that both round activations to eight bits differ. Llama's architecture only,
without biases or scaled positions; shares no code with either of them.
"""
import json
import sys

import gguf
import numpy as np
from gguf.quants import dequantize


class Model:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        field = lambda key: reader.fields[key].contents()
        if field("general.architecture") != "llama":
            sys.exit("exact.py: only models of llama's architecture can be checked")
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.heads, self.kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
        self.layers, self.epsilon = field("llama.block_count"), field("llama.attention.layer_norm_rms_epsilon")
        self.rope_base = field("llama.rope.freq_base")
        self.embedding = self.weight("token_embd")
        self.output = self.weight("output") if "output.weight" in self.tensors else self.embedding

    def weight(self, name):
        tensor = self.tensors[f"{name}.weight"]
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        return values.reshape([int(size) for size in reversed(tensor.shape)])

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * self.weight(name)

    def logits(self, sequences):
        """Layer by layer over all sequences, so that each weight is unpacked once."""
        streams = [self.embedding[ids] for ids in sequences]
        for layer in range(self.layers):
            name = lambda part: f"blk.{layer}.{part}"
            names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
            weights = [self.weight(name(part)).T for part in names]
            streams = [self.block(x, weights, name) for x in streams]
        return [self.norm(x, "output_norm") @ self.output.T for x in streams]

    def block(self, x, weights, name):
        query, key, value, attn_output, gate, up, down = weights
        normed = self.norm(x, name("attn_norm"))
        heads = lambda weight, count: (normed @ weight).reshape(len(x), count, -1)
        group = self.heads // self.kv_heads
        q = self.rotate(heads(query, self.heads))
        k = np.repeat(self.rotate(heads(key, self.kv_heads)), group, axis=1)
        v = np.repeat(heads(value, self.kv_heads), group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
        scores += np.triu(np.full((len(x), len(x)), -np.inf), 1)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", shares, v).reshape(len(x), -1) @ attn_output
        normed = self.norm(x, name("ffn_norm"))
        gated = normed @ gate
        return x + (gated / (1 + np.exp(-gated)) * (normed @ up)) @ down

    def rotate(self, x):
        dims = x.shape[-1]
        angles = np.arange(len(x))[:, None, None] * self.rope_base ** (-np.arange(0, dims, 2) / dims)
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
        return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)


def main(model, folder):
    with open(f"{folder}/reference.json", encoding="utf-8") as file:
        reference = json.load(file)
    sequences = [ids[: reference["positions"]] for ids in reference["prompts"]]
    np.concatenate(Model(model).logits(sequences)).astype("<f4").tofile(f"{folder}/exact.f32")


main(*sys.argv[1:])
