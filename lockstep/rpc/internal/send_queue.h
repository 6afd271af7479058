// SendQueue: bytes that wait to be written to a socket, in order. Small ones are copied together
// into one piece; larger tensors are written from their own memory. Not a public header.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::inline v0::rpc::internal {

// It keeps its memory for later bytes.
// Thread-safety: one thread at a time.
class SendQueue {
 public:
  // Smaller tensors are copied. Bytes.
  static constexpr size_t kCopied = 4096;

  bool empty() const { return written_ == bytes_; }
  size_t bytes() const { return bytes_ - written_; }  // bytes left

  void add(std::string_view bytes);
  // A contiguous tensor, kept until it is written.
  void add(const at::Tensor& tensor, size_t bytes);

  // The next pieces to write, as many as `room` holds; returns their number.
  size_t pieces(std::span<iovec> room) const;
  // Records that `bytes` more have been written. Releases tensors only after everything is written.
  void written(size_t bytes);
  void clear();

 private:
  struct Piece {
    const char* data;  // null: in text_, at `begin`
    size_t begin;
    size_t size;
  };
  std::string text_;
  std::vector<Piece> pieces_;
  std::vector<at::Tensor> tensors_;
  size_t bytes_ = 0;
  size_t written_ = 0;
  size_t first_ = 0;  // the first piece that is not written
  size_t skip_ = 0;   // its bytes that are written
};

}  // namespace lockstep::inline v0::rpc::internal
