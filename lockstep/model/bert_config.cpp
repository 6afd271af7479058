#include "lockstep/model/bert_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

[[noreturn]] void refuse_config(const std::string& source, const std::string& what) {
  throw InvalidArgument(source + ": " + what);
}

template <typename T>
void read_field(const json& object, const char* name, T& value, const std::string& source) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return;
  const bool fits = std::is_same_v<T, std::string> ? found->is_string()
                    : std::is_same_v<T, int64_t>   ? found->is_number_integer()
                                                   : found->is_number();
  if (!fits)
    refuse_config(source, std::string("'") + name + "' is " + found->dump() + "; it must be " +
                              (std::is_same_v<T, std::string> ? "a text" : "a number"));
  value = found->get<T>();
}

// id2label maps "0", "1", ... to names; num_labels alone gives them transformers' names.
std::vector<std::string> read_labels(const json& object, const std::string& source) {
  constexpr int64_t kMost = 1'000'000;
  int64_t count = 2;
  const auto map = object.find("id2label");
  const bool named = map != object.end() && map->is_object();
  if (named)
    count = static_cast<int64_t>(map->size());
  else
    read_field(object, "num_labels", count, source);
  if (count < 1 || count > kMost)
    refuse_config(source, "there are " + std::to_string(count) + " labels");
  std::vector<std::string> labels;
  for (int64_t i = 0; i < count; ++i) {
    labels.push_back("LABEL_" + std::to_string(i));
    if (!named) continue;
    const auto found = map->find(std::to_string(i));
    if (found == map->end() || !found->is_string())
      refuse_config(source, "'id2label' has no text for " + std::to_string(i));
    labels.back() = found->get<std::string>();
  }
  return labels;
}

void check_size(const char* name, int64_t value) {
  constexpr int64_t kMost = 1 << 30;
  if (value < 1 || value > kMost)
    throw InvalidArgument(std::string("BertConfig: ") + name + " is " + std::to_string(value) +
                          "; it must be 1 or more");
}

void check_probability(const char* name, double value) {
  if (!(value >= 0 && value < 1))
    throw InvalidArgument(std::string("BertConfig: ") + name + " is " + std::to_string(value) +
                          "; it must be in [0, 1)");
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
  check_size("vocab_size", config.vocab_size);
  check_size("hidden_size", config.hidden_size);
  check_size("num_hidden_layers", config.num_hidden_layers);
  check_size("num_attention_heads", config.num_attention_heads);
  check_size("intermediate_size", config.intermediate_size);
  check_size("max_position_embeddings", config.max_position_embeddings);
  check_size("type_vocab_size", config.type_vocab_size);
  check_size("the number of labels", static_cast<int64_t>(config.labels.size()));
  if (config.hidden_size % config.num_attention_heads != 0)
    throw InvalidArgument("BertConfig: hidden_size " + std::to_string(config.hidden_size) +
                          " does not divide by " + std::to_string(config.num_attention_heads) +
                          " attention heads");
  if (config.pad_token_id < 0 || config.pad_token_id >= config.vocab_size)
    throw InvalidArgument("BertConfig: pad_token_id " + std::to_string(config.pad_token_id) +
                          " is outside the vocabulary of " + std::to_string(config.vocab_size));
  check_probability("hidden_dropout_prob", config.hidden_dropout_prob);
  check_probability("attention_probs_dropout_prob", config.attention_probs_dropout_prob);
  if (config.classifier_dropout >= 0)
    check_probability("classifier_dropout", config.classifier_dropout);
  const std::vector<std::string> known{"gelu", "gelu_new", "relu"};
  if (std::find(known.begin(), known.end(), config.hidden_act) == known.end())
    throw InvalidArgument("BertConfig: hidden_act '" + config.hidden_act + "' is unknown; choose " +
                          joined(known, ", "));
}

BertConfig bert_config_from_json(std::string_view text, const std::string& source) {
  json object;
  try {
    object = json::parse(text);
  } catch (const json::parse_error& error) {
    refuse_config(source, "is not JSON (at byte " + std::to_string(error.byte) + ")");
  } catch (const json::out_of_range& error) {
    refuse_config(source, "the number " + quoted_part(error.what()) +
                              " is out of range; give one that a double holds");
  }
  if (!object.is_object()) refuse_config(source, "is not a JSON object");
  std::string type = "bert", positions = "absolute";
  read_field(object, "model_type", type, source);
  if (type != "bert")
    refuse_config(source, "is of a model of type '" + type + "'; it must be 'bert'");
  read_field(object, "position_embedding_type", positions, source);
  if (positions != "absolute")
    refuse_config(source, "has positions of type '" + positions + "'; only 'absolute' is known");
  for (const char* flag : {"is_decoder", "add_cross_attention"}) {
    if (const auto found = object.find(flag); found != object.end() && *found == true)
      refuse_config(source, std::string("has '") + flag + "'; this model is an encoder");
  }
  BertConfig config;
  read_field(object, "vocab_size", config.vocab_size, source);
  read_field(object, "hidden_size", config.hidden_size, source);
  read_field(object, "num_hidden_layers", config.num_hidden_layers, source);
  read_field(object, "num_attention_heads", config.num_attention_heads, source);
  read_field(object, "intermediate_size", config.intermediate_size, source);
  read_field(object, "max_position_embeddings", config.max_position_embeddings, source);
  read_field(object, "type_vocab_size", config.type_vocab_size, source);
  read_field(object, "pad_token_id", config.pad_token_id, source);
  read_field(object, "hidden_dropout_prob", config.hidden_dropout_prob, source);
  read_field(object, "attention_probs_dropout_prob", config.attention_probs_dropout_prob, source);
  read_field(object, "classifier_dropout", config.classifier_dropout, source);
  read_field(object, "layer_norm_eps", config.layer_norm_eps, source);
  read_field(object, "initializer_range", config.initializer_range, source);
  read_field(object, "hidden_act", config.hidden_act, source);
  config.labels = read_labels(object, source);
  try {
    check(config);
  } catch (const InvalidArgument& error) {
    refuse_config(source, error.what());
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

}  // namespace lockstep
