#include "lockstep/cli/engine/inference/text_commands.h"
#include "lockstep/cli/engine/device_option.h"

#include <ATen/ops/softmax.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/cli/engine/command_line.h"
#include "lockstep/cli/engine/inference/saved_model.h"
#include "lockstep/cli/printable_lines.h"
#include "lockstep/comm/init.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/utf8.h"
#include "lockstep/pretrained/text_model.h"
#include "lockstep/recipes/recipe_run.h"
#include "lockstep/report/table.h"
#include "lockstep/report/text_width.h"
#include "lockstep/train/run_folder.h"
#include "lockstep/train/text_evaluation.h"

namespace lockstep::inline v0::engine {
namespace fs = std::filesystem;
namespace {

data::TokenizedTexts tokenized(const std::vector<data::TextExample>& examples,
                               const TextModel& saved) {
  return {examples,
          saved.tokenizer,
          {.padding = data::TextPadding::kPacked, .max_length = saved.preparation.max_length}};
}

std::vector<double> values_of(const at::Tensor& row) {
  const at::Tensor doubles = row.to(at::kDouble).contiguous();
  return {doubles.const_data_ptr<double>(), doubles.const_data_ptr<double>() + doubles.numel()};
}

std::vector<data::TextExample> questions_for(const TextQuestions& questions,
                                             const TextModel& saved) {
  std::vector<data::TextExample> examples;
  for (const std::string& text : questions.texts)
    examples.push_back({.text = saved.preparation.preprocessing.apply(text)});
  if (questions.file.empty()) return examples;
  for (auto& example : data::read_texts(questions.file, saved.model->config().labels,
                                        saved.preparation.preprocessing, /*need_labels=*/false))
    examples.push_back(std::move(example));
  return examples;
}

// The data to evaluate on.
struct MeasuredTexts {
  std::vector<data::TextExample> examples;
  std::string split;  // "all", "train", "dev", "test"
  std::string words;  // the same for people
};

MeasuredTexts measured_texts(const std::string& path, const std::string& split,
                             const TextModel& saved) {
  const auto& labels = saved.model->config().labels;
  const auto& preprocessing = saved.preparation.preprocessing;
  if (split.empty() && fs::is_regular_file(path)) {
    return {data::read_texts(path, labels, preprocessing, /*need_labels=*/true), "all",
            "all rows of " + path};
  }
  auto texts = data::text_classification(path, {.preprocessing = preprocessing, .labels = labels});
  const auto labelled = [](const data::TextExample& example) { return example.label >= 0; };
  const bool has_test = std::any_of(texts.test.begin(), texts.test.end(), labelled);
  const std::string chosen = !split.empty() ? split : has_test ? "test" : "dev";
  if (chosen == "test" && !has_test)
    throw InvalidArgument(path + " has no test texts with labels; choose another --split");
  std::string words = chosen + " set of " + path;
  if (chosen != "test" && texts.dev_of_train) words += ", by the split of its training file";
  auto& part = chosen == "test" ? texts.test : chosen == "dev" ? texts.dev : texts.train;
  return {std::move(part), chosen, "the " + words};
}

// The words of a block are the tutorial's, or English where neither the text nor a label is
// Chinese.
struct BlockWords {
  const char *text, *truth, *predicted;
};

BlockWords words_for(const data::TextExample& example, const std::vector<std::string>& labels) {
  const bool chinese = has_chinese(example.text) || has_chinese(example.pair.value_or("")) ||
                       std::any_of(labels.begin(), labels.end(),
                                   [](const std::string& label) { return has_chinese(label); });
  return chinese ? BlockWords{"文本： ", "真实： ", "预测： "}
                 : BlockWords{"Text: ", "True: ", "Predicted: "};
}

// Writes one answer as the tutorial prints it.
std::string block(const std::string& name, const data::TextExample& example,
                  const std::vector<std::string>& labels, int64_t answer) {
  constexpr size_t kWide = 100;
  const BlockWords words = words_for(example, labels);
  const std::string line(kWide, '=');
  std::string text =
      line + "\n" + printable(name) + "\n" + words.text + printable_lines(example.text) + "\n";
  if (example.pair) text += words.text + printable_lines(*example.pair) + "\n";
  if (example.label >= 0)
    text += words.truth + printable(labels[static_cast<size_t>(example.label)]) + "\n";
  return text + words.predicted + printable(labels[static_cast<size_t>(answer)]) + "\n" + line +
         "\n";
}

// Writes "1 (positive)", or "1" for a class without another name.
std::string numbered(int64_t label, const std::string& name) {
  const std::string number = std::to_string(label);
  return name == number ? number : number + " (" + printable(name) + ")";
}

}  // namespace

std::optional<fs::path> find_text_model(const fs::path& path) {
  return find_in_run(path, is_text_model);
}

std::string checkpoint_name(const fs::path& path) {
  fs::path named = fs::absolute(path).lexically_normal();
  if (named.filename().empty()) named = named.parent_path();
  while (named.filename() == "best" || named.filename() == "last" ||
         named.filename() == "checkpoints")
    named = named.parent_path();
  return named.filename().string();
}

int eval_text(const fs::path& model, const std::string& given, const std::string& given_split,
              const std::string& device, const std::string& json) {
  TextModel saved = load_text_model(model);
  std::string data = given, split = given_split;
  if (data.empty()) {
    const auto trained = recorded_config(model);
    if (!trained)
      throw InvalidArgument("--data is missing; give the texts to evaluate " + model.string() +
                            " on");
    data = trained->data;
    // The part of the training file that training left out.
    if (split.empty() && fs::is_regular_file(data)) split = "dev";
  }
  const auto& labels = saved.model->config().labels;
  const MeasuredTexts measured = measured_texts(data, split, saved);
  const auto tokens = tokenized(measured.examples, saved);
  Communicator comm = join_with(*saved.model, device);
  const Evaluation evaluation = evaluate_texts(saved.model, tokens, comm);
  if (comm.rank() != 0) return 0;
  std::vector<std::string> names;
  for (const std::string& label : labels) names.push_back(printable(label));
  const auto report = classification_report(confusion_matrix(evaluation, names));
  std::cout << to_text(report) << "\nAccuracy " << percent(evaluation.accuracy, 2) << ", loss "
            << fixed(evaluation.loss, 4) << ", on " << evaluation.samples << " texts ("
            << printable(measured.words) << ")\n"
            << std::flush;
  write_json(json, {{"checkpoint", model.string()},
                    {"data", data},
                    {"split", measured.split},
                    {"samples", evaluation.samples},
                    {"accuracy", evaluation.accuracy},
                    {"loss", evaluation.loss},
                    {"labels", labels},
                    {"report", to_json(report)},
                    {"confusion", evaluation.confusion}});
  return 0;
}

int predict_texts(const TextQuestions& questions, const std::string& device,
                  const std::string& json) {
  nlohmann::ordered_json answers = nlohmann::ordered_json::array();
  Communicator alone = init({.backend = "local", .device = device});
  Table table({{"checkpoint", Align::kLeft}, {"text"}, {"label", Align::kLeft}, {"probability"}});
  for (const fs::path& path : questions.models) {
    TextModel saved = load_text_model(path);
    bring_to_device(*saved.model, device);
    const auto& labels = saved.model->config().labels;
    const auto examples = questions_for(questions, saved);
    if (examples.empty()) throw InvalidArgument("there is no text; give --text or --file");
    const EvalPrediction prediction =
        lockstep::predict_texts(saved.model, tokenized(examples, saved), alone);
    const at::Tensor probabilities = at::softmax(prediction.predictions, 1);
    for (size_t i = 0; i < examples.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      const int64_t label = prediction.predictions[row].argmax().item<int64_t>();
      const std::string& answer = labels[static_cast<size_t>(label)];
      std::cout << block(checkpoint_name(path), examples[i], labels, label);
      table.add({checkpoint_name(path), std::to_string(i + 1), numbered(label, answer),
                 percent(probabilities[row][label].item<double>(), 2)});
      nlohmann::ordered_json one{{"checkpoint", path.string()}, {"text", examples[i].text}};
      if (examples[i].label >= 0) one["truth"] = examples[i].label;
      one["label"] = label;
      one["name"] = answer;
      one["probabilities"] = values_of(probabilities[row]);
      one["logits"] = values_of(prediction.predictions[row]);
      answers.push_back(std::move(one));
    }
  }
  std::cout << "\n" << table.str() << std::flush;
  write_json(json, answers);
  return 0;
}

}  // namespace lockstep::inline v0::engine
