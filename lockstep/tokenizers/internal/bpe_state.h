// The state of a ByteLevelBpe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/tokenizers/byte_level_bpe.h"
#include "lockstep/tokenizers/internal/added_tokens.h"
#include "lockstep/tokenizers/internal/bpe_merges.h"
#include "lockstep/tokenizers/internal/bpe_words.h"
#include "lockstep/tokenizers/internal/byte_alphabet.h"

namespace lockstep::inline v0::tokenizers {

// The parts of a ByteLevelBpe, from its files.
struct BpeParts {
  std::string name;         // of the vocabulary, in messages
  std::string merges_name;  // of the merges, in messages
  ByteLevelBpeOptions options = {};
  WordPattern pattern = WordPattern::kGpt2;
  // A word that is a token of the vocabulary becomes that token, whatever the merges are.
  bool ignore_merges = false;
  std::vector<std::string> begin_of_text = {};
  size_t vocabulary = 0;                 // tokens that are not added
  std::vector<std::string> tokens = {};  // by id; added ones included
  std::vector<AddedToken> added = {};
  std::vector<std::pair<std::string, std::string>> merges = {};  // by rank
};

// Throw DataError.
BpeParts bpe_parts_of_files(std::string_view vocabulary, std::string_view merges,
                            const ByteLevelBpeOptions& options, std::string_view vocabulary_name,
                            std::string_view merges_name);
BpeParts bpe_parts_of_json(std::string_view text, std::string_view name);

struct ByteLevelBpe::State {
  explicit State(BpeParts parts);

  // Words of earlier texts, with their ids.
  // Thread-safety: one thread at a time.
  class Memory;
  void append_ids(std::string_view text, Memory& memory, std::vector<int32_t>& ids) const;
  std::optional<int32_t> id_of(std::string_view token) const;

  ByteLevelBpeOptions options;
  std::vector<std::string> tokens;  // by id
  std::vector<std::string> bytes;   // by id: the bytes that it represents
  std::vector<bool> special;        // by id
  std::optional<int32_t> end_of_text_id;
  std::vector<int32_t> begin_of_text;

 private:
  void append_word(std::string_view word, std::vector<int32_t>& ids) const;
  void append_words(std::string_view text, Memory& memory, std::vector<int32_t>& ids) const;
  void add_merges(const BpeParts& parts);

  std::unordered_map<std::string, int32_t> ids_;
  BpeMerges merges_;
  BpeWords words_;
  // By their bytes; empty where merges decide.
  std::unordered_map<std::string, int32_t> whole_words_;
  AddedTokenFinder raw_, normalized_;
};

// Bounded, so that a text of ever new words does not fill the memory.
class ByteLevelBpe::State::Memory {
 public:
  // Null if unknown.
  const std::vector<int32_t>* find(const std::string& word) const {
    const auto found = words_.find(word);
    return found == words_.end() ? nullptr : &found->second;
  }
  void put(const std::string& word, std::vector<int32_t> ids) {
    constexpr size_t kMost = 20'000;
    if (words_.size() < kMost) words_.emplace(word, std::move(ids));
  }

 private:
  std::unordered_map<std::string, std::vector<int32_t>> words_;
};

}  // namespace lockstep::inline v0::tokenizers
