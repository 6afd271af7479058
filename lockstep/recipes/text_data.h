// Texts to be classified, and the BERT that does it, by a few words: what the recipe text and
// tutorial 003's programs begin with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/data/tokenized_texts.h"
#include "lockstep/model/bert.h"
#include "lockstep/pretrained/text_model.h"
#include "lockstep/tokenizers/bert_tokenizer.h"
#include "lockstep/train/run_state.h"

namespace lockstep {

struct TextInput {
  std::string data = {};            // a directory or file (data/text_classification.h)
  std::string vocab = {};           // vocab.txt or tokenizer.json; "": the model's, or the data's
  std::string model = "mini";       // bert_preset_names(), or a directory of Hugging Face's form
  std::string padding = "longest";  // "max_length", "longest", "packed"
  int64_t max_length = 128;         // tokens
  bool remove_spaces = false;       // out of every text
};

// The texts as token ids, and what is needed to read others in the same way.
struct TextData {
  data::TokenizedTexts train, dev;
  std::vector<std::string> labels;
  tokenizers::BertTokenizer tokenizer;
  TextPreparation preparation;
  std::vector<std::string> unread = {};  // TextClassification's
  std::string example = {};  // of the dev set: a text to try, in the data's own language
};

// Throws DataError, CheckpointError; InvalidArgument for a missing vocabulary and an unknown padding.
TextData load_text_data(const TextInput& input);

// Drawn from the default generator, or of the directory: then a classifier of other classes is drawn
// anew, and `drawn`, if given, says what was (load_bert()). Throws CheckpointError, InvalidArgument.
BertClassifier make_text_model(const TextInput& input, const TextData& data,
                               std::vector<std::string>* drawn = nullptr);

// The files of a checkpoint beside the parameters: transformers opens it.
CheckpointFiles text_checkpoint_files(const BertClassifier& model, const TextData& data);

}  // namespace lockstep
