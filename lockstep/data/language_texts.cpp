#include "lockstep/data/language_texts.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "lockstep/core/utf8.h"
#include "lockstep/data/internal/packed_file.h"
#include "lockstep/data/internal/text_files.h"
#include "lockstep/data/internal/text_rows.h"

namespace lockstep::inline v0::data {
namespace {
namespace fs = std::filesystem;

constexpr std::string_view kTextEndings[] = {".txt", ".jsonl", ".json", ".tsv", ".csv"};

// train.*, or the only possible file.
fs::path training_file(const fs::path& directory) {
  if (const auto file = part_file(directory, "train", kTextEndings)) return *file;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string ending = entry.path().extension().string();
    if (entry.is_regular_file() &&
        std::count(std::begin(kTextEndings), std::end(kTextEndings), ending) > 0)
      found.push_back(entry.path());
  }
  if (found.size() == 1) return found.front();
  refuse_file(directory.string(),
              found.empty() ? "has no train.txt, train.jsonl, train.json, train.tsv or train.csv"
                            : "has several files of texts and none is train.*; give one of them");
}

// The beginning of the last tenth of the characters.
size_t last_tenth(const std::string& text) {
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  const auto characters = std::count_if(text.begin(), text.end(), begins);
  auto left = characters * 9 / 10;
  size_t at = 0;
  for (; at < text.size(); ++at)
    if (begins(text[at]) && left-- == 0) break;
  return at;
}

void split(const fs::path& file, LanguageTexts* texts) {
  texts->dev_of_train = true;
  std::vector<std::string> all = std::exchange(texts->train, {});
  if (!texts->rows) {
    const size_t at = last_tenth(all.front());
    texts->dev.push_back(all.front().substr(at));
    all.front().resize(at);
    texts->train = std::move(all);
  } else {
    constexpr size_t kEvery = 10;
    for (size_t i = 0; i < all.size(); ++i)
      (i % kEvery == kEvery - 1 ? texts->dev : texts->train).push_back(std::move(all[i]));
  }
  if (texts->dev.empty() || texts->dev.front().empty() || texts->train.front().empty())
    refuse_file(file.string(),
                "is too short: a tenth of it is for evaluation; give a longer one, or dev.*");
}

}  // namespace

LanguageTexts language_texts_of_file(const fs::path& file) {
  LanguageTexts texts;
  const bool packed = file.extension() == ".gz";
  if ((packed ? file.stem() : file).extension() == ".txt") {
    std::string text = read_text(file);
    if (malformed_utf8(text)) utf8_lines(text, file.string());  // the exception names the line
    text.erase(0, text.size() - without_byte_order_mark(text).size());
    if (text.empty()) refuse_file(file.string(), "is empty; give a text");
    texts.train.push_back(std::move(text));
    return texts;
  }
  texts.rows = true;
  for (TextRow& row : read_text_rows(file).rows) texts.train.push_back(std::move(row.text) + "\n");
  if (texts.train.empty()) refuse_file(file.string(), "has no rows; give texts");
  return texts;
}

LanguageTexts language_texts(const fs::path& path) {
  if (!fs::exists(path)) refuse_file(path.string(), "does not exist");
  const bool directory = fs::is_directory(path);
  const fs::path file = directory ? training_file(path) : path;
  LanguageTexts texts = language_texts_of_file(file);
  std::optional<fs::path> dev;
  if (directory) {
    dev = dev_file(path, kTextEndings);
    texts.unread = unread_files(path, {file, dev.value_or(file)});
  }
  if (!dev) {
    split(file, &texts);
    return texts;
  }
  LanguageTexts read = language_texts_of_file(*dev);
  if (read.rows != texts.rows)
    refuse_file(dev->string(),
                "is of another kind than " + file.filename().string() +
                    ": one has texts in rows, the other is one text; give two of a kind");
  texts.dev = std::move(read.train);
  return texts;
}

}  // namespace lockstep::inline v0::data
