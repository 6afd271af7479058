// The data and the model of the recipe text and of tutorial 003's programs: texts, and a BERT that
// classifies them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/data/tokenized_texts.h"
#include "lockstep/model/bert.h"
#include "lockstep/pretrained/text_model.h"
#include "lockstep/tokenizers/bert_tokenizer.h"
#include "lockstep/train/run_state.h"

namespace lockstep::inline v0 {

// Where texts and model come from.
struct TextInput {
  std::string data = {};            // a directory or file (data/text_classification.h)
  std::string vocab = {};           // vocab.txt or tokenizer.json; "": the model's, or the data's
  std::string model = "mini";       // bert_preset_names(), or a directory of Hugging Face's form
  std::string padding = "longest";  // "max_length", "longest", "packed"
  int64_t max_length = 128;         // tokens
  bool remove_spaces = false;       // out of every text
};

// The texts as token ids, and what other texts need to be read in the same way.
struct TextData {
  data::TokenizedTexts train, dev;
  std::vector<std::string> labels;
  tokenizers::BertTokenizer tokenizer;
  TextPreparation preparation;
  std::vector<std::string> unread = {};  // TextClassification's
  std::string example = {};              // a text of the dev set to try
};

// Throws: DataError; CheckpointError; InvalidArgument for a missing vocabulary or an unknown
// padding.
LOCKSTEP_API TextData load_text_data(const TextInput& input);

// Draws the model from the default generator, or loads the directory's. A classifier of other
// classes is then drawn anew, and `drawn`, if given, gets the names of what was drawn
// (load_bert()).
// Throws: CheckpointError, InvalidArgument.
LOCKSTEP_API BertClassifier make_text_model(const TextInput& input, const TextData& data,
                                            std::vector<std::string>* drawn = nullptr);

// The files that a checkpoint needs beside the parameters, for transformers to open it.
LOCKSTEP_API CheckpointFiles text_checkpoint_files(const BertClassifier& model,
                                                   const TextData& data);

}  // namespace lockstep::inline v0
