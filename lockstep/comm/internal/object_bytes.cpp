#include "lockstep/comm/internal/object_bytes.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/comm/objects.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

// Not recursive, because it must detect objects that are too deep for the library's own recursion.
bool too_deep(const nlohmann::json& object) {
  std::vector<std::pair<const nlohmann::json*, int>> open{{&object, 1}};
  while (!open.empty()) {
    const auto [value, depth] = open.back();
    open.pop_back();
    if (!value->is_structured()) continue;
    if (depth > kMaxObjectDepth) return true;
    for (const nlohmann::json& child : *value) open.emplace_back(&child, depth + 1);
  }
  return false;
}

// Whether the bytes nest more arrays, maps, tags or indefinite strings than an object may have; the
// library would recurse as deeply. It follows the structure of CBOR's heads only; the library
// detects other malformed input.
bool nests_too_deep(std::span<const uint8_t> bytes) {
  constexpr uint64_t kUntilBreak = UINT64_MAX;
  std::vector<uint64_t> open;  // the number of remaining items at each level
  size_t at = 0;
  while (at < bytes.size()) {
    while (!open.empty() && open.back() == 0) open.pop_back();
    if (!open.empty() && open.back() != kUntilBreak) --open.back();
    const uint8_t head = bytes[at++];
    if (head == 0xff) {  // "break"
      if (!open.empty()) open.pop_back();
      continue;
    }
    const int major = head >> 5;
    const int info = head & 31;
    uint64_t argument = static_cast<uint64_t>(info);
    if (info >= 24 && info <= 27) {
      const size_t width = size_t{1} << (info - 24);
      if (bytes.size() - at < width) return false;
      argument = 0;
      for (size_t i = 0; i < width; ++i) argument = argument << 8 | bytes[at + i];
      at += width;
    } else if (info == 31) {
      argument = kUntilBreak;
    } else if (info > 27) {
      return false;
    }
    switch (major) {
      case 2:
      case 3:  // strings
        if (argument == kUntilBreak) {
          open.push_back(kUntilBreak);
        } else {
          if (bytes.size() - at < argument) return false;
          at += static_cast<size_t>(argument);
        }
        break;
      case 4:
        open.push_back(argument);
        break;
      case 5:
        if (argument != kUntilBreak && argument > UINT64_MAX / 4) return false;
        open.push_back(argument == kUntilBreak ? argument : argument * 2);
        break;
      case 6:  // a tag and its item
        open.push_back(1);
        break;
      default:
        break;
    }
    if (open.size() > static_cast<size_t>(kMaxObjectDepth) + 1) return true;
  }
  return false;
}

}  // namespace

std::vector<uint8_t> encode_object(const nlohmann::json& object) {
  if (too_deep(object)) {
    throw InvalidArgument("an object nested deeper than " + std::to_string(kMaxObjectDepth) +
                          " levels cannot be sent; flatten it");
  }
  std::vector<uint8_t> bytes = nlohmann::json::to_cbor(object);
  if (static_cast<int64_t>(bytes.size()) > kMaxObjectBytes) {
    throw InvalidArgument("an object of " + std::to_string(bytes.size()) +
                          " encoded bytes cannot be sent, at most " +
                          std::to_string(kMaxObjectBytes) + "; send tensors, or several objects");
  }
  return bytes;
}

nlohmann::json decode_object(std::span<const uint8_t> bytes, const std::string& from) {
  if (nests_too_deep(bytes)) {
    throw DataError("an object from " + from + " is nested deeper than " +
                    std::to_string(kMaxObjectDepth) + " levels");
  }
  try {
    return nlohmann::json::from_cbor(bytes.begin(), bytes.end());
  } catch (const nlohmann::json::exception& error) {
    throw DataError("the " + std::to_string(bytes.size()) + " bytes of an object from " + from +
                    " are not CBOR: " + error.what());
  }
}

}  // namespace lockstep::inline v0
