// A language model with its tokenizer, as a directory that transformers opens as well, and the other way
// round.
//
//   config.json            LmConfig
//   model.safetensors      or pytorch_model.bin; or several files of either, with .index.json
//   characters.json        or tokenizer.json, or vocab.json with merges.txt
//   generation_config.json not needed
//
// LlamaForCausalLM.from_pretrained(directory) opens ours; of models with experts MixtralForCausalLM does, with a
// shared one Qwen2MoeForCausalLM. Experts may be a file's matrices one by one, or all of a layer in one tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "lockstep/model/transformer_lm.h"
#include "lockstep/pretrained/generation_config.h"
#include "lockstep/tokenizers/lm_tokenizer.h"

namespace lockstep {

struct LanguageModel {
  TransformerLm model = nullptr;  // in evaluation mode
  tokenizers::LmTokenizer tokenizer;
  GenerationConfig generation = {};
};

// True if there is a config.json of a Llama, a Mixtral or a Qwen2-MoE in `directory`.
bool is_language_model(const std::filesystem::path& directory);

// Throws CheckpointError that names the file: missing, damaged, of another kind, a parameter that is
// missing or of another shape, a vocabulary larger than the model's, a tokenizer that is none of ours.
LanguageModel load_language_model(const std::filesystem::path& directory);
// Throws what load_language_model() would, of names, shapes and vocabulary; makes no copy of the values.
void check_language_model(const std::filesystem::path& directory);

// The model alone, in float32 and in training mode. Throws CheckpointError.
TransformerLm load_lm(const std::filesystem::path& directory);

// load_lm() in two halves, for a model larger than a rank's memory. First the model of the directory's
// config.json, without values. Throws CheckpointError.
TransformerLm lm_without_values(const std::filesystem::path& directory);
// Then what gives it those: the elements [begin, begin + part.numel()) of the parameter of that name into
// `part`, 1-D and contiguous, converted to its type (Strategy::set_up_undrawn(), ZeroOptions::initial).
// The files are mapped, and stay so as long as it lives; a call reads its part alone. Throws
// CheckpointError as load_lm() does, before any value is read.
std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)> lm_stored_parts(
    const std::filesystem::path& directory, const TransformerLm& model);

}  // namespace lockstep
