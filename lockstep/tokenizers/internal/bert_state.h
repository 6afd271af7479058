// The state of a BertTokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tokenizers/bert_tokenizer.h"
#include "lockstep/tokenizers/internal/added_tokens.h"
#include "lockstep/tokenizers/internal/bert_characters.h"
#include "lockstep/tokenizers/internal/bert_parts.h"
#include "lockstep/tokenizers/internal/word_piece.h"

namespace lockstep::inline v0::tokenizers {

struct BertTokenizer::State {
  // Throws DataError for an unusable vocabulary.
  explicit State(BertParts parts);

  void append_ids(std::string_view text, std::vector<int32_t>& ids) const;
  std::optional<int32_t> id_of(std::string_view token) const;
  std::string normalize(std::string_view text) const;

  std::string name;
  BertTokenizerOptions options;
  std::vector<std::string> tokens;  // by id
  std::vector<bool> special;        // by id
  std::string continuation;
  bool cleanup;
  std::string json;  // BertParts'
  int32_t unk_id, sep_id, pad_id, cls_id;
  std::optional<int32_t> mask_id;

 private:
  int32_t required(const std::string& token, const char* role) const;
  void add_tokens(std::vector<AddedToken> added);

  BertNormalization normalization_;
  WordPieceModel model_;
  PieceTrie added_ids_;                    // of tokens that WordPiece does not know
  AddedTokenFinder raw_, normalized_;      // in the original text, and in the normalized text
  std::optional<BertCharacters> words_;    // of the original text
  std::optional<BertCharacters> rewrite_;  // to the normalized text
  std::optional<BertCharacters> normalized_words_;  // of a normalized text; only where needed
};

}  // namespace lockstep::inline v0::tokenizers
