"""TransformerLm in PyTorch, by the names of transformers' Llama, Mixtral and Qwen2-MoE, which lockstep/model/ has."""
import math

import torch
from torch import nn
from torch.nn import functional as F


def frequencies(rope, width):
    plain = (torch.tensor(rope["theta"]) ** (torch.arange(0, width, 2).float() / width)).reciprocal()
    if rope["type"] == "default":
        return plain
    if rope["type"] == "linear":
        return plain / rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    share = ((rope["original_max_position_embeddings"] / (2 * math.pi / plain) - low) / (high - low)).clamp(0, 1)
    return (1 - share) * (plain / rope["factor"]) + share * plain


def turned(x, cosines, sines):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cosines - b * sines, b * cosines + a * sines), -1)


class RmsNorm(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon))


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = self.width = config["head_dim"]
        heads, keys, bias = config["num_attention_heads"], config["num_key_value_heads"], config["attention_bias"]
        self.group = heads // keys
        self.q_proj = nn.Linear(config["hidden_size"], heads * width, bias=bias)
        self.k_proj = nn.Linear(config["hidden_size"], keys * width, bias=bias)
        self.v_proj = nn.Linear(config["hidden_size"], keys * width, bias=bias)
        self.o_proj = nn.Linear(heads * width, config["hidden_size"], bias=bias)

    def forward(self, x, cosines, sines):
        q, k, v = (project(x).unflatten(2, (-1, self.width)).transpose(1, 2) for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k = turned(q, cosines, sines), turned(k, cosines, sines)
        if self.group > 1:
            k, v = k.repeat_interleave(self.group, 1), v.repeat_interleave(self.group, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width, inner, names=("gate_proj", "up_proj", "down_proj"), bias=False):
        super().__init__()
        self.names = names
        for name, shape in zip(names, ((width, inner), (width, inner), (inner, width))):
            self.add_module(name, nn.Linear(*shape, bias=bias))

    def forward(self, x):
        gate, up, down = (getattr(self, name) for name in self.names)
        return down(F.silu(gate(x)) * up(x))


class SparseMlp(nn.Module):
    """Every expert computes every token here, and shares that a token has not chosen are 0: more work than where rows are sorted, the same numbers, and
    a graph that does not depend on what routers choose."""

    def __init__(self, config, shared):
        super().__init__()
        width = config["hidden_size"]
        names = ("gate_proj", "up_proj", "down_proj") if shared else ("w1", "w3", "w2")
        self.count = config["num_local_experts"]
        self.chosen = config["num_experts_per_tok"]
        self.capacity = config["capacity_factor"]
        self.gate = nn.Linear(width, self.count, bias=False)
        self.experts = nn.ModuleList(Mlp(width, config["intermediate_size"], names) for _ in range(self.count))
        if shared:
            self.shared_expert = Mlp(width, config["shared_expert_intermediate_size"])
            self.shared_expert_gate = nn.Linear(width, 1, bias=False)
        self.shared = shared

    def kept(self, chosen):
        """1 where an expert has room for a choice of [tokens, chosen]: for all first ones in the order of tokens, then for second ones."""
        order = F.one_hot(chosen.t().reshape(-1), self.count)
        before = ((order.cumsum(0) - order) * order).sum(1)
        room = self.capacity * (order.shape[0] / self.count)
        return (before < room).view(self.chosen, -1).t()

    def forward(self, x):
        rows = x.flatten(0, 1)
        values, chosen = F.softmax(self.gate(rows), -1).topk(self.chosen, -1)
        weights = values / values.sum(-1, keepdim=True)
        if self.capacity:
            weights = weights * self.kept(chosen)
        shares = torch.zeros_like(rows[:, :1]).expand(-1, self.count).scatter(1, chosen, weights)
        made = sum(shares[:, i:i + 1] * expert(rows) for i, expert in enumerate(self.experts))
        if self.shared:
            made = made + torch.sigmoid(self.shared_expert_gate(rows)) * self.shared_expert(rows)
        return made.view(x.shape)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, epsilon, kind = config["hidden_size"], config["rms_norm_eps"], config["model_type"]
        self.input_layernorm = RmsNorm(hidden, epsilon)
        self.post_attention_layernorm = RmsNorm(hidden, epsilon)
        self.self_attn = Attention(config)
        self.block = "block_sparse_moe" if kind == "mixtral" else "mlp"
        self.add_module(self.block, Mlp(hidden, config["intermediate_size"], bias=config["mlp_bias"]) if kind == "llama" else
                        SparseMlp(config, kind == "qwen2_moe"))

    def forward(self, x, cosines, sines):
        x = x + self.self_attn(self.input_layernorm(x), cosines, sines)
        return x + getattr(self, self.block)(self.post_attention_layernorm(x))


class TransformerLm(nn.Module):
    """Of what lm_config.read() gives."""

    def __init__(self, config):
        super().__init__()
        hidden = config["hidden_size"]
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(config["vocab_size"], hidden),
            "layers": nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"])),
            "norm": RmsNorm(hidden, config["rms_norm_eps"]),
        })
        self.lm_head = None if config["tie_word_embeddings"] else nn.Linear(hidden, config["vocab_size"], bias=False)
        self.register_buffer("frequencies", frequencies(config["rope"], config["head_dim"]), persistent=False)

    def forward(self, input_ids):
        angles = torch.outer(torch.arange(input_ids.shape[1], device=input_ids.device).float(), self.frequencies)
        cosines, sines = angles.cos(), angles.sin()
        x = self.model["embed_tokens"](input_ids)
        for layer in self.model["layers"]:
            x = layer(x, cosines, sines)
        x = self.model["norm"](x)
        return F.linear(x, self.model["embed_tokens"].weight) if self.lm_head is None else self.lm_head(x)
