// What the tests of rings share.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/insitu/ring.h"

namespace lockstep::inline v0::insitu::ring_test {

inline Deadline soon() {
  return Deadline::seconds(60);
}
inline Deadline now() {
  return Deadline::seconds(0);
}

// A name that no other test uses, whatever runs beside this one.
inline std::string own_name(const std::string& word) {
  return word + "-" + std::to_string(::getpid());
}

// A sample whose fields agree with each other, so that a torn one shows.
inline Schema numbers_schema(int64_t count = 100) {
  return Schema({{"sender", DType::kInt32, {}},
                 {"index", DType::kInt64, {}},
                 {"values", DType::kInt64, {count}}});
}

inline int64_t value_at(int32_t sender, int64_t index, int64_t place) {
  return sender * 1'000'003 + index * 101 + place;
}

inline bool push_numbers(Producer& ring, int32_t sender, int64_t index, Deadline deadline) {
  auto slot = ring.begin(deadline);
  if (!slot) return false;
  slot->write(0, &sender);
  slot->write(1, &index);
  auto* values = static_cast<int64_t*>(slot->data(2));
  const auto count = static_cast<int64_t>(ring.schema()[2].elements());
  for (int64_t i = 0; i < count; ++i) values[i] = value_at(sender, index, i);
  slot->commit();
  return true;
}

struct Numbers {
  int32_t sender = -1;
  int64_t index = -1;
  bool whole = false;
};
inline Numbers read_numbers(const Batch& batch, size_t sample, int64_t count = 100) {
  Numbers read;
  std::memcpy(&read.sender, batch.data(sample, 0), sizeof read.sender);
  std::memcpy(&read.index, batch.data(sample, 1), sizeof read.index);
  const auto* values = static_cast<const int64_t*>(batch.data(sample, 2));
  read.whole = true;
  for (int64_t i = 0; i < count; ++i)
    read.whole = read.whole && values[i] == value_at(read.sender, read.index, i);
  return read;
}

}  // namespace lockstep::inline v0::insitu::ring_test
