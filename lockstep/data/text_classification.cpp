#include "lockstep/data/text_classification.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/random.h"
#include "lockstep/core/text.h"
#include "lockstep/core/utf8.h"
#include "lockstep/data/internal/packed_file.h"
#include "lockstep/data/internal/text_files.h"
#include "lockstep/data/internal/text_rows.h"

namespace lockstep::inline v0::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostClasses = 100'000;

constexpr std::string_view kRowEndings[] = {".json", ".jsonl", ".tsv", ".csv"};

// Maps a label, which is a class's name or number, to the class.
class LabelMap {
 public:
  explicit LabelMap(std::vector<std::string> names) : names_(std::move(names)) {
    for (const std::string& name : names_) numbers_.emplace(name, numbers_.size());
  }

  const std::vector<std::string>& names() const { return names_; }

  int64_t find(const TextRows& rows, const TextRow& row) const {
    const std::string& label = *row.label;
    if (!row.label_is_number) {
      const auto found = numbers_.find(label);
      if (found != numbers_.end()) return static_cast<int64_t>(found->second);
    }
    const auto classes = static_cast<int64_t>(names_.size());
    if (const auto number = parse_int(label, 0, classes - 1)) return *number;
    const bool many = names_.size() > 12;
    rows.refuse(row.at, "has the label " + printable(label, 60) + "; the classes are " +
                            (row.label_is_number || many ? "0 to " + std::to_string(classes - 1)
                                                         : joined(names_)));
  }

 private:
  std::vector<std::string> names_;
  std::unordered_map<std::string, size_t> numbers_;
};

std::vector<std::string> read_names(const fs::path& file) {
  const std::string name = file.string();
  std::vector<std::string> names;
  std::set<std::string> known;
  int64_t line = 0;
  for (std::string& text : utf8_lines(read_text(file), name)) {
    ++line;
    text = TextPreprocessing{.strip = true}.apply(text);
    if (text.empty())
      refuse_file(name, "line " + std::to_string(line) + " is empty; give one class name a line");
    if (!known.insert(text).second)
      refuse_file(name,
                  "line " + std::to_string(line) + " has the class " + printable(text) + " again");
    names.push_back(std::move(text));
  }
  if (names.empty()) refuse_file(name, "is empty; give one class name a line");
  return names;
}

// The names that the labels themselves imply.
std::vector<std::string> implied_names(const std::vector<const TextRows*>& files) {
  std::set<std::string> names;
  int64_t greatest = -1;
  bool numbers = true;
  for (const TextRows* rows : files) {
    for (const TextRow& row : rows->rows) {
      if (!row.label) continue;
      const auto number = parse_int(*row.label, 0, INT64_MAX);
      if (number && *number >= kMostClasses) {
        rows->refuse(row.at, "has the label " + *row.label + "; at most " +
                                 std::to_string(kMostClasses - 1) + " are supported");
      }
      if (!number && row.label_is_number) {
        rows->refuse(row.at, "has the label " + printable(*row.label, 60) +
                                 "; the classes' numbers count from 0");
      }
      numbers = numbers && number.has_value();
      greatest = std::max(greatest, number.value_or(-1));
      names.insert(*row.label);
    }
  }
  if (!numbers) return {names.begin(), names.end()};
  std::vector<std::string> counted;
  for (int64_t i = 0; i <= greatest; ++i) counted.push_back(std::to_string(i));
  return counted;
}

std::vector<TextExample> examples_of(const TextRows& rows, const LabelMap& labels,
                                     const TextPreprocessing& preprocessing, bool need_labels) {
  std::vector<TextExample> examples;
  examples.reserve(rows.rows.size());
  for (const TextRow& row : rows.rows) {
    if (row.pair.has_value() != rows.rows.front().pair.has_value()) {
      rows.refuse(row.at, std::string(row.pair ? "has a second text" : "has no second text") +
                              ", unlike the rows before it");
    }
    if (need_labels && !row.label)
      rows.refuse(row.at, "has no label; only texts to predict may lack one");
    TextExample example{.text = preprocessing.apply(row.text)};
    if (row.pair) example.pair = preprocessing.apply(*row.pair);
    if (row.label) example.label = labels.find(rows, row);
    examples.push_back(std::move(example));
  }
  return examples;
}

// The rows of split_seed123.txt: a permutation of 0..rows-1, reduced to those below `limit`.
std::vector<int64_t> read_split(const fs::path& file, int64_t rows, int64_t limit) {
  const std::string name = file.string();
  std::vector<int64_t> order;
  std::vector<bool> seen(static_cast<size_t>(rows));
  int64_t line = 0;
  for (const std::string& text : utf8_lines(read_text(file), name)) {
    const auto row = parse_int(text, 0, rows - 1);
    ++line;
    if (!row || seen[static_cast<size_t>(*row)]) {
      refuse_file(name, "line " + std::to_string(line) + " is " + text.substr(0, 40) +
                            "; each line is another row of the training file, 0 to " +
                            std::to_string(rows - 1));
    }
    seen[static_cast<size_t>(*row)] = true;
    if (*row < limit) order.push_back(*row);
  }
  if (line != rows) {
    refuse_file(name, "has " + std::to_string(line) + " lines; the training file has " +
                          std::to_string(rows) + " rows");
  }
  return order;
}

// Moves the last part of `data.train`, in `order`, to `data.dev`.
void split(TextClassification& data, const std::vector<int64_t>& order, double train_part) {
  std::vector<TextExample> all = std::exchange(data.train, {});
  // Like Python's int(len(rows) * ratio).
  const auto train = static_cast<size_t>(static_cast<double>(order.size()) * train_part);
  for (size_t i = 0; i < order.size(); ++i) {
    auto& part = i < train ? data.train : data.dev;
    part.push_back(std::move(all[static_cast<size_t>(order[i])]));
  }
}

void check_options(const TextDataOptions& options) {
  if (options.limit < 0) {
    throw InvalidArgument("texts: limit is " + std::to_string(options.limit) +
                          "; use 1 or more, or 0 for all rows");
  }
  if (!(options.train_part > 0 && options.train_part < 1)) {
    throw InvalidArgument("texts: train_part is " + std::to_string(options.train_part) +
                          "; use a number between 0 and 1");
  }
}

// The files of a data set; only `train` if a single file was given.
struct TextFiles {
  fs::path train;
  std::optional<fs::path> dev, test, names, split;
  std::vector<std::string> unread;
};

TextFiles find_files(const fs::path& path) {
  if (!fs::is_directory(path)) {
    if (path.extension() == ".txt")
      refuse_file(path.string(), "has no labels; training needs .json, .jsonl, .tsv or .csv");
    return {.train = path, .dev = {}, .test = {}, .names = {}, .split = {}, .unread = {}};
  }
  const auto train = part_file(path, "train", kRowEndings);
  if (!train) refuse_file(path.string(), "has no train.json, train.jsonl, train.tsv or train.csv");
  TextFiles files{.train = *train,
                  .dev = dev_file(path, kRowEndings),
                  .test = part_file(path, "test", kRowEndings),
                  .names = {},
                  .split = {},
                  .unread = {}};
  for (const char* name : {"labels.txt", "class.txt"}) {
    if (!files.names && fs::exists(path / name)) files.names = path / name;
  }
  if (fs::exists(path / "split_seed123.txt")) files.split = path / "split_seed123.txt";
  std::vector<fs::path> read{files.train};
  for (const auto& file : {files.dev, files.test})
    if (file) read.push_back(*file);
  files.unread = unread_files(path, read);
  return files;
}

}  // namespace

TextClassification text_classification(const fs::path& path, const TextDataOptions& options) {
  check_options(options);
  const TextFiles files = find_files(path);
  TextRows train = read_text_rows(files.train);
  const auto rows = static_cast<int64_t>(train.rows.size());
  const int64_t limit = options.limit == 0 ? rows : std::min(options.limit, rows);
  train.rows.resize(static_cast<size_t>(limit));
  const TextRows dev = files.dev ? read_text_rows(*files.dev) : TextRows{};
  const TextRows test = files.test ? read_text_rows(*files.test) : TextRows{};

  const LabelMap labels(!options.labels.empty() ? options.labels
                        : files.names           ? read_names(*files.names)
                                                : implied_names({&train, &dev, &test}));
  TextClassification data{.train = examples_of(train, labels, options.preprocessing, true),
                          .dev = examples_of(dev, labels, options.preprocessing, true),
                          .test = examples_of(test, labels, options.preprocessing, false),
                          .labels = labels.names(),
                          .preprocessing = options.preprocessing,
                          .unread = files.unread};
  if (!files.dev) {
    std::vector<int64_t> order(static_cast<size_t>(limit));
    std::iota(order.begin(), order.end(), 0);
    if (files.split) {
      order = read_split(*files.split, rows, limit);
    } else {
      PythonRandom(options.split_seed).shuffle(order);
    }
    split(data, order, options.train_part);
    data.dev_of_train = true;
  }
  if (data.train.empty() || data.dev.empty()) {
    refuse_file((files.dev && !data.train.empty() ? *files.dev : files.train).string(),
                "has " + std::to_string(files.dev && !data.train.empty() ? 0 : rows) +
                    " rows, which leaves none for " + (data.train.empty() ? "training" : "dev"));
  }
  data.pairs = data.train.front().pair.has_value();
  for (const TextRows* read : {&dev, &test}) {
    if (read->rows.empty() || read->rows.front().pair.has_value() == data.pairs) continue;
    read->refuse(read->rows.front().at, "has " + std::string(data.pairs ? "no" : "a") +
                                            " second text, unlike the training rows");
  }
  return data;
}

std::vector<TextExample> read_texts(const fs::path& file, const std::vector<std::string>& labels,
                                    const TextPreprocessing& preprocessing, bool need_labels) {
  return examples_of(read_text_rows(file), LabelMap(labels), preprocessing, need_labels);
}

}  // namespace lockstep::inline v0::data
