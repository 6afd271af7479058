// Outbox: bytes that wait to be written to a socket, in order; small ones side by side in one piece, those of larger tensors
// where they lie. Not a public header.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::rpc::internal {

// Not thread-safe. Keeps its memory for what comes next.
class Outbox {
 public:
  // A tensor of fewer bytes is copied.
  static constexpr size_t kCopied = 4096;

  bool empty() const { return written_ == bytes_; }
  size_t bytes() const { return bytes_ - written_; }  // left

  void add(std::string_view bytes);
  // A contiguous tensor, kept until it is written.
  void add(const at::Tensor& tensor, size_t bytes);

  // The next pieces to write, as many as there is room for; their number.
  size_t pieces(std::span<iovec> room) const;
  // So many bytes of them have been written. Ends tensors only when all is.
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
  size_t first_ = 0;  // piece that is not written
  size_t skip_ = 0;   // of its bytes, those that are
};

}  // namespace lockstep::rpc::internal
