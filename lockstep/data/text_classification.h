// Labelled texts, or pairs of texts, from JSON, JSONL, TSV and CSV files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::data {

// The preprocessing of a text before it is tokenised. A checkpoint records it, so that prediction
// does the same; the default leaves texts unchanged.
struct LOCKSTEP_API TextPreprocessing {
  bool remove_spaces = false;  // removes every U+0020, like Python's text.replace(" ", "")
  bool strip = false;  // removes white space at both ends, like Python's text.strip(); second

  // Returns the text as it is to be tokenised.
  std::string apply(std::string_view text) const;
  bool operator==(const TextPreprocessing&) const = default;
};
// {"remove_spaces": true, "strip": true}. text_preprocessing() treats a missing key as false and
// throws DataError for an unknown one or one that is not a boolean.
LOCKSTEP_API nlohmann::ordered_json json_of(const TextPreprocessing& preprocessing);
LOCKSTEP_API TextPreprocessing text_preprocessing(const nlohmann::ordered_json& json);

// A text, or a pair of texts, and its label.
struct TextExample {
  std::string text = {};                 // UTF-8, preprocessed
  std::optional<std::string> pair = {};  // the second text of a pair
  int64_t label = -1;                    // 0..classes-1; -1 where unknown
  bool operator==(const TextExample&) const = default;
};

// The options of text_classification().
struct TextDataOptions {
  TextPreprocessing preprocessing = {};  // of all texts
  std::vector<std::string> labels = {};  // the classes' names; empty: from the files, see below
  int64_t limit = 0;                     // only the first rows of the training file; 0: all
  double train_part = 0.92;              // of a training file without a dev file or a split
  int64_t split_seed = 123;              // of the same
};

// The examples that text_classification() loads, and their classes.
struct LOCKSTEP_API TextClassification {
  std::vector<TextExample> train;
  std::vector<TextExample> dev;
  std::vector<TextExample> test;    // empty where there is no test file
  std::vector<std::string> labels;  // the name of each class, in order
  TextPreprocessing preprocessing = {};
  bool dev_of_train = false;  // the dev set is a part of the training file
  bool pairs = false;         // the examples have a second text, all of them or none
  // Files of the directory that look like texts but are not read, such as a second train.*.
  std::vector<std::string> unread = {};

  int64_t classes() const { return static_cast<int64_t>(labels.size()); }  // their number
};

// Loads a directory, or a single file.
//
// A directory has train.json, train.jsonl, train.tsv or train.csv; it may have dev.* (or
// validation.*, valid.*, val.*, eval.*) and test.* of the same types, labels.txt or class.txt (one
// class name per line) and split_seed123.txt. A single file is read by its ending as the training
// file; other files beside it are ignored.
//
// Rows
//   .json   an array of [text, label] or [text, pair, label], or of objects as below; or as .jsonl
//   .jsonl  one such array or object a line
//           objects: the text under "text", "sentence", "content", "text_a" or "sentence1"; the
//           pair under "text_b" or "sentence2"; the class under "label"; other keys are ignored.
//           NaN and Infinity, which Python and pandas write, count as null
//   .tsv    text, tab, label (or text, pair, label); no quotes, so no tabs or line ends in a text
//   .csv    the same with commas and RFC 4180's quotes
//           both: a first row of the names above (in any order) is a header
// A label is a class's name or a number 0..classes-1, in JSON also as 1.0. Only a test file may
// have none.
//
// The classes' names are, in this order of precedence: options.labels; labels.txt; class.txt; if
// all labels are numbers, "0", "1", ... up to the greatest; otherwise the labels sorted by their
// bytes. The dev set is, in this order of precedence: dev.*; the last rows of split_seed123.txt
// (one row number of the training file per line, from 0; the first train_part of the lines is for
// training); the same for the order of CPython's random.seed(split_seed); random.shuffle(rows).
//
// Throws DataError that names the file and the line (or the row): missing, not UTF-8, malformed, a
// label that no class has, pairs in some rows only, an empty training or dev set. Thread-safe.
LOCKSTEP_API TextClassification text_classification(const std::filesystem::path& path,
                                                    const TextDataOptions& options = {});

// The rows of one file as above, with labels where they exist, for `lockstep predict --file` and
// `lockstep eval`. `labels` are the classes' names; with `need_labels` a row without a label is
// refused. A .txt file has one text per line, without labels.
LOCKSTEP_API std::vector<TextExample> read_texts(const std::filesystem::path& file,
                                                 const std::vector<std::string>& labels,
                                                 const TextPreprocessing& preprocessing,
                                                 bool need_labels);

}  // namespace lockstep::inline v0::data
