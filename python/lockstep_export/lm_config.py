"""Reads the config.json of a language model as lockstep/model/lm_config.cpp does: its defaults, and its refusals of what models here lack."""
import json

LLAMA = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 0,
         "head_dim": 0, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False, "attention_bias": False,
         "mlp_bias": False, "num_local_experts": 0, "num_experts_per_tok": 2, "capacity_factor": 0.0, "shared_expert_intermediate_size": 0}
# What LlamaConfig, MixtralConfig and Qwen2MoeConfig have where a file is silent.
DEFAULTS = {
    "llama": LLAMA,
    "mixtral": {**LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 4096 * 32, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
                "num_local_experts": 8},
    "qwen2_moe": {**LLAMA, "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 1408, "num_hidden_layers": 24, "num_attention_heads": 16,
                  "num_key_value_heads": 16, "max_position_embeddings": 32768, "num_local_experts": 60, "num_experts_per_tok": 4,
                  "shared_expert_intermediate_size": 5632},
}


class ConfigError(Exception):
    """One line that begins with the key."""


def _shown(value):
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:60] + "..."


class _Members:
    """Of a JSON object, where null is as good as absent."""

    def __init__(self, members, place=""):
        if not isinstance(members, dict):
            raise ConfigError(f"{place} is {_shown(members)}; give a JSON object")
        self.members, self.place = members, place + "." if place else ""

    def has(self, key):
        return self.members.get(key) is not None

    def refuse(self, key, takes):
        raise ConfigError(f"{self.place}{key} {f'is {_shown(self.members[key])}' if self.has(key) else 'is missing'}; give {takes}")

    def read(self, key, fallback, fits, takes):
        if not self.has(key):
            return fallback
        if not fits(self.members[key]):
            self.refuse(key, takes)
        return self.members[key]

    def flag(self, key, fallback):
        return self.read(key, fallback, lambda value: isinstance(value, bool), "true or false")

    def number(self, key, fallback):
        return float(self.read(key, fallback, lambda value: isinstance(value, (int, float)) and not isinstance(value, bool), "a number"))

    def whole(self, key, fallback):
        return int(self.read(key, fallback, lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1, "a whole number"))

    def text(self, key, fallback):
        return self.read(key, fallback, lambda value: isinstance(value, str), "a text")


def _read_rope(file, config):
    """Of the rotation: in "rope_parameters", or spread over the file as before transformers 5."""
    key = "rope_parameters" if file.has("rope_parameters") else "rope_scaling"
    rope = _Members(file.members[key] if file.has(key) else {}, key)
    theta = rope.number("rope_theta", file.number("rope_theta", config["rope_theta"]))
    type_key = "rope_type" if rope.has("rope_type") else "type"
    kind = rope.text(type_key, "default")
    if kind not in ("default", "linear", "llama3"):
        rope.refuse(type_key, "default, linear or llama3, which are known here")
    if rope.number("partial_rotary_factor", 1) != 1:
        raise ConfigError(f"{key}.partial_rotary_factor is set; heads are rotated whole here")
    read = {"type": kind, "theta": theta}
    wanted = {"default": (), "linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}[kind]
    for name in wanted:
        read[name] = rope.number(name, 0)
        if not read[name] > 0:
            rope.refuse(name, "a number above 0")
    if kind == "llama3":
        read["original_max_position_embeddings"] = rope.whole("original_max_position_embeddings", config["max_position_embeddings"])
    return read


def _read_experts(file, kind, config):
    """Of the experts; and what these two kinds may have and models here do not."""
    config["num_experts_per_tok"] = file.whole("num_experts_per_tok", config["num_experts_per_tok"])
    config["capacity_factor"] = file.number("capacity_factor", config["capacity_factor"])
    count = "num_local_experts" if kind == "mixtral" else "num_experts"
    config["num_local_experts"] = file.whole(count, config["num_local_experts"])
    if config["num_local_experts"] < 1:
        file.refuse(count, "1 or more")
    if kind == "mixtral":
        if file.has("sliding_window"):
            file.refuse("sliding_window", "null: tokens see all before them here")
        if file.number("router_jitter_noise", 0) != 0:
            file.refuse("router_jitter_noise", "0: routers are not disturbed here")
        return
    for key, name in (("intermediate_size", "moe_intermediate_size"), ("shared_expert_intermediate_size", "shared_expert_intermediate_size")):
        config[key] = file.whole(name, config[key])
    if not file.flag("norm_topk_prob", False):
        file.refuse("norm_topk_prob", "true: a token's experts have shares that sum to 1 here")
    if file.flag("qkv_bias", True):
        file.refuse("qkv_bias", "false, which is known here")
    if file.flag("use_sliding_window", False):
        file.refuse("use_sliding_window", "false: tokens see all before them here")
    if file.whole("decoder_sparse_step", 1) != 1:
        file.refuse("decoder_sparse_step", "1: every layer has experts here")
    if file.has("mlp_only_layers") and file.members["mlp_only_layers"] != []:
        file.refuse("mlp_only_layers", "empty: every layer has experts here")
    if config["shared_expert_intermediate_size"] == 0:
        file.refuse("shared_expert_intermediate_size", "above 0")


def _check(config):
    for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "head_dim"):
        if config[key] < 1:
            raise ConfigError(f"{key} is {config[key]}; it must be 1 or more")
    heads, keys, rope = config["num_attention_heads"], config["num_key_value_heads"], config["rope"]
    if config["hidden_size"] % heads:
        raise ConfigError(f"hidden_size {config['hidden_size']} does not divide by {heads} attention heads")
    if config["head_dim"] % 2:
        raise ConfigError(f"head_dim is {config['head_dim']}; it must be even, since columns are rotated in pairs")
    if heads % keys:
        raise ConfigError(f"{heads} attention heads do not divide by num_key_value_heads {keys}")
    if not config["rms_norm_eps"] > 0 or not rope["theta"] > 0:
        raise ConfigError("rms_norm_eps and rope_theta must be above 0")
    if rope["type"] == "llama3" and not rope["high_freq_factor"] > rope["low_freq_factor"]:
        raise ConfigError("high_freq_factor must be above low_freq_factor")
    if rope.get("original_max_position_embeddings", 1) < 1:
        raise ConfigError("original_max_position_embeddings must be above 0")
    experts = config["num_local_experts"]
    if experts and not 1 <= config["num_experts_per_tok"] <= experts:
        raise ConfigError(f"num_experts_per_tok is {config['num_experts_per_tok']}; give 1 to the number of experts, {experts}")
    if not config["capacity_factor"] >= 0:
        raise ConfigError(f"capacity_factor is {config['capacity_factor']}; give 0 or more")
    if config["shared_expert_intermediate_size"] < 0:
        raise ConfigError(f"shared_expert_intermediate_size is {config['shared_expert_intermediate_size']}; it must be 1 or more")


def read(members):
    """The configuration that a config.json means: the keys of LLAMA, "model_type", and "rope", which has type, theta and what the type takes.

    Raises ConfigError for what lockstep/model/lm_config.cpp refuses."""
    file = _Members(members)
    kind = file.text("model_type", "llama")
    if kind not in DEFAULTS:
        file.refuse("model_type", "a config.json of Llama, Mixtral or Qwen2-MoE")
    if file.text("hidden_act", "silu") != "silu":
        file.refuse("hidden_act", "'silu', which is known here")
    config = {**DEFAULTS[kind], "model_type": kind}
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"):
        config[key] = file.whole(key, config[key])
    if kind != "qwen2_moe":  # whose own is that of layers without experts
        config["intermediate_size"] = file.whole("intermediate_size", config["intermediate_size"])
    config["rms_norm_eps"] = file.number("rms_norm_eps", config["rms_norm_eps"])
    for key in ("tie_word_embeddings",) + (("attention_bias", "mlp_bias") if kind == "llama" else ()):
        config[key] = file.flag(key, config[key])
    if kind != "llama":
        _read_experts(file, kind, config)
    config["num_key_value_heads"] = config["num_key_value_heads"] or config["num_attention_heads"]
    if config["num_attention_heads"] > 0:
        config["head_dim"] = config["head_dim"] or config["hidden_size"] // config["num_attention_heads"]
    config["rope"] = _read_rope(file, config)
    _check(config)
    return config
