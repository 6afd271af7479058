#include "lockstep/pretrained/text_model.h"

#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/small_file.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/pretrained/internal/model_files.h"

namespace lockstep::inline v0 {
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

// The parameters under the names of BertForSequenceClassification. A plain BertModel's names lack
// "bert."; old files have positions as a buffer, and heads that a classifier does not use.
NamedTensors read_parameters(const fs::path& directory) {
  const NamedTensors all = internal::read_model_tensors(directory);
  const bool bare = std::none_of(all.begin(), all.end(),
                                 [](const auto& entry) { return entry.first.starts_with(kBody); });
  NamedTensors kept;
  for (const auto& [name, tensor] : all) {
    std::string full = bare ? std::string(kBody) + name : name;
    // The first of these files have TensorFlow's names for a norm's scale and shift.
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

constexpr std::string_view kLayers = "encoder.layer.";

// Whether these are default names: "0", "1", ..., or transformers' LABEL_0, LABEL_1, ...
bool are_numbers(const std::vector<std::string>& labels) {
  for (size_t i = 0; i < labels.size(); ++i) {
    const std::string number = std::to_string(i);
    if (labels[i] != number && labels[i] != "LABEL_" + number) return false;
  }
  return true;
}

std::string in_small_letters(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

// The row of each label in a head for the classes `stored`: found by name, if need be
// ignoring case, or by number if one side has default names. nullopt if the classes are others.
std::optional<std::vector<int64_t>> head_rows(const std::vector<std::string>& stored,
                                              const std::vector<std::string>& labels) {
  if (stored.size() != labels.size()) return std::nullopt;
  std::vector<int64_t> rows(labels.size());
  std::iota(rows.begin(), rows.end(), 0);
  if (stored == labels || are_numbers(stored) || are_numbers(labels)) return rows;
  for (const auto& spelt : {+[](std::string text) { return text; }, &in_small_letters}) {
    std::map<std::string, int64_t> row_of;
    for (size_t i = 0; i < stored.size(); ++i)
      row_of.emplace(spelt(stored[i]), static_cast<int64_t>(i));
    std::set<int64_t> taken;
    for (size_t i = 0; i < labels.size(); ++i) {
      const auto row = row_of.find(spelt(labels[i]));
      if (row == row_of.end() || !taken.insert(row->second).second) break;
      rows[i] = row->second;
    }
    if (taken.size() == labels.size()) return rows;
  }
  return std::nullopt;
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
    internal::check_described(directory, kLayers, config.num_hidden_layers,
                              parameter_count(config));
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
  const std::vector<std::string> stored = std::exchange(config.labels, {});
  internal::check_described(directory, kLayers, config.num_hidden_layers, parameter_count(config));
  config.labels = labels;
  const auto rows = head_rows(stored, labels);
  BertClassifier model(config);
  NamedTensors parameters = read_parameters(directory);
  NamedTensors complete;
  for (const auto& [name, own] : module_state(*model)) {
    const auto found = std::find_if(parameters.begin(), parameters.end(),
                                    [&](const auto& entry) { return entry.first == name; });
    const bool head = name.starts_with(kHead),
               same_size = found != parameters.end() && found->second.sizes() == own.sizes();
    if (found != parameters.end() && (!head || (rows && (same_size || stored == labels)))) {
      complete.push_back(*found);
      if (head && same_size)
        complete.back().second = found->second.index_select(0, at::tensor(*rows, at::kLong));
    } else if (head || name.starts_with("bert.pooler.")) {
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

}  // namespace lockstep::inline v0
