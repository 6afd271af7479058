#include "lockstep/rpc/internal/receiver.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep::inline v0::rpc::internal {

Receiver::Receiver(uint64_t most_bytes, std::shared_ptr<ReceiveMemory> memory)
    : most_bytes_(most_bytes),
      memory_(std::move(memory)),
      buffer_(std::make_unique_for_overwrite<char[]>(kBuffer)),
      capacity_(kBuffer) {}

std::span<const iovec> Receiver::places() {
  make_room();
  size_t count = 0;
  if (left_ > 0) places_[count++] = {target_, left_};
  if (end_ < capacity_) places_[count++] = {buffer_.get() + end_, capacity_ - end_};
  return {places_.data(), count};
}

// The buffered bytes move to the beginning of the buffer when it is short of room; a message whose
// front does not fit gets a larger buffer, step by step, as its bytes arrive.
void Receiver::make_room() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
    if (capacity_ > 16 * kBuffer) {
      buffer_ = std::make_unique_for_overwrite<char[]>(kBuffer);
      capacity_ = kBuffer;
    }
  }
  if (left_ > 0 || capacity_ - end_ >= kBuffer / 2) return;
  if (begin_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ < capacity_) return;
  auto larger = std::make_unique_for_overwrite<char[]>(2 * capacity_);
  std::memcpy(larger.get(), buffer_.get(), end_);
  buffer_ = std::move(larger);
  capacity_ *= 2;
}

void Receiver::came(size_t bytes, const Taker& take) {
  if (left_ > 0) {
    const size_t direct = std::min(bytes, left_);
    target_ += direct;
    left_ -= direct;
    bytes -= direct;
  }
  LOCKSTEP_CHECK(bytes <= capacity_ - end_, "no more came than there was room for");
  end_ += bytes;
  while (true) {
    if (step_ == Step::kHead && !read_head()) return;
    if (step_ == Step::kFront && !read_front()) return;
    if (!read_tensors()) return;
    Message message{head_, {buffer_.get() + begin_ + kHeadBytes, head_.body}, rows_, tensors_};
    take(message);
    begin_ += taken_;
    tensors_.clear();
    step_ = Step::kHead;
  }
}

bool Receiver::read_head() {
  if (end_ - begin_ < kHeadBytes) return false;
  head_ = internal::read_head(buffer_.get() + begin_);
  step_ = Step::kFront;
  return true;
}

bool Receiver::read_front() {
  if (end_ - begin_ < front_bytes()) return false;
  rows_.clear();
  if (head_.tensors > 0)
    read_table({buffer_.get() + begin_ + kHeadBytes + head_.body, head_.table}, head_, most_bytes_,
               rows_);
  taken_ = front_bytes();
  next_ = 0;
  step_ = Step::kTensors;
  return true;
}

bool Receiver::read_tensors() {
  while (true) {
    // Either the tensor is complete, or the buffer has its next bytes.
    if (left_ > 0) {
      const size_t here = std::min(left_, end_ - begin_ - taken_);
      std::memcpy(target_, buffer_.get() + begin_ + taken_, here);
      target_ += here;
      left_ -= here;
      taken_ += here;
      if (left_ > 0) {
        end_ = begin_ + front_bytes();  // the bytes behind the front have been taken out
        taken_ = front_bytes();
        return false;
      }
    }
    if (next_ == rows_.size()) return true;
    const TensorPlace& row = rows_[next_++];
    if (row.address != 0) {
      tensors_.emplace_back();
      continue;
    }
    tensors_.push_back(memory_->tensor(row.dtype, row.sizes, row.bytes));
    target_ = static_cast<char*>(tensors_.back().unsafeGetTensorImpl()->mutable_data());
    left_ = row.bytes;
  }
}

}  // namespace lockstep::inline v0::rpc::internal
