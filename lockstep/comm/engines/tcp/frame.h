// Frame: the unit of traffic between two ranks over one connection. Pure.
//
// Every frame is a header of fixed size, a short text, and a payload. Numbers are in the hosts' own
// byte order, which the ranks compare when they connect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace lockstep::inline v0::tcp {

enum class FrameType : uint8_t {
  kCall = 1,  // "I have started this collective; you may send me its data"
  kData,      // a piece of a collective
  kMessage,   // a send, with its payload
  kAsk,       // a send whose payload waits for kGo
  kGo,        // "the receive is posted"
  kPart,      // a piece of a send's payload
  kHere,      // "this is the collective that I am in, or was last in"
  kWhere,     // asks for a kHere
  kAbort,     // "the group is broken, for this reason"
  kBye,       // "I leave the group, and have sent all that I had"
};

struct FrameHeader {
  FrameType type = FrameType::kBye;
  uint8_t kind = 0;          // messages: the dtype; kAbort: Failure; kHere, kWhere: see below
  uint16_t text_bytes = 0;   // bytes of text after the header
  int32_t tag = 0;           // messages: the tag; kAbort: the lost rank
  uint64_t key = 0;          // collectives: collective_key(); messages: the sender's number
  uint64_t bytes = 0;        // bytes of payload after the text
  uint64_t fingerprint = 0;  // kCall, kHere
  uint64_t history = 0;      // kCall, kHere: of all earlier collectives
  // kCall: payload bytes that will follow; kMessage, kAsk: elements; kAbort: see below.
  uint64_t amount = 0;
};
static_assert(sizeof(FrameHeader) == 48);

// The amount of a kAbort: whether the text is the sender's own, or names its author itself.
inline constexpr uint64_t kFirstHand = 0;
inline constexpr uint64_t kPassedOn = 1;

// The kinds of kWhere: asks for the call with the key's sequence, or for the rank's current place.
inline constexpr uint8_t kWhereCalled = 0;
inline constexpr uint8_t kWhereNow = 1;
// The kinds of kHere: unasked, or an answer to a kWhere of either kind. All except kHereCalled have
// a second line, the ranks that the rank waits for: "1,2".
inline constexpr uint8_t kHereUnasked = 0;
inline constexpr uint8_t kHereCalled = 1;
inline constexpr uint8_t kHereNow = 2;
// ... or an answer about a collective that the rank no longer knows; it carries nothing else.
inline constexpr uint8_t kHereForgotten = 3;

inline constexpr size_t kMaxText = 4000;
inline constexpr size_t kMaxPayload = size_t{1} << 20;

// A collective consists of at most kPhases exchanges, distinguished by `phase`.
inline constexpr int kPhases = 1 << 16;
constexpr uint64_t collective_key(uint64_t sequence, int phase) {
  return sequence << 16 | static_cast<uint64_t>(phase);
}
constexpr uint64_t sequence_of(uint64_t key) {
  return key >> 16;
}

// Parses a header at the start of `bytes`; nullopt if there are too few bytes.
// Throws: StoreError for a header that no rank of the same version sends.
std::optional<FrameHeader> parse_frame_header(std::span<const std::byte> bytes);

}  // namespace lockstep::inline v0::tcp
