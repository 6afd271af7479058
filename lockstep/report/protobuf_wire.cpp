#include "lockstep/report/protobuf_wire.h"

#include <bit>
#include <cstddef>

namespace lockstep::inline v0::tensorboard {
namespace {

constexpr int kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5;

template <typename Integer>
void append_fixed(std::string& out, Integer value) {
  for (size_t i = 0; i < sizeof value; ++i)
    out += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
}

}  // namespace

void Message::varint(uint64_t value) {
  for (; value >= 0x80; value >>= 7) data_ += static_cast<char>((value & 0x7f) | 0x80);
  data_ += static_cast<char>(value);
}

void Message::tag(int field, int wire_type) {
  varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type));
}

Message& Message::integer(int field, int64_t value) {
  tag(field, kVarint);
  varint(static_cast<uint64_t>(value));  // negative numbers take ten bytes
  return *this;
}

Message& Message::number(int field, double value) {
  tag(field, kFixed64);
  append_fixed(data_, std::bit_cast<uint64_t>(value));
  return *this;
}

Message& Message::number(int field, float value) {
  tag(field, kFixed32);
  append_fixed(data_, std::bit_cast<uint32_t>(value));
  return *this;
}

Message& Message::bytes(int field, std::string_view value) {
  tag(field, kLengthDelimited);
  varint(value.size());
  data_ += value;
  return *this;
}

Message& Message::packed(int field, std::span<const double> values) {
  tag(field, kLengthDelimited);
  varint(values.size() * sizeof(double));
  for (const double value : values) append_fixed(data_, std::bit_cast<uint64_t>(value));
  return *this;
}

}  // namespace lockstep::inline v0::tensorboard
