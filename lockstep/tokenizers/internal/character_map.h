// CharacterMap: a 32-bit value for each character, 0 unless set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/tokenizers/internal/character_tables.h"

namespace lockstep::inline v0::tokenizers {

// Two levels: pages of 256 characters; equal pages that were never written are shared.
class CharacterMap {
 public:
  CharacterMap() : cells_(kPage) {}

  uint32_t operator[](char32_t code) const {
    return cells_[size_t{pages_[code / kPage]} * kPage + code % kPage];
  }
  void set(char32_t code, uint32_t value) { cell(code) = value; }
  void set(std::span<const CharacterRange> ranges, uint32_t value) {
    for (const CharacterRange& range : ranges) {
      for (uint32_t code = range.first; code <= range.last; ++code) cell(code) = value;
    }
  }

 private:
  static constexpr size_t kPage = 256, kCharacters = 0x110000;

  uint32_t& cell(char32_t code) {
    uint16_t& page = pages_[code / kPage];
    if (page == 0) {
      page = static_cast<uint16_t>(cells_.size() / kPage);
      cells_.resize(cells_.size() + kPage);
    }
    return cells_[size_t{page} * kPage + code % kPage];
  }

  std::array<uint16_t, kCharacters / kPage> pages_{};  // 0: the page of zeros
  std::vector<uint32_t> cells_;
};

}  // namespace lockstep::inline v0::tokenizers
