#include "lockstep/comm/engines/tcp/frame.h"

#include <cstring>

#include "lockstep/comm/backend/failure.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::tcp {
namespace {

bool carries_payload(FrameType type) {
  return type == FrameType::kData || type == FrameType::kMessage || type == FrameType::kPart;
}

}  // namespace

std::optional<FrameHeader> parse_frame_header(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(FrameHeader)) return std::nullopt;
  const auto type = static_cast<uint8_t>(bytes[0]);
  if (type < static_cast<uint8_t>(FrameType::kCall) ||
      type > static_cast<uint8_t>(FrameType::kBye)) {
    throw StoreError("a frame of unknown type " + std::to_string(type));
  }
  FrameHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.text_bytes > kMaxText)
    throw StoreError("a frame with a text of " + std::to_string(header.text_bytes) + " bytes");
  if (header.bytes > kMaxPayload || (header.bytes > 0 && !carries_payload(header.type)))
    throw StoreError("a frame with a payload of " + std::to_string(header.bytes) + " bytes");
  if (header.type == FrameType::kAbort && !failure_of(header.kind))
    throw StoreError("an end for the unknown reason " + std::to_string(header.kind));
  return header;
}

}  // namespace lockstep::inline v0::tcp
