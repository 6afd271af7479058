// Texts for training and evaluating a language model, from files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/core/export.h"

namespace lockstep::inline v0::data {

// The texts that language_texts() loads.
struct LanguageTexts {
  std::vector<std::string> train;  // UTF-8
  std::vector<std::string> dev;
  // Each text is a row of a file and ends with a newline; false: whole files, unchanged.
  bool rows = false;
  bool dev_of_train = false;  // the dev texts are a part of the training file
  // Files of the directory that look like texts but are not read, such as test.txt.
  std::vector<std::string> unread = {};
};

// Loads a directory, or a single file.
//
// A file .txt (plain or gzip) is one text, except for a byte order mark. Each row of .jsonl, .json,
// .tsv and .csv, in the forms of text_classification.h, is one text; labels and second texts are
// ignored.
//
// A directory has train.txt, train.jsonl, train.json, train.tsv or train.csv, or otherwise one file
// of these types under another name; it may have dev.* (or validation.*, valid.*, val.*, eval.*).
// Without one, and for a single file, the dev set is the last tenth of the text's characters, or
// every tenth row.
//
// Throws DataError that names the file: missing, not UTF-8, malformed, too little text for both
// sets, training and dev files of different types.
LOCKSTEP_API LanguageTexts language_texts(const std::filesystem::path& path);

// All of one file.
// In `train`; dev is empty.
LOCKSTEP_API LanguageTexts language_texts_of_file(const std::filesystem::path& file);

}  // namespace lockstep::inline v0::data
