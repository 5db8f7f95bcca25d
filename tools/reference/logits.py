"""Computes the logits of small GGUF models with the package transformers in 64-bit arithmetic.

usage: logits.py FOLDER_OF_MODELS FOLDER_OF_GOLDENS

A model's file is read with the package gguf, its weights are put into the class that transformers has for the
architecture, under the names that transformers gives them, and undone from what converters do to them. The goldens
hold the tokens and the logits behind some of their positions.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy
import torch
import transformers

TOKENS = 48
POSITIONS = [0, 21, 47]
VALUES = 5


class File:
    """The keys and tensors of one file."""

    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.keys = {name: field.contents() for name, field in reader.fields.items()}
        self.tensors = {
            tensor.name: torch.from_numpy(
                gguf.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float64)
            ).reshape([int(length) for length in reversed(tensor.shape)])
            for tensor in reader.tensors
        }
        self.architecture = self.keys["general.architecture"]

    def key(self, name, default=None):
        return self.keys.get(f"{self.architecture}.{name}", default)

    def layers(self):
        return range(self.key("block_count"))


def common(file, **more):
    """What all configurations have."""
    heads = file.key("attention.head_count")
    kv_heads = file.key("attention.head_count_kv")
    return dict(
        hidden_size=file.key("embedding_length"),
        intermediate_size=file.key("feed_forward_length"),
        num_hidden_layers=file.key("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=max(kv_heads) if isinstance(kv_heads, list) else kv_heads,
        head_dim=file.key("attention.key_length"),
        vocab_size=file.tensors["token_embd.weight"].shape[0],
        rms_norm_eps=file.key("attention.layer_norm_rms_epsilon"),
        rope_theta=file.key("rope.freq_base", 10000.0),
        max_position_embeddings=file.key("context_length"),
        tie_word_embeddings="output.weight" not in file.tensors,
        pad_token_id=0,
        attn_implementation="eager",
        **more,
    )


NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def state(file, names=NAMES, output_norm=("norm", "output_norm")):
    """The tensors under the names of transformers, as far as those differ by a table."""
    result = {"model.embed_tokens.weight": file.tensors["token_embd.weight"]}
    result["lm_head.weight"] = file.tensors.get("output.weight", file.tensors["token_embd.weight"])
    for name, tensor in file.tensors.items():
        if name.startswith("blk."):
            _, number, *parts, kind = name.split(".")
            part = ".".join(parts)
            if part in names:
                result[f"model.layers.{number}.{names[part]}.{kind}"] = tensor
    theirs, ours = output_norm
    result[f"model.{theirs}.weight"] = file.tensors[f"{ours}.weight"]
    return result


def in_halves(file, tensors):
    """Undoes the order of neighbours in which converters write the rows of query and key of some architectures."""
    dim = file.key("attention.key_length")
    for name in [name for name in tensors if "q_proj.weight" in name or "k_proj.weight" in name]:
        rows = tensors[name]
        heads = rows.reshape(rows.shape[0] // dim, dim // 2, 2, rows.shape[1])
        tensors[name] = heads.transpose(1, 2).reshape(rows.shape)
    return tensors


def scaling(file, **more):
    """The scaling of the rotation, as transformers calls it."""
    kind = file.key("rope.scaling.type")
    if kind is None:
        return None
    found = {"rope_type": kind, "factor": file.key("rope.scaling.factor"), **more}
    if kind == "yarn":
        found["original_max_position_embeddings"] = file.key("rope.scaling.original_context_length")
    if kind == "longrope":
        for length in ["short", "long"]:
            found[f"{length}_factor"] = file.tensors[f"rope_factors_{length}.weight"].tolist()
    return found


def llama(file):
    config = transformers.LlamaConfig(**common(file, rope_scaling=scaling(file)))
    config.original_max_position_embeddings = file.key("rope.scaling.original_context_length")
    model = transformers.LlamaForCausalLM(config)
    if "rope_freqs.weight" in file.tensors:
        model.model.rotary_emb.inv_freq /= file.tensors["rope_freqs.weight"]
    return model, in_halves(file, state(file))


def qwen2(file):
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**common(file))), state(file)


def qwen3(file):
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**common(file))), state(file)


def qwen3moe(file):
    config = transformers.Qwen3MoeConfig(
        **common(file),
        moe_intermediate_size=file.key("expert_feed_forward_length"),
        num_experts=file.key("expert_count"),
        num_experts_per_tok=file.key("expert_used_count"),
        norm_topk_prob=True,
    )
    tensors = state(file, NAMES | {"ffn_gate_inp": "mlp.gate"})
    for number in file.layers():
        for part in ["gate", "up", "down"]:
            for expert, tensor in enumerate(file.tensors[f"blk.{number}.ffn_{part}_exps.weight"]):
                tensors[f"model.layers.{number}.mlp.experts.{expert}.{part}_proj.weight"] = tensor
    return transformers.Qwen3MoeForCausalLM(config), tensors


def smollm3(file):
    config = transformers.SmolLM3Config(**common(file, no_rope_layer_interval=4))
    return transformers.SmolLM3ForCausalLM(config), in_halves(file, state(file))


def gemma3(file):
    config = transformers.Gemma3TextConfig(
        **common(file, rope_scaling=scaling(file)),
        query_pre_attn_scalar=file.key("attention.key_length"),
        sliding_window=file.key("attention.sliding_window"),
        layer_types=["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in file.layers()],
        rope_local_base_freq=10000.0,
        hidden_activation="gelu_pytorch_tanh",
    )
    names = NAMES | {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
    tensors = state(file, names)
    # Its norms multiply with 1 + weight.
    plain = {name: tensor - 1 if "norm" in name else tensor for name, tensor in tensors.items()}
    return transformers.Gemma3ForCausalLM(config), plain


def gpt_oss(file):
    config = transformers.GptOssConfig(
        **common(file, rope_scaling=scaling(file, truncate=False)),
        num_local_experts=file.key("expert_count"),
        num_experts_per_tok=file.key("expert_used_count"),
        sliding_window=file.key("attention.sliding_window"),
        layer_types=["full_attention" if (i + 1) % 2 == 0 else "sliding_attention" for i in file.layers()],
    )
    names = NAMES | {"post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.router"}
    tensors = state(file, names)
    for number in file.layers():
        experts = f"model.layers.{number}.mlp.experts"
        part = lambda name: file.tensors[f"blk.{number}.ffn_{name}_exps.weight"].transpose(1, 2)
        bias = lambda name: file.tensors[f"blk.{number}.ffn_{name}_exps.bias"]
        # Gates and values alternate.
        tensors[f"{experts}.gate_up_proj"] = torch.stack([part("gate"), part("up")], dim=-1).flatten(-2)
        tensors[f"{experts}.gate_up_proj_bias"] = torch.stack([bias("gate"), bias("up")], dim=-1).flatten(-2)
        tensors[f"{experts}.down_proj"] = part("down")
        tensors[f"{experts}.down_proj_bias"] = bias("down")
        tensors[f"model.layers.{number}.self_attn.sinks"] = file.tensors[f"blk.{number}.attn_sinks.weight"]
    return transformers.GptOssForCausalLM(config), tensors


def lfm2(file):
    heads = file.key("attention.head_count_kv")
    config = transformers.Lfm2Config(
        **common(file),
        norm_eps=file.key("attention.layer_norm_rms_epsilon"),
        block_auto_adjust_ff_dim=False,
        conv_L_cache=file.key("shortconv.l_cache"),
        layer_types=["full_attention" if count else "conv" for count in heads],
    )
    names = NAMES | {
        "attn_norm": "operator_norm",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.conv": "conv.conv",
        "shortconv.out_proj": "conv.out_proj",
    }
    tensors = state(file, names, ("embedding_norm", "token_embd_norm"))
    for name in [name for name in tensors if name.endswith("conv.conv.weight")]:
        tensors[name] = tensors[name].unsqueeze(1)
    return transformers.Lfm2ForCausalLM(config), tensors


def logits(path):
    file = File(path)
    model, tensors = globals()[file.architecture.replace("-", "_")](file)
    model = model.double().eval()
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not missing and not unexpected, (path, missing, unexpected)
    tokens = [(31 * index + 17 * index * index + 5) % 256 for index in range(TOKENS)]
    with torch.no_grad():
        result = model(torch.tensor([tokens])).logits[0]
    rows = [[float(f"{value:.{VALUES}g}") for value in result[position].tolist()] for position in POSITIONS]
    return {"tokens": tokens, "positions": POSITIONS, "logits": rows}


def main():
    models, goldens = (Path(argument) for argument in sys.argv[1:])
    transformers.logging.set_verbosity_error()
    for path in sorted(models.glob("*.gguf")):
        golden = json.dumps(logits(path), separators=(",", ":")).replace("],", "],\n")
        (goldens / f"{path.stem}.json").write_text(golden + "\n")
        print(path.stem, file=sys.stderr)


main()
