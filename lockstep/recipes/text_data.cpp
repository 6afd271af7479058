#include "lockstep/recipes/text_data.h"

#include <algorithm>

#include "lockstep/core/errors.h"
#include "lockstep/data/sentences.h"
#include "lockstep/data/text_classification.h"
#include "lockstep/report/text_width.h"

namespace lockstep::inline v0 {
namespace fs = std::filesystem;
namespace {

data::TextPadding padding_of(const std::string& name) {
  if (name == "packed") return data::TextPadding::kPacked;
  if (name == "longest") return data::TextPadding::kLongest;
  if (name == "max_length") return data::TextPadding::kMaxLength;
  throw InvalidArgument("padding is '" + name + "'; give max_length, longest or packed");
}

// Of the tutorial's data, whose words are cut by spaces, the six classes have names that the file
// does not know.
data::TextClassification read_data(const fs::path& path, bool remove_spaces) {
  data::TextDataOptions options;
  options.preprocessing = {.remove_spaces = remove_spaces, .strip = true};
  auto data = data::text_classification(path, options);
  const std::vector<std::string> numbers{"0", "1", "2", "3", "4", "5"};
  if (remove_spaces && data.labels == numbers) data.labels = data::sentence_labels();
  return data;
}

tokenizers::BertTokenizer find_tokenizer(const TextInput& input) {
  using tokenizers::BertTokenizer;
  if (!input.vocab.empty()) return BertTokenizer::load(input.vocab);
  if (fs::is_directory(input.model)) return BertTokenizer::load(input.model);
  const fs::path beside = fs::path(input.data) / "vocab.txt";
  if (fs::exists(beside)) return BertTokenizer::load(beside);
  throw InvalidArgument("--vocab is missing; give BERT's vocab.txt");
}

// The first text that fits into a line and has nothing that a terminal obeys; of none, the first
// one's beginning.
std::string example_of(const std::vector<data::TextExample>& examples) {
  constexpr size_t kWide = 60;
  const auto control = [](unsigned char c) { return c < ' ' || c == 127; };
  std::string beginning;
  for (const data::TextExample& example : examples) {
    const std::string& text = example.text;
    const size_t plain =
        static_cast<size_t>(std::find_if(text.begin(), text.end(), control) - text.begin());
    const std::string start(fit_to_width(std::string_view(text).substr(0, plain), kWide));
    if (start.empty() || start.front() == '-') continue;
    if (start == text) return text;
    if (beginning.empty()) beginning = start;
  }
  return beginning;
}

}  // namespace

TextData load_text_data(const TextInput& input) {
  const auto data = read_data(input.data, input.remove_spaces);
  TextData texts{
      .train = {},
      .dev = {},
      .labels = data.labels,
      .tokenizer = find_tokenizer(input),
      .preparation = {.preprocessing = data.preprocessing, .max_length = input.max_length},
      .unread = data.unread};
  const data::CollateOptions options{.padding = padding_of(input.padding),
                                     .max_length = input.max_length};
  texts.train = {data.train, texts.tokenizer, options};
  texts.dev = {data.dev, texts.tokenizer, options};
  texts.example = example_of(data.dev);
  return texts;
}

BertClassifier make_text_model(const TextInput& input, const TextData& data,
                               std::vector<std::string>* drawn) {
  if (fs::is_directory(input.model)) {
    BertClassifier model = load_bert(input.model, data.labels, drawn);
    const BertConfig& config = model->config();
    if (input.max_length > config.max_position_embeddings)
      throw InvalidArgument("max_length is " + std::to_string(input.max_length) + "; " +
                            input.model + " has positions for " +
                            std::to_string(config.max_position_embeddings) + " tokens");
    if (data.tokenizer.vocabulary_size() > config.vocab_size)
      throw InvalidArgument("the vocabulary has " +
                            std::to_string(data.tokenizer.vocabulary_size()) + " tokens; " +
                            input.model + " knows " + std::to_string(config.vocab_size));
    return model;
  }
  BertConfig config = bert_preset(input.model);
  config.vocab_size = data.tokenizer.vocabulary_size();
  config.pad_token_id = data.tokenizer.pad_id();
  config.labels = data.labels;
  return BertClassifier(config);
}

CheckpointFiles text_checkpoint_files(const BertClassifier& model, const TextData& data) {
  return {.config_json = to_json(model->config()),
          .others = text_model_files(data.tokenizer, data.preparation)};
}

}  // namespace lockstep::inline v0
