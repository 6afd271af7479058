#include "lockstep/model/bert_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/json_object.h"
#include "lockstep/core/text.h"
#include "lockstep/model/internal/config_checks.h"

namespace lockstep::inline v0 {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// id2label maps "0", "1", ... to names; num_labels alone gives them transformers' names.
std::vector<std::string> read_labels(const JsonObject& file) {
  constexpr int64_t kMost = 1'000'000;
  const bool named = file.has("id2label") && file.find("id2label")->is_object();
  const int64_t count = named ? static_cast<int64_t>(file.find("id2label")->size())
                              : file.whole_or(2, "num_labels", 1, kMost);
  if (count < 1 || count > kMost)
    file.say("id2label", "names " + std::to_string(count) + " labels");
  std::vector<std::string> labels;
  for (int64_t i = 0; i < count; ++i) {
    labels.push_back("LABEL_" + std::to_string(i));
    if (named) labels.back() = file.object("id2label").text(std::to_string(i));
  }
  return labels;
}

}  // namespace

const std::vector<std::string>& bert_preset_names() {
  static const std::vector<std::string> names{"mini", "base"};
  return names;
}

BertConfig bert_preset(std::string_view name) {
  if (name == "base") return {};
  if (name == "mini")
    return {.hidden_size = 256,
            .num_hidden_layers = 4,
            .num_attention_heads = 4,
            .intermediate_size = 1024};
  throw InvalidArgument("there is no BERT of size '" + std::string(name) + "'; choose " +
                        joined(bert_preset_names(), " or ") + ", or give a directory");
}

void check(const BertConfig& config) {
  internal::check_size("BertConfig", "vocab_size", config.vocab_size);
  internal::check_size("BertConfig", "hidden_size", config.hidden_size);
  internal::check_size("BertConfig", "num_hidden_layers", config.num_hidden_layers);
  internal::check_size("BertConfig", "num_attention_heads", config.num_attention_heads);
  internal::check_size("BertConfig", "intermediate_size", config.intermediate_size);
  internal::check_size("BertConfig", "max_position_embeddings", config.max_position_embeddings);
  internal::check_size("BertConfig", "type_vocab_size", config.type_vocab_size);
  internal::check_size("BertConfig", "the number of labels",
                       static_cast<int64_t>(config.labels.size()));
  if (config.hidden_size % config.num_attention_heads != 0)
    throw InvalidArgument("BertConfig: hidden_size " + std::to_string(config.hidden_size) +
                          " does not divide by " + std::to_string(config.num_attention_heads) +
                          " attention heads");
  if (config.pad_token_id < 0 || config.pad_token_id >= config.vocab_size)
    throw InvalidArgument("BertConfig: pad_token_id " + std::to_string(config.pad_token_id) +
                          " is outside the vocabulary of " + std::to_string(config.vocab_size));
  internal::check_probability("BertConfig", "hidden_dropout_prob", config.hidden_dropout_prob);
  internal::check_probability("BertConfig", "attention_probs_dropout_prob",
                              config.attention_probs_dropout_prob);
  if (config.classifier_dropout >= 0)
    internal::check_probability("BertConfig", "classifier_dropout", config.classifier_dropout);
  const std::vector<std::string> known{"gelu", "gelu_new", "relu"};
  if (std::find(known.begin(), known.end(), config.hidden_act) == known.end())
    throw InvalidArgument("BertConfig: hidden_act " + shown(json(config.hidden_act)) +
                          " is unknown; choose " + joined(known, ", "));
}

int64_t parameter_count(const BertConfig& config) {
  // As of LmConfig.
  const auto width = static_cast<double>(config.hidden_size),
             inner = static_cast<double>(config.intermediate_size);
  const double square = width * width + width;  // a product and its bias
  const double rows = static_cast<double>(config.vocab_size) +
                      static_cast<double>(config.max_position_embeddings) +
                      static_cast<double>(config.type_vocab_size);
  const double layer = 4 * square + 2 * width * inner + inner + width + 4 * width;
  return internal::counted(rows * width + 2 * width +
                           static_cast<double>(config.num_hidden_layers) * layer + square +
                           static_cast<double>(config.labels.size()) * (width + 1));
}

BertConfig bert_config_from_json(std::string_view text, const std::string& source) {
  const json parsed = parse_json(text, source, refuse_as<InvalidArgument>);
  const JsonObject file(parsed, source, refuse_as<InvalidArgument>);
  if (file.text("model_type", "bert") != "bert") file.refuse("model_type", "a config.json of BERT");
  if (file.text("position_embedding_type", "absolute") != "absolute")
    file.refuse("position_embedding_type", "\"absolute\", which is known here");
  for (const char* flag : {"is_decoder", "add_cross_attention"}) {
    if (const json* found = file.find(flag); found != nullptr && *found == true)
      file.say(flag, "is set; this model is an encoder");
  }
  BertConfig config;
  internal::read_field(file, "vocab_size", config.vocab_size);
  internal::read_field(file, "hidden_size", config.hidden_size);
  internal::read_field(file, "num_hidden_layers", config.num_hidden_layers);
  internal::read_field(file, "num_attention_heads", config.num_attention_heads);
  internal::read_field(file, "intermediate_size", config.intermediate_size);
  internal::read_field(file, "max_position_embeddings", config.max_position_embeddings);
  internal::read_field(file, "type_vocab_size", config.type_vocab_size);
  internal::read_field(file, "pad_token_id", config.pad_token_id);
  internal::read_field(file, "hidden_dropout_prob", config.hidden_dropout_prob);
  internal::read_field(file, "attention_probs_dropout_prob", config.attention_probs_dropout_prob);
  internal::read_field(file, "classifier_dropout", config.classifier_dropout);
  internal::read_field(file, "layer_norm_eps", config.layer_norm_eps);
  internal::read_field(file, "initializer_range", config.initializer_range);
  config.hidden_act = file.text("hidden_act", config.hidden_act);
  config.labels = read_labels(file);
  try {
    check(config);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(source + ": " + error.what());
  }
  return config;
}

std::string to_json(const BertConfig& config) {
  ordered_json names = ordered_json::object(), ids = ordered_json::object();
  for (size_t i = 0; i < config.labels.size(); ++i) {
    names[std::to_string(i)] = config.labels[i];
    ids[config.labels[i]] = i;
  }
  ordered_json object{
      {"architectures", {"BertForSequenceClassification"}},
      {"model_type", "bert"},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"intermediate_size", config.intermediate_size},
      {"max_position_embeddings", config.max_position_embeddings},
      {"type_vocab_size", config.type_vocab_size},
      {"pad_token_id", config.pad_token_id},
      {"hidden_act", config.hidden_act},
      {"hidden_dropout_prob", config.hidden_dropout_prob},
      {"attention_probs_dropout_prob", config.attention_probs_dropout_prob},
      {"classifier_dropout", nullptr},
      {"layer_norm_eps", config.layer_norm_eps},
      {"initializer_range", config.initializer_range},
      {"id2label", names},
      {"label2id", ids},
      {"dtype", "float32"},
  };
  if (config.classifier_dropout >= 0) object["classifier_dropout"] = config.classifier_dropout;
  return object.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::inline v0
