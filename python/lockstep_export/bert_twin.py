"""BertClassifier in PyTorch, by transformers' names, which lockstep/model/bert.h has."""
import torch
from torch import nn
from torch.nn import functional as F

ACTIVATIONS = {"gelu": F.gelu, "gelu_new": lambda x: F.gelu(x, approximate="tanh"), "relu": F.relu}


class Output(nn.Module):
    def __init__(self, inputs, width, epsilon):
        super().__init__()
        self.dense = nn.Linear(inputs, width)
        self.LayerNorm = nn.LayerNorm(width, eps=epsilon)

    def forward(self, x, residual):
        return self.LayerNorm(self.dense(x) + residual)


class Attention(nn.Module):
    def __init__(self, width, heads, epsilon):
        super().__init__()
        self.heads = heads
        self.self = nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value")})
        self.output = Output(width, width, epsilon)

    def forward(self, x, mask):
        q, k, v = (self.self[name](x).unflatten(2, (self.heads, -1)).transpose(1, 2) for name in ("query", "key", "value"))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.output(mixed.transpose(1, 2).flatten(2), x)


class Layer(nn.Module):
    def __init__(self, config, epsilon):
        super().__init__()
        width, inner = config["hidden_size"], config["intermediate_size"]
        self.activation = ACTIVATIONS[config.get("hidden_act", "gelu")]
        self.attention = Attention(width, config["num_attention_heads"], epsilon)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, inner)})
        self.output = Output(inner, width, epsilon)

    def forward(self, x, mask):
        x = self.attention(x, mask)
        return self.output(self.activation(self.intermediate["dense"](x)), x)


class Embeddings(nn.Module):
    def __init__(self, config, epsilon):
        super().__init__()
        width = config["hidden_size"]
        self.word_embeddings = nn.Embedding(config["vocab_size"], width)
        self.position_embeddings = nn.Embedding(config["max_position_embeddings"], width)
        self.token_type_embeddings = nn.Embedding(config.get("type_vocab_size", 2), width)
        self.LayerNorm = nn.LayerNorm(width, eps=epsilon)

    def forward(self, ids, types):
        positions = torch.arange(ids.shape[1], device=ids.device)
        return self.LayerNorm(self.word_embeddings(ids) + self.token_type_embeddings(types) + self.position_embeddings(positions))


class Encoder(nn.Module):
    def __init__(self, config, epsilon):
        super().__init__()
        self.embeddings = Embeddings(config, epsilon)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Layer(config, epsilon) for _ in range(config["num_hidden_layers"]))})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(config["hidden_size"], config["hidden_size"])})

    def forward(self, ids, mask, types):
        x = self.embeddings(ids, types)
        seen = mask.to(torch.bool)[:, None, None, :]
        for layer in self.encoder["layer"]:
            x = layer(x, seen)
        return torch.tanh(self.pooler["dense"](x[:, 0]))


class BertClassifier(nn.Module):
    def __init__(self, config, labels):
        super().__init__()
        self.bert = Encoder(config, config.get("layer_norm_eps", 1e-12))
        self.classifier = nn.Linear(config["hidden_size"], labels)

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.classifier(self.bert(input_ids, attention_mask, token_type_ids))
