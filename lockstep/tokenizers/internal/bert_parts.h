// The parts of a BertTokenizer, from its files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tokenizers/bert_tokenizer.h"
#include "lockstep/tokenizers/internal/added_tokens.h"

namespace lockstep::inline v0::tokenizers {

struct BertParts {
  std::string name;  // of the file, in messages
  BertTokenizerOptions options = {};
  std::vector<std::string> tokens = {};  // by id; added ones included
  std::vector<AddedToken> added = {};    // the special tokens among them
  size_t model_tokens = 0;               // the first of `tokens`, which WordPiece may use
  std::string continuation = "##";       // prefix of pieces within a word
  size_t longest_word = 100;             // characters
  bool cleanup = true;                   // decoding puts no space before punctuation
  // The tokenizer.json with settings that vocab.txt cannot express; "": none.
  std::string json = {};
};

// The lines of a vocab.txt. Throws DataError.
std::vector<std::string> vocabulary_lines(std::string_view text, std::string_view name);

BertParts parts_of_tokens(std::vector<std::string> tokens, const BertTokenizerOptions& options,
                          std::string_view name);

// Throws DataError: see BertTokenizer::from_tokenizer_json.
BertParts parts_of_tokenizer_json(std::string_view text, std::string_view name);

// Applies the settings of a tokenizer_config.json to `options`. Throws DataError.
void apply_tokenizer_config(std::string_view json, std::string_view name,
                            BertTokenizerOptions& options);

}  // namespace lockstep::inline v0::tokenizers
