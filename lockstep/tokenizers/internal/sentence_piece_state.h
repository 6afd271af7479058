// The state of a SentencePieceBpe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lockstep/tokenizers/internal/added_tokens.h"
#include "lockstep/tokenizers/internal/bpe_merges.h"
#include "lockstep/tokenizers/internal/json_reader.h"
#include "lockstep/tokenizers/sentence_piece_bpe.h"

namespace lockstep::inline v0::tokenizers {

struct SentencePieceBpe::State {
  State(const JsonObject& root, std::string_view name);

  // Whether a part of a text, cut at special tokens, gets a space before it.
  enum class Prepend : uint8_t { kNever, kToTheText, kToParts, kToPartsTwice };

  void append_ids(std::string_view text, std::vector<int32_t>& ids) const;
  std::optional<int32_t> id_of(std::string_view token) const;

  std::vector<std::string> tokens;            // by id
  std::vector<bool> special;                  // by id
  std::vector<std::optional<uint8_t>> bytes;  // by id: the byte of <0x0A> and similar tokens
  std::optional<int32_t> end_of_text_id;
  std::vector<int32_t> begin_of_text;
  int stripped = 0;  // spaces before a text that decoding removes

 private:
  void read_spaces(const JsonObject& root);
  void read_decoder(const JsonObject& root);
  void read_model(const JsonObject& model, std::string_view name);
  void read_added_tokens(const JsonObject& root);
  // With U+2581 for spaces, and before it. `begins`: whether it is the beginning of the text.
  std::string spaced(std::string_view part, bool begins) const;
  void append_pieces(std::string_view part, std::vector<int32_t>& ids) const;

  bool normalizes_ = false;  // otherwise a pre-tokenizer does
  Prepend prepend_ = Prepend::kNever;
  std::unordered_map<std::string, int32_t> ids_;
  BpeMerges merges_;
  std::array<int32_t, 256> byte_ids_{};  // -1: none
  bool byte_fallback_ = false, fuse_unknown_ = false;
  std::optional<int32_t> unknown_;
  AddedTokenFinder raw_, normalized_;
};

}  // namespace lockstep::inline v0::tokenizers
