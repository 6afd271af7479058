#include "lockstep/pretrained/text_model.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/pretrained/internal/model_files.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

constexpr const char* kPreparation = "lockstep.json";
constexpr std::string_view kBody = "bert.", kHead = "classifier.";

BertConfig read_config(const fs::path& directory) {
  const std::string text = internal::read_model_config(directory);
  try {
    return bert_config_from_json(text, (directory / internal::kModelConfig).string());
  } catch (const InvalidArgument& error) {
    throw CheckpointError(error.what());
  }
}

TextPreparation read_preparation(const fs::path& directory, const BertConfig& config) {
  TextPreparation preparation{.max_length = config.max_position_embeddings};
  const fs::path file = directory / kPreparation;
  if (!fs::exists(file)) return preparation;
  const auto json =
      nlohmann::ordered_json::parse(read_small_file(file), nullptr, /*allow_exceptions=*/false);
  const auto length = json.is_object() ? json.find("max_length") : json.end();
  if (!json.is_object() || length == json.end() || !length->is_number_integer() || *length < 2 ||
      *length > config.max_position_embeddings || !json.contains("preprocessing"))
    throw CheckpointError(file.string() +
                          ": is not {\"preprocessing\": {...}, \"max_length\": 2 to " +
                          std::to_string(config.max_position_embeddings) + "}");
  preparation.max_length = length->get<int64_t>();
  try {
    preparation.preprocessing = data::text_preprocessing(json["preprocessing"]);
  } catch (const DataError& error) {
    throw CheckpointError(file.string() + ": " + error.what());
  }
  return preparation;
}

// The parameters in the names of BertForSequenceClassification. A bare BertModel's lack "bert.";
// old files have positions as a buffer, and heads that a classifier does not use.
NamedTensors read_parameters(const fs::path& directory) {
  const NamedTensors all = internal::read_model_tensors(directory);
  const bool bare = std::none_of(all.begin(), all.end(),
                                 [](const auto& entry) { return entry.first.starts_with(kBody); });
  NamedTensors kept;
  for (const auto& [name, tensor] : all) {
    std::string full = bare ? std::string(kBody) + name : name;
    // TensorFlow's names for a norm's scale and shift, in the first of these files.
    for (const auto& [old, now] : {std::pair{".gamma", ".weight"}, {".beta", ".bias"}}) {
      if (full.ends_with(old))
        full = full.substr(0, full.size() - std::string_view(old).size()) + now;
    }
    if (full.ends_with("position_ids") || !(full.starts_with(kBody) || full.starts_with(kHead)))
      continue;
    kept.emplace_back(std::move(full), tensor.to(at::kFloat));
  }
  return kept;
}

void check_vocabulary(const fs::path& directory, const tokenizers::BertTokenizer& tokenizer,
                      const BertConfig& config) {
  if (tokenizer.vocabulary_size() <= config.vocab_size) return;
  throw CheckpointError(directory.string() + ": the vocabulary has " +
                        std::to_string(tokenizer.vocabulary_size()) + " tokens, the model only " +
                        std::to_string(config.vocab_size));
}

}  // namespace

bool is_text_model(const fs::path& directory) {
  return internal::model_type(directory) == "bert";
}

TextModel load_text_model(const fs::path& directory) {
  const BertConfig config = read_config(directory);
  try {
    TextModel loaded{.tokenizer = tokenizers::BertTokenizer::load(directory),
                     .preparation = read_preparation(directory, config)};
    check_vocabulary(directory, loaded.tokenizer, config);
    loaded.model = BertClassifier(config, InitialParameters::kNone);
    set_module_state(*loaded.model, read_parameters(directory), directory.string());
    loaded.model->eval();
    return loaded;
  } catch (const DataError& error) {
    throw CheckpointError(error.what());
  }
}

BertClassifier load_bert(const fs::path& directory, const std::vector<std::string>& labels,
                         std::vector<std::string>* drawn) {
  BertConfig config = read_config(directory);
  const bool same_classes = config.labels == labels;
  config.labels = labels;
  BertClassifier model(config);
  NamedTensors parameters = read_parameters(directory);
  NamedTensors complete;
  for (const auto& [name, own] : module_state(*model)) {
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    const bool head = name.starts_with(kHead) || name.starts_with("bert.pooler.");
    const bool usable = found != parameters.end() && (!name.starts_with(kHead) || same_classes ||
                                                      found->second.sizes() == own.sizes());
    if (usable) {
      complete.push_back(*found);
    } else if (head) {
      complete.emplace_back(name, own.clone());
      if (drawn != nullptr) drawn->push_back(name);
    }
  }
  set_module_state(*model, complete, directory.string());
  return model;
}

std::map<std::string, std::string> text_model_files(const tokenizers::BertTokenizer& tokenizer,
                                                    const TextPreparation& preparation) {
  auto files = tokenizer.files();
  const nlohmann::ordered_json json{{"preprocessing", data::json_of(preparation.preprocessing)},
                                    {"max_length", preparation.max_length}};
  files[kPreparation] = json.dump(2) + "\n";
  return files;
}

}  // namespace lockstep
