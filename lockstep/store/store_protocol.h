// The bytes between TcpStore and TcpStoreServer, after the challenge. Pure: no sockets.
//
// A message is a frame (wire/frames.h). Its body is a 64-bit identifier that the client chose, a
// code, and fields; all integers are little-endian; a byte string is a 32-bit length and its bytes.
// Every request is answered once, with the request's identifier, in any order; only kCancel has no
// answer of its own: it makes the server answer the parked request with that identifier at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::inline v0 {

enum class StoreOp : uint8_t {
  kSet = 1,
  kTryGet = 2,
  kGet = 3,   // parked until the key exists
  kWait = 4,  // parked until all keys exist
  kAdd = 5,
  kCompareSet = 6,
  kRemove = 7,
  kCancel = 8,
};

struct StoreRequest {
  uint64_t id = 0;
  StoreOp op = StoreOp::kSet;
  std::vector<std::string> keys;  // one; kWait has any number and kCancel none
  std::string value;              // kSet, kCompareSet
  std::string expected;           // kCompareSet
  int64_t delta = 0;              // kAdd
};

enum class StoreStatus : uint8_t {
  kOk = 0,
  kAbsent = 1,     // kTryGet: no such key
  kCancelled = 2,  // value: a key that is missing
  kError = 3,      // value: the message
};

struct StoreResponse {
  uint64_t id = 0;
  StoreStatus status = StoreStatus::kOk;
  int64_t number = 0;  // kAdd: the sum; kRemove: 1 if the key existed
  std::string value;   // kTryGet, kGet, kCompareSet
};

// Longest body of a frame: two values and keys.
inline constexpr size_t kMaxStoreFrame = (size_t{128} << 20) + (size_t{1} << 20);

// Whole frames. Throw InvalidArgument when the body would be longer than kMaxStoreFrame.
std::string encode(const StoreRequest& request);
std::string encode(const StoreResponse& response);

// Parse bodies of frames. Throw StoreError when the bytes are not one whole, well-formed body
// within the store's limits.
StoreRequest decode_store_request(std::string_view body);
StoreResponse decode_store_response(std::string_view body);

}  // namespace lockstep::inline v0
