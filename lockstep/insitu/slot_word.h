// The state of one slot of a ring, as one word: every step of a slot's life is one compare and
// exchange, so that a process that is killed leaves no slot half way. Not a public header.
#pragma once

#include <cstdint>

namespace lockstep::inline v0::insitu {

enum class SlotState : uint32_t {
  kFree = 0,
  kWriting = 1,  // by the member `owner`; the number is its claim's
  kFull = 2,     // the number is the sample's
  kReading = 3,  // by the member `owner`; the number is the sample's
};

// Claims and samples take their numbers from one counter, so no two words of a slot are equal in
// which someone else could believe after a pause.
struct SlotWord {
  static constexpr int kNumberBits = 48;
  static constexpr uint64_t kNumberMask = (uint64_t{1} << kNumberBits) - 1;
  static constexpr uint32_t kOwnerMask = (1u << 12) - 1;

  SlotState state = SlotState::kFree;
  uint32_t owner = 0;
  uint64_t number = 0;

  // Any 64 bits are a word: the state and the owner are masked.
  static SlotWord unpack(uint64_t bits) {
    return {static_cast<SlotState>((bits >> 60) & 3),
            static_cast<uint32_t>(bits >> kNumberBits) & kOwnerMask, bits & kNumberMask};
  }
  uint64_t pack() const {
    return static_cast<uint64_t>(state) << 60 |
           static_cast<uint64_t>(owner & kOwnerMask) << kNumberBits | (number & kNumberMask);
  }
};

}  // namespace lockstep::inline v0::insitu
