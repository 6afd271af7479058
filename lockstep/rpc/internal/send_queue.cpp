#include "lockstep/rpc/internal/send_queue.h"

#include <algorithm>

namespace lockstep::inline v0::rpc::internal {
namespace {

constexpr size_t kKeptCapacity = size_t{1} << 20;  // of memory for later bytes

}  // namespace

void SendQueue::add(std::string_view bytes) {
  if (bytes.empty()) return;
  if (pieces_.empty() || pieces_.back().data) pieces_.push_back({nullptr, text_.size(), 0});
  text_ += bytes;
  pieces_.back().size += bytes.size();
  bytes_ += bytes.size();
}

void SendQueue::add(const at::Tensor& tensor, size_t bytes) {
  const auto* data = static_cast<const char*>(tensor.const_data_ptr());
  if (bytes < kCopied) return add(std::string_view(data, bytes));
  pieces_.push_back({data, 0, bytes});
  tensors_.push_back(tensor);
  bytes_ += bytes;
}

size_t SendQueue::pieces(std::span<iovec> room) const {
  size_t count = 0, skip = skip_;
  for (size_t i = first_; i < pieces_.size() && count < room.size(); ++i) {
    const Piece& piece = pieces_[i];
    const char* data = piece.data ? piece.data : text_.data() + piece.begin;
    room[count++] = {const_cast<char*>(data) + skip, piece.size - skip};
    skip = 0;
  }
  return count;
}

void SendQueue::written(size_t bytes) {
  written_ += bytes;
  if (written_ == bytes_) return clear();
  for (bytes += skip_; bytes >= pieces_[first_].size; ++first_) bytes -= pieces_[first_].size;
  skip_ = bytes;
}

void SendQueue::clear() {
  text_.clear();
  if (text_.capacity() > kKeptCapacity) text_.shrink_to_fit();
  pieces_.clear();
  tensors_.clear();
  bytes_ = written_ = first_ = skip_ = 0;
}

}  // namespace lockstep::inline v0::rpc::internal
