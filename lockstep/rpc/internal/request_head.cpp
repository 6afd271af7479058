#include "lockstep/rpc/internal/request_head.h"

#include <cstdint>
#include <string>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

enum HeadFlag : uint8_t { kOrdered = 1, kKept = 2, kRecorded = 4, kMapped = 8, kSame = 16 };
constexpr size_t kMostDevices = 256;

c10::Device read_device(Reader& reader) {
  const auto type = static_cast<c10::DeviceType>(static_cast<int8_t>(reader.byte()));
  const uint8_t index = reader.byte();
  if (!can_be_named(type) || index > INT8_MAX)
    throw DataError("a message of rpc has a map of unknown devices");
  return {type, static_cast<c10::DeviceIndex>(index)};
}

}  // namespace

void RequestHead::write(Writer& writer) const {
  writer.byte(static_cast<uint8_t>((order ? kOrdered : 0) | (keep ? kKept : 0) |
                                   (record ? kRecorded : 0) | (way.map.empty() ? 0 : kMapped) |
                                   (way.same ? kSame : 0)));
  writer.word(types_hash);
  writer.text(function);
  writer.word(ends_in_ns);
  if (order) writer.word(order);
  if (keep) keep->write(writer);
  if (!way.map.empty()) {
    writer.length(way.map.size());
    for (const auto& [here, there] : way.map)
      for (const c10::Device one : {here, there}) {
        writer.byte(static_cast<uint8_t>(one.type()));
        writer.byte(static_cast<uint8_t>(one.index()));
      }
  }
  if (!record) return;
  Codec<ContextId>::write(writer, record->context);
  writer.length(record->path.size());
  for (const uint32_t call : record->path) writer.length(call);
  writer.length(record->gradients.size());
  for (const uint32_t place : record->gradients) writer.length(place);
}

RequestHead RequestHead::read(Reader& reader) {
  RequestHead head;
  const uint8_t flags = reader.byte();
  head.types_hash = reader.word();
  head.function = reader.text();
  head.ends_in_ns = reader.word();
  if (flags & kOrdered) head.order = reader.word();
  if (flags & kKept) head.keep = ObjectId::read(reader);
  head.way.same = (flags & kSame) != 0;
  if (flags & kMapped) {
    const size_t pairs = reader.count();
    if (pairs > kMostDevices)
      throw DataError("a message of rpc has a map of " + std::to_string(pairs) + " devices");
    for (size_t i = 0; i < pairs; ++i) {
      const c10::Device here = read_device(reader);
      head.way.map.emplace_back(here, read_device(reader));
    }
  }
  if (flags & kRecorded) {
    Recording& record = head.record.emplace();
    record.context = Codec<ContextId>::read(reader);
    const size_t depth = reader.count();
    if (depth == 0 || depth > kDeepestCall)
      throw DataError("a message of rpc is " + std::to_string(depth) +
                      " calls deep in its context; 1 to " + std::to_string(kDeepestCall) +
                      " are possible");
    for (size_t i = 0; i < depth; ++i)
      record.path.push_back(static_cast<uint32_t>(reader.length()));
    record.gradients.resize(reader.count());
    for (uint32_t& place : record.gradients) place = static_cast<uint32_t>(reader.length());
    for (const uint32_t place : record.gradients)
      if (place >= reader.tensors().size())
        throw DataError("a message of rpc names a tensor that it lacks");
  }
  return head;
}

}  // namespace lockstep::inline v0::rpc::internal
