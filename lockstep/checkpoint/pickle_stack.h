// The stack, marks and memo of the machine that reads a pickle (PEP 307); every size is bounded.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/checkpoint/pickle_reader.h"

namespace lockstep {

// Throws CheckpointError that begins with `file`, which must outlive it, for a pickle that takes
// what is not there, or too much.
class PickleStack {
 public:
  explicit PickleStack(const std::string& file) : file_(file) {}

  // A new value onto the stack.
  void push(PickleValue value);
  // What was pushed before the latest mark is out of reach until the mark is taken.
  uint32_t pop();
  std::vector<uint32_t> pop(size_t count);
  uint32_t top() const;

  void mark();
  std::vector<uint32_t> pop_to_mark();

  // The value on top, under a number; and that value again.
  void remember(uint32_t number);
  void recall(uint32_t number);

  PickleValue& value(uint32_t index) { return pickle_.values[index]; }

  // The values, when one is left.
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

}  // namespace lockstep
