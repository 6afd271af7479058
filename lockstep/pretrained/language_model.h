// A language model with its tokenizer, as a directory that transformers opens as well, and the other way
// round.
//
//   config.json            LmConfig
//   model.safetensors      or pytorch_model.bin; or several files of either, with .index.json
//   characters.json        or tokenizer.json, or vocab.json with merges.txt
//
// LlamaForCausalLM.from_pretrained(directory) opens ours.
#pragma once

#include <filesystem>
#include <vector>

#include "lockstep/model/transformer_lm.h"
#include "lockstep/tokenizers/lm_tokenizer.h"

namespace lockstep {

struct LanguageModel {
  TransformerLm model = nullptr;  // in evaluation mode
  tokenizers::LmTokenizer tokenizer;
};

// True if there is a config.json of a Llama in `directory`.
bool is_language_model(const std::filesystem::path& directory);

// Throws CheckpointError that names the file: missing, damaged, of another kind, a parameter that is
// missing or of another shape, a vocabulary larger than the model's, a tokenizer that is none of ours.
LanguageModel load_language_model(const std::filesystem::path& directory);

// The model alone, in float32 and in training mode. Throws CheckpointError.
TransformerLm load_lm(const std::filesystem::path& directory);

}  // namespace lockstep
