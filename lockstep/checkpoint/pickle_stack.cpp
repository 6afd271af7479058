#include "lockstep/checkpoint/pickle_stack.h"

#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

constexpr size_t kMostValues = 4 << 20;
constexpr size_t kDeepest = 10'000;

}  // namespace

void PickleStack::damaged() const {
  throw CheckpointError(file_ + ": its pickle is damaged");
}

void PickleStack::push(PickleValue value) {
  if (pickle_.values.size() == kMostValues)
    throw CheckpointError(file_ + ": its pickle holds more than four million objects");
  stack_.push_back(static_cast<uint32_t>(pickle_.values.size()));
  pickle_.values.push_back(std::move(value));
}

uint32_t PickleStack::pop() {
  const uint32_t value = top();
  stack_.pop_back();
  return value;
}

std::vector<uint32_t> PickleStack::pop(size_t count) {
  if (stack_.size() - floor() < count) damaged();
  const std::vector<uint32_t> values(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
  stack_.resize(stack_.size() - count);
  return values;
}

uint32_t PickleStack::top() const {
  if (stack_.size() <= floor()) damaged();
  return stack_.back();
}

void PickleStack::mark() {
  if (marks_.size() == kDeepest) throw CheckpointError(file_ + ": its pickle is nested too deeply");
  marks_.push_back(stack_.size());
}

std::vector<uint32_t> PickleStack::pop_to_mark() {
  if (marks_.empty()) damaged();
  auto values = pop(stack_.size() - marks_.back());
  marks_.pop_back();
  return values;
}

void PickleStack::remember(uint32_t number) {
  memo_[number] = top();
  if (memo_.size() > pickle_.values.size()) damaged();  // each value is memoised once
}

void PickleStack::recall(uint32_t number) {
  const auto found = memo_.find(number);
  if (found == memo_.end()) damaged();
  stack_.push_back(found->second);
}

Pickle PickleStack::finish() {
  if (stack_.size() != 1 || !marks_.empty()) damaged();
  pickle_.root = stack_[0];
  return std::move(pickle_);
}

}  // namespace lockstep::inline v0
