// A language model with its tokenizer, as a directory that transformers can open, and conversely.
//
//   config.json            LmConfig
//   model.safetensors      or pytorch_model.bin; or several files of either, with .index.json
//   characters.json        or tokenizer.json, or vocab.json with merges.txt
//   generation_config.json not needed
//
// LlamaForCausalLM.from_pretrained(directory) opens our directories; models with experts are opened
// by MixtralForCausalLM, and those with a shared expert by Qwen2MoeForCausalLM. A file may hold the
// experts' matrices one by one, or all those of a layer in one tensor.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "lockstep/core/export.h"
#include "lockstep/model/transformer_lm.h"
#include "lockstep/pretrained/generation_config.h"
#include "lockstep/tokenizers/lm_tokenizer.h"

namespace lockstep::inline v0 {

// A model with its tokenizer and settings.
struct LanguageModel {
  TransformerLm model = nullptr;  // in evaluation mode
  tokenizers::LmTokenizer tokenizer;
  GenerationConfig generation = {};
};

// Whether `directory` has the config.json of a Llama, a Mixtral or a Qwen2-MoE.
LOCKSTEP_API bool is_language_model(const std::filesystem::path& directory);

// Throws CheckpointError that names the file if a file is missing, damaged or of another kind, if a
// parameter is missing or has another shape, if the vocabulary is larger than the model's, and if
// the tokenizer is of an unsupported kind.
LOCKSTEP_API LanguageModel load_language_model(const std::filesystem::path& directory);
// Throws the errors of load_language_model() for names, shapes and vocabulary, without copying the
// values.
LOCKSTEP_API void check_language_model(const std::filesystem::path& directory);

// The model without the tokenizer, in float32 and in training mode.
// Throws: CheckpointError.
LOCKSTEP_API TransformerLm load_lm(const std::filesystem::path& directory);

// The first half of load_lm(), for a model larger than a rank's memory: makes the model of the
// directory's config.json without values.
// Throws: CheckpointError.
LOCKSTEP_API TransformerLm lm_without_values(const std::filesystem::path& directory);
// The second half: returns a function that copies the elements [begin, begin + part.numel()) of the
// named parameter into `part`, which is 1-D and contiguous, and converts them to its dtype
// (Strategy::set_up_undrawn(), ZeroOptions::initial). The files stay mapped as long as the function
// lives; a call reads only its part.
// Throws: CheckpointError as load_lm() does, before any value is read.
LOCKSTEP_API std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)>
lm_stored_parts(const std::filesystem::path& directory, const TransformerLm& model);

}  // namespace lockstep::inline v0
