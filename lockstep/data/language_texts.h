// Texts to train a language model on, and those that it is evaluated on, from files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::data {

struct LanguageTexts {
  std::vector<std::string> train;  // UTF-8
  std::vector<std::string> dev;
  // Each text is a row of a file and ends with a newline; false: whole files, as they are.
  bool rows = false;
  bool dev_of_train = false;  // the dev texts are a part of the training file
  // Files of the directory that look like texts and are not read, such as test.txt.
  std::vector<std::string> unread = {};
};

// Loads a directory, or a single file.
//
// A file .txt (plain or gzip) is one text, but for a byte order mark. Of the rows of .jsonl, .json, .tsv and .csv,
// in the forms of text_classification.h, each is one text; labels and second texts are passed over.
//
// A directory has train.txt, train.jsonl, train.json, train.tsv or train.csv, or else one file of these
// kinds under another name; it may have dev.* (or validation.*, valid.*, val.*, eval.*). Where it has none, and
// of a single file, the dev set is the last tenth of the text's characters, or every tenth row.
//
// Throws DataError that names the file: missing, not UTF-8, malformed, too little for both, training and
// dev files of different kinds.
LanguageTexts language_texts(const std::filesystem::path& path);

// All of one file.
LanguageTexts language_texts_of_file(
    const std::filesystem::path& file);  // in `train`; dev is empty

}  // namespace lockstep::data
