// The stack, marks and memo of the machine that reads a pickle (PEP 307); every size is bounded.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/checkpoint/pickle_reader.h"

namespace lockstep::inline v0 {

// Throws CheckpointError that begins with `file`, which must outlive it, for a pickle that takes
// missing values, or too many.
class PickleStack {
 public:
  explicit PickleStack(const std::string& file) : file_(file) {}

  // Pushes a new value.
  void push(PickleValue value);
  // Values below the latest mark cannot be popped until the mark is taken.
  uint32_t pop();
  std::vector<uint32_t> pop(size_t count);
  uint32_t top() const;

  void mark();
  std::vector<uint32_t> pop_to_mark();

  // Stores the value on top under a number, and pushes that value again.
  void remember(uint32_t number);
  void recall(uint32_t number);

  PickleValue& value(uint32_t index) { return pickle_.values[index]; }

  // Returns the values once one is left on the stack.
  Pickle finish();

 private:
  [[noreturn]] void damaged() const;
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  const std::string& file_;
  Pickle pickle_;
  std::vector<uint32_t> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint32_t, uint32_t> memo_;
};

}  // namespace lockstep::inline v0
