// A text classifier as a directory that transformers opens as well, and the other way round.
//
//   config.json            BertConfig; the classes' names are its id2label
//   model.safetensors      or pytorch_model.bin; or several files of either, with .index.json
//   vocab.txt, tokenizer_config.json, or tokenizer.json
//   lockstep.json          how texts are prepared: {"preprocessing": {...}, "max_length": 128}; a
//                          foreign directory has none, and its texts are taken as they are
//
// BertForSequenceClassification.from_pretrained(directory) opens ours.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/data/text_classification.h"
#include "lockstep/model/bert.h"
#include "lockstep/tokenizers/bert_tokenizer.h"

namespace lockstep {

// How a text becomes what the model takes.
struct TextPreparation {
  data::TextPreprocessing preprocessing = {};
  int64_t max_length = 512;  // tokens; longer texts are cut
};

struct TextModel {
  BertClassifier model = nullptr;  // in evaluation mode
  tokenizers::BertTokenizer tokenizer;
  TextPreparation preparation;
};

// True if there is a config.json of a BERT in `directory`.
bool is_text_model(const std::filesystem::path& directory);

// Throws CheckpointError that names the file: missing, damaged, of another kind, a parameter that
// is missing or of another shape, a vocabulary larger than the model's.
TextModel load_text_model(const std::filesystem::path& directory);

// A model to be trained further: as above, but the directory may be of a model without a
// classifier, or with one for other classes; then the classifier is drawn anew, for `labels`.
// The classes' names say which rows are whose, in whatever order the directory has them; where it or
// `labels` has numbers for names ("0", "LABEL_0"), the numbers do. Names what was drawn in `drawn`, if
// given.
BertClassifier load_bert(const std::filesystem::path& directory,
                         const std::vector<std::string>& labels,
                         std::vector<std::string>* drawn = nullptr);

// The files of such a directory beside the parameters and config.json, by name.
std::map<std::string, std::string> text_model_files(const tokenizers::BertTokenizer& tokenizer,
                                                    const TextPreparation& preparation);

}  // namespace lockstep
