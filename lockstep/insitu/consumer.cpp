#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/insitu/ring.h"
#include "lockstep/insitu/ring_member.h"

namespace lockstep::inline v0::insitu {

Batch::Batch(Batch&& other) noexcept = default;
Batch& Batch::operator=(Batch&& other) noexcept {
  if (this != &other) {
    clear();
    member_ = std::move(other.member_);
    samples_ = std::move(other.samples_);
    other.samples_.clear();
  }
  return *this;
}
Batch::~Batch() {
  clear();
}

const Batch::Sample& Batch::at(size_t sample) const {
  if (sample >= samples_.size())
    throw InvalidArgument("insitu: there is no sample " + std::to_string(sample) +
                          "; the batch has " + std::to_string(samples_.size()));
  return samples_[sample];
}

const Schema& Batch::schema() const {
  static const Schema none;
  return member_ ? member_->memory.geometry().schema : none;
}

const void* Batch::data(size_t sample, size_t field) const {
  const uint32_t slot = at(sample).slot;
  const Schema& schema = member_->memory.geometry().schema;
  if (field >= schema.size())
    throw InvalidArgument("insitu: there is no field " + std::to_string(field) +
                          "; the sample has: " + schema.to_string());
  return member_->memory.slot(slot) + schema.offset(field);
}

uint64_t Batch::number(size_t sample) const {
  return at(sample).number;
}

uint32_t Batch::producer(size_t sample) const {
  return at(sample).producer;
}

void Batch::clear() noexcept {
  for (const Sample& sample : samples_) member_->memory.release(sample.slot);
  samples_.clear();
}

void Batch::put_back() noexcept {
  for (const Sample& sample : samples_) member_->memory.put_back(sample.slot, sample.number);
  samples_.clear();
}

Batch Batch::split(size_t sample) {
  Batch one;
  one.samples_.push_back(at(sample));
  one.member_ = member_;
  samples_.erase(samples_.begin() + static_cast<std::ptrdiff_t>(sample));
  return one;
}

Consumer::Consumer(std::shared_ptr<RingMember> member) : member_(std::move(member)) {}
Consumer::Consumer(Consumer&&) noexcept = default;
Consumer& Consumer::operator=(Consumer&&) noexcept = default;
Consumer::~Consumer() = default;

Consumer Consumer::open(const std::string& name, Deadline deadline, const Schema& schema) {
  Meeting meeting = meet(name, std::nullopt, deadline);
  if (!schema.empty()) expect_schema(name, meeting.memory.get(), schema);
  return Consumer(std::make_shared<RingMember>(std::move(meeting), /*producer=*/false));
}

const Schema& Consumer::schema() const {
  return member_->memory.geometry().schema;
}

int Consumer::slots() const {
  return static_cast<int>(member_->memory.slots());
}

Batch Consumer::take(size_t count, Deadline deadline) {
  RingMemory& ring = member_->memory;
  if (count == 0 || count > ring.slots())
    throw InvalidArgument("insitu: a batch of " + std::to_string(count) +
                          " samples; the ring has " + std::to_string(ring.slots()) + " slots");
  Batch batch;
  batch.member_ = member_;
  batch.samples_.reserve(count);
  const auto take_what_is_there = [&] {
    while (batch.size() < count) {
      const auto taken = ring.take();
      if (!taken) return false;
      batch.samples_.push_back({taken->slot, taken->producer, taken->number});
    }
    return true;
  };
  ring.sweep_now_and_then();
  ring.wait_for(ring.header().data, deadline, [&] {
    if (take_what_is_there()) return true;
    if (!ring.producers_finished()) return false;
    take_what_is_there();  // what was committed before the last one finished
    return true;
  });
  return batch;
}

bool Consumer::ended() const {
  RingMemory& ring = member_->memory;
  ring.sweep_now_and_then();
  return ring.producers_finished() && ring.held().full == 0;
}

RingStats Consumer::stats() const {
  return member_->memory.stats();
}

}  // namespace lockstep::inline v0::insitu
