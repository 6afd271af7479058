#include "lockstep/pretrained/language_model.h"

#include <string>
#include <string_view>
#include <utility>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/pretrained/internal/model_files.h"

namespace lockstep::inline v0 {
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

constexpr std::string_view kBlock = ".mlp.";

// transformers 5 keeps a layer's experts as two tensors, [experts, 2 inner, width] and [experts,
// width, inner], and writes one matrix per expert to the file; with save_original_format=False it
// writes the two tensors, and Mixtral's block under the name "mlp". Splits such a tensor into the
// experts' matrices, under the model's names; adds other tensors unchanged.
void add_named_as_here(const std::string& name, const at::Tensor& tensor, const LmConfig& config,
                       NamedTensors& kept) {
  const size_t at = name.find(kBlock);
  if (!config.has_experts() || at == std::string::npos) {
    kept.emplace_back(name, tensor);
    return;
  }
  const ExpertNames names = expert_names(config);
  const std::string block = name.substr(0, at + 1) + names.block + ".";
  const std::string rest = name.substr(at + kBlock.size());
  const int64_t inner = config.intermediate_size;
  const bool both = rest == "experts.gate_up_proj";
  if ((!both && rest != "experts.down_proj") || tensor.dim() != 3 ||
      tensor.size(0) != config.num_local_experts || (both && tensor.size(1) != 2 * inner)) {
    kept.emplace_back(block + rest, tensor);
    return;
  }
  for (int64_t e = 0; e < tensor.size(0); ++e) {
    const std::string expert = block + "experts." + std::to_string(e) + ".";
    const at::Tensor of = tensor.select(0, e);
    if (both) {
      kept.emplace_back(expert + names.gate + ".weight", of.narrow(0, 0, inner));
      kept.emplace_back(expert + names.up + ".weight", of.narrow(0, inner, inner));
    } else {
      kept.emplace_back(expert + names.down + ".weight", of);
    }
  }
}

// Returns them under the names of transformers' classes, with the stored dtype. Old files have the
// rotation's frequencies as a buffer; a tied head equals the embeddings, whether it is stored or
// not.
SlicedTensors read_lm_parameters(const fs::path& directory, const LmConfig& config) {
  SlicedTensors stored = internal::read_model_parts(directory);
  std::erase_if(stored.tensors, [&](const auto& entry) {
    return entry.first.ends_with("rotary_emb.inv_freq") ||
           (config.tie_word_embeddings && entry.first == "lm_head.weight");
  });
  if (!config.has_experts()) return stored;
  SlicedTensors kept;
  kept.metadata = stored.metadata;
  Safetensors renamed;
  for (auto& [name, tensor] : stored.tensors) {
    if (name.find(kBlock) != std::string::npos && tensor.complete() && tensor.slices.size() == 1)
      add_named_as_here(name, tensor.whole(), config, renamed.tensors);
    else
      kept.tensors.emplace(name, std::move(tensor));
  }
  kept.tensors.merge(SlicedTensors(renamed).tensors);
  return kept;
}

void check_vocabulary(const fs::path& directory, const tokenizers::LmTokenizer& tokenizer,
                      const LmConfig& config) {
  const int64_t tokens = tokenizer.vocabulary_size();
  if (tokens > config.vocab_size)
    throw CheckpointError(directory.string() + ": the vocabulary has " + std::to_string(tokens) +
                          " tokens, the model only " + std::to_string(config.vocab_size));
}

// Returns the result of `read`; turns its DataError into a CheckpointError.
template <typename Read>
auto as_checkpoint_errors(const Read& read) {
  try {
    return read();
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

}  // namespace

bool is_language_model(const fs::path& directory) {
  return is_lm_type(internal::model_type(directory));
}

TransformerLm lm_without_values(const fs::path& directory) {
  const LmConfig config = read_lm_config(directory);
  internal::check_described(directory, "layers.", config.num_hidden_layers,
                            parameter_count(config));
  return TransformerLm(config, LmOptions{.initial = InitialParameters::kNone});
}

std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)> lm_stored_parts(
    const fs::path& directory, const TransformerLm& model) {
  SlicedTensors stored = read_lm_parameters(directory, model->config());
  NamedTensors shapes;
  for (const auto& [name, tensor] : stored.tensors)
    shapes.emplace_back(name, at::empty(tensor.sizes, at::device(at::kMeta).dtype(at::kFloat)));
  check_module_state(*model, shapes, directory.string());
  return stored_parts(std::move(stored), module_state(*model), directory.string());
}

TransformerLm load_lm(const fs::path& directory) {
  TransformerLm model = lm_without_values(directory);
  const auto values_of = lm_stored_parts(directory, model);
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : module_state(*model)) values_of(name, 0, parameter.view(-1));
  return model;
}

LanguageModel load_language_model(const fs::path& directory) {
  return as_checkpoint_errors([&] {
    LanguageModel loaded{.model = nullptr, .tokenizer = tokenizers::LmTokenizer::load(directory)};
    loaded.model = load_lm(directory);
    check_vocabulary(directory, loaded.tokenizer, loaded.model->config());
    loaded.model->eval();
    const fs::path generation = directory / kGenerationConfig;
    if (fs::exists(generation))
      loaded.generation =
          generation_config_from_json(read_small_file(generation), generation.string());
    return loaded;
  });
}

void check_language_model(const fs::path& directory) {
  as_checkpoint_errors([&] {
    const auto tokenizer = tokenizers::LmTokenizer::load(directory);
    const TransformerLm model = lm_without_values(directory);
    lm_stored_parts(directory, model);
    check_vocabulary(directory, tokenizer, model->config());
  });
}

}  // namespace lockstep::inline v0
