#include "lockstep/rpc/internal/frame.h"

#include <cstring>

#include "lockstep/rpc/internal/devices.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

struct Row {
  uint8_t dtype = 0;
  uint8_t dims = 0;
  uint8_t device_type = 0;  // c10::DeviceType's number; 0: the CPU
  uint8_t device = 0;       // its number
  uint8_t zeros[4] = {};
  uint64_t address = 0;
};
static_assert(sizeof(Row) == 16);

bool known(MessageKind kind) {
  return (kind >= MessageKind::kRequest && kind <= MessageKind::kNotice) || kind == kHello ||
         kind == kReady;
}

// Whether such a message has no call and consists only of its header.
bool bare(MessageKind kind) {
  return kind == MessageKind::kTaken || kind == MessageKind::kCancel;
}

}  // namespace

bool travels(at::ScalarType dtype) {
  return dtype != at::ScalarType::Undefined && dtype < at::ScalarType::NumOptions &&
         !c10::isQIntType(dtype);
}

void append_row(std::string& table, at::ScalarType dtype, at::IntArrayRef sizes, uint64_t address,
                c10::Device device) {
  Row row;
  row.dtype = static_cast<uint8_t>(dtype);
  row.dims = static_cast<uint8_t>(sizes.size());
  row.device_type = static_cast<uint8_t>(device.type());
  row.device = device.is_cpu() ? 0 : static_cast<uint8_t>(device.index());
  row.address = address;
  table.append(reinterpret_cast<const char*>(&row), sizeof row);
  table.append(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(int64_t));
}

FrameHead read_head(const char* bytes) {
  FrameHead head;
  std::memcpy(&head, bytes, kHeadBytes);
  if (head.magic != FrameHead::kMagic) throw BadFrame("what came is no message of rpc");
  if (!known(head.kind))
    throw BadFrame("a message of an unknown kind, " + std::to_string(static_cast<int>(head.kind)));
  const bool may_have_references =
      head.kind == MessageKind::kRequest || head.kind == MessageKind::kResponse;
  if (head.references > (may_have_references ? 1 : 0) || head.zeros[0] || head.zeros[1] ||
      head.zero)
    throw BadFrame("a message with bits that mean nothing");
  if (head.body > kMostBody) throw BadFrame("a body of " + std::to_string(head.body) + " bytes");
  if (head.tensors > kMostTensors)
    throw BadFrame("a message of " + std::to_string(head.tensors) + " tensors");
  if (head.table > kMostTable || head.table < head.tensors * sizeof(Row) ||
      head.table > head.tensors * (sizeof(Row) + kMostDims * sizeof(int64_t)))
    throw BadFrame("a table of " + std::to_string(head.table) + " bytes for " +
                   std::to_string(head.tensors) + " tensors");
  if (head.ticket != 0 && head.tensors == 0)
    throw BadFrame("a message that names tensors but has none");
  if (bare(head.kind) && (head.body != 0 || head.tensors != 0))
    throw BadFrame("more than was to be said");
  if (head.call == 0 && head.kind < MessageKind::kNotice) throw BadFrame("a message of no call");
  return head;
}

void read_table(std::string_view table, const FrameHead& head, uint64_t most_bytes,
                std::vector<TensorPlace>& places) {
  places.resize(head.tensors);
  uint64_t total = 0;
  bool named = false;
  for (TensorPlace& place : places) {
    Row row;
    if (table.size() < sizeof row) throw BadFrame("a table that ends in the middle");
    std::memcpy(&row, table.data(), sizeof row);
    table.remove_prefix(sizeof row);
    place.dtype = static_cast<at::ScalarType>(static_cast<int8_t>(row.dtype));
    if (row.dtype > 127 || !travels(place.dtype))
      throw BadFrame("a tensor of an unknown dtype, " + std::to_string(row.dtype));
    for (const uint8_t zero : row.zeros)
      if (zero) throw BadFrame("a tensor with bits that mean nothing");
    const auto device_type = static_cast<c10::DeviceType>(static_cast<int8_t>(row.device_type));
    const bool cpu = device_type == c10::DeviceType::CPU;
    if ((cpu ? row.device != 0 : !can_be_named(device_type)) || row.device > INT8_MAX)
      throw BadFrame("a tensor for an unknown device, " + std::to_string(row.device_type) + ":" +
                     std::to_string(row.device));
    place.device = cpu ? c10::Device(c10::kCPU)
                       : c10::Device(device_type, static_cast<c10::DeviceIndex>(row.device));
    if (row.dims > kMostDims || table.size() < row.dims * sizeof(int64_t))
      throw BadFrame("a table that ends in the middle");
    place.sizes.resize(row.dims);
    std::memcpy(place.sizes.data(), table.data(), row.dims * sizeof(int64_t));
    table.remove_prefix(row.dims * sizeof(int64_t));
    uint64_t bytes = c10::elementSize(place.dtype);
    bool none = false, fits = true;
    for (const int64_t size : place.sizes) {
      fits &= size >= 0;
      none |= size == 0;
    }
    // Checks sizes beside a 0 count, too, because strides are products of sizes.
    for (const int64_t size : place.sizes)
      fits = fits &&
             !__builtin_mul_overflow(bytes, static_cast<uint64_t>(size > 1 ? size : 1), &bytes) &&
             bytes <= INT64_MAX;
    if (!fits) throw BadFrame("a tensor of impossible sizes");
    place.bytes = none ? 0 : bytes;
    if (place.bytes > most_bytes - total)
      throw BadFrame("tensors of more than " + std::to_string(most_bytes) +
                     " bytes in one message");
    total += place.bytes;
    place.address = row.address;
    if (place.address != 0) {
      named = true;
      if (head.ticket == 0 || place.bytes == 0)
        throw BadFrame("a tensor with an address that it should not have");
    }
  }
  if (!table.empty()) throw BadFrame("a table with more than its tensors");
  if (head.ticket != 0 && !named) throw BadFrame("a message that names tensors but has none");
}

}  // namespace lockstep::inline v0::rpc::internal
