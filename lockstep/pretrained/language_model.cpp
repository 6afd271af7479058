#include "lockstep/pretrained/language_model.h"

#include <string>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/pretrained/internal/model_files.h"

namespace lockstep {
namespace {
namespace fs = std::filesystem;

LmConfig read_lm_config(const fs::path& directory) {
  const std::string text = internal::read_model_config(directory);
  try {
    return lm_config_from_json(text, (directory / internal::kModelConfig).string());
  } catch (const InvalidArgument& error) {
    throw CheckpointError(error.what());
  }
}

// In the names of LlamaForCausalLM. Old files have the rotation's frequencies as a buffer; a tied head is
// the embeddings, whether it is written or not.
NamedTensors read_lm_parameters(const fs::path& directory, const LmConfig& config) {
  NamedTensors kept;
  for (const auto& [name, tensor] : internal::read_model_tensors(directory)) {
    if (name.ends_with("rotary_emb.inv_freq")) continue;
    if (config.tie_word_embeddings && name == "lm_head.weight") continue;
    kept.emplace_back(name, tensor.to(at::kFloat));
  }
  return kept;
}

}  // namespace

bool is_language_model(const fs::path& directory) {
  return internal::model_type(directory) == "llama";
}

TransformerLm load_lm(const fs::path& directory) {
  const LmConfig config = read_lm_config(directory);
  TransformerLm model(config, LmOptions{.initial = InitialParameters::kNone});
  set_module_state(*model, read_lm_parameters(directory, config), directory.string());
  return model;
}

LanguageModel load_language_model(const fs::path& directory) {
  try {
    LanguageModel loaded{.model = nullptr, .tokenizer = tokenizers::LmTokenizer::load(directory)};
    loaded.model = load_lm(directory);
    const int64_t tokens = loaded.tokenizer.vocabulary_size();
    const int64_t known = loaded.model->config().vocab_size;
    if (tokens > known)
      throw CheckpointError(directory.string() + ": the vocabulary has " + std::to_string(tokens) +
                            " tokens, the model only " + std::to_string(known));
    loaded.model->eval();
    return loaded;
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

}  // namespace lockstep
