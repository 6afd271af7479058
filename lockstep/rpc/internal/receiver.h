// Receiver: makes messages of a stream of bytes. It reads no socket itself: it says where the next bytes shall go, and is
// told how many came. Not a public header.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/rpc/internal/frame.h"
#include "lockstep/rpc/internal/receive_memory.h"
#include "lockstep/rpc/message.h"

namespace lockstep::rpc::internal {

// One thread at a time.
class Receiver {
 public:
  // A message whose bytes are all there. `places` and `tensors` belong to each other; a tensor that is named by its
  // address is undefined as yet.
  struct Message {
    const FrameHead& head;
    std::string_view body;
    const std::vector<TensorPlace>& places;
    Tensors& tensors;
  };
  using Taker = std::function<void(Message&)>;

  static constexpr size_t kBuffer = size_t{64} << 10;

  // `most_bytes`: of one message's tensors.
  Receiver(uint64_t most_bytes, std::shared_ptr<ReceiveMemory> memory);

  // Where to read to, one place or two: many small messages at a time, large tensors straight into their storage. Not
  // empty; valid until came().
  std::span<const iovec> places();
  // `bytes` bytes, at most what places() has room for, are there. `take` is called for each message that is complete.
  // It takes no more memory than twice what came, but for storages, whose pages nobody writes before their bytes come.
  // Throws BadFrame (nothing may be called any more), and what `take` throws.
  void came(size_t bytes, const Taker& take);
  // Whether the stream is between two messages.
  bool between() const { return step_ == Step::kHead && begin_ == end_; }

 private:
  enum class Step { kHead, kFront, kTensors };
  // Each: whether the next step can be done at once.
  bool read_head();
  bool read_front();
  bool read_tensors();
  size_t front_bytes() const { return kHeadBytes + head_.body + head_.table; }
  void make_room();

  const uint64_t most_bytes_;
  std::shared_ptr<ReceiveMemory> memory_;
  std::unique_ptr<char[]> buffer_;
  size_t capacity_;
  size_t begin_ = 0;  // of the message that is being read
  size_t end_ = 0;    // of what came
  Step step_ = Step::kHead;
  FrameHead head_;
  std::vector<TensorPlace> rows_;
  Tensors tensors_;
  size_t taken_ = 0;        // in the buffer, of the message; the rest are its next tensors' bytes
  size_t next_ = 0;         // tensor
  char* target_ = nullptr;  // where its bytes go
  size_t left_ = 0;         // of them
  std::array<iovec, 2> places_{};
};

}  // namespace lockstep::rpc::internal
