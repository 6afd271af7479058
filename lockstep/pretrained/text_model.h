// A text classifier as a directory that transformers can open, and conversely.
//
//   config.json            BertConfig; the classes' names are its id2label
//   model.safetensors      or pytorch_model.bin; or several files of either, with .index.json
//   vocab.txt, tokenizer_config.json, or tokenizer.json
//   lockstep.json          how texts are prepared: {"preprocessing": {...}, "max_length": 128};
//                          other directories have none, and their texts are used unchanged
//
// BertForSequenceClassification.from_pretrained(directory) opens our directories.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/data/text_classification.h"
#include "lockstep/model/bert.h"
#include "lockstep/tokenizers/bert_tokenizer.h"

namespace lockstep::inline v0 {

// How a text is turned into the model's input.
struct TextPreparation {
  data::TextPreprocessing preprocessing = {};
  int64_t max_length = 512;  // tokens; longer texts are truncated
};

// A classifier with its tokenizer and labels.
struct TextModel {
  BertClassifier model = nullptr;  // in evaluation mode
  tokenizers::BertTokenizer tokenizer;
  TextPreparation preparation;
};

// Whether `directory` has the config.json of a BERT.
LOCKSTEP_API bool is_text_model(const std::filesystem::path& directory);

// Throws CheckpointError that names the file if a file is missing, damaged or of another kind, if a
// parameter is missing or has another shape, and if the vocabulary is larger than the model's.
LOCKSTEP_API TextModel load_text_model(const std::filesystem::path& directory);

// Loads a model for further training: as above, but the directory's model may have no classifier,
// or one for other classes; then a new one is drawn for `labels`. The names of the classes say
// which rows belong to which class, in whatever order the directory has them; if it or `labels` has
// numbers for names ("0", "LABEL_0"), the numbers decide. The names of drawn parameters are stored
// in `drawn`, if given.
LOCKSTEP_API BertClassifier load_bert(const std::filesystem::path& directory,
                                      const std::vector<std::string>& labels,
                                      std::vector<std::string>* drawn = nullptr);

// The files of such a directory, by name, except the parameters and config.json.
LOCKSTEP_API std::map<std::string, std::string> text_model_files(
    const tokenizers::BertTokenizer& tokenizer, const TextPreparation& preparation);

}  // namespace lockstep::inline v0
