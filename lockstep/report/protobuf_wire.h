// The part of Protobuf's wire format that writing needs
// (https://protobuf.dev/programming-guides/encoding/). Pure.
//
// Written by hand, because the library is a build dependency that clashes with the copies inside
// other packages, and TensorBoard needs only four kinds of fields.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::inline v0::tensorboard {

// A message under construction; fields appear in the order of the calls.
class Message {
 public:
  Message& integer(int field, int64_t value);  // int32, int64, enum
  Message& number(int field, double value);
  Message& number(int field, float value);
  Message& bytes(int field, std::string_view value);  // string, bytes
  Message& message(int field, const Message& value) { return bytes(field, value.data()); }
  Message& packed(int field, std::span<const double> values);

  const std::string& data() const { return data_; }

 private:
  void tag(int field, int wire_type);
  void varint(uint64_t value);

  std::string data_;
};

}  // namespace lockstep::inline v0::tensorboard
