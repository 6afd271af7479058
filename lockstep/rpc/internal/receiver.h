// Receiver: makes messages of a stream of bytes. It reads no socket itself: it says where the next
// bytes must be read to, and is told how many were. Not a public header.
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

namespace lockstep::inline v0::rpc::internal {

// One thread at a time.
class Receiver {
 public:
  // A complete message. `places` and `tensors` correspond; a tensor that is named by its address is
  // still undefined.
  struct Message {
    const FrameHead& head;
    std::string_view body;
    const std::vector<TensorPlace>& places;
    Tensors& tensors;
  };
  using Taker = std::function<void(Message&)>;

  static constexpr size_t kBuffer = size_t{64} << 10;

  // `most_bytes`: the limit for one message's tensors.
  Receiver(uint64_t most_bytes, std::shared_ptr<ReceiveMemory> memory);

  // The one or two places to read to: many small messages at a time, large tensors straight into
  // their storage. Not empty; valid until came().
  std::span<const iovec> places();
  // `bytes` bytes, at most the room of places(), have been read. `take` is called for each complete
  // message. It uses at most twice the memory of the received bytes, except for storages, whose
  // pages are not touched before their bytes arrive. Throws BadFrame (the receiver is unusable
  // afterwards), and the errors of `take`.
  void came(size_t bytes, const Taker& take);
  // Whether the stream is between two messages.
  bool between() const { return step_ == Step::kHead && begin_ == end_; }

 private:
  enum class Step { kHead, kFront, kTensors };
  // Each returns whether the next step can be done at once.
  bool read_head();
  bool read_front();
  bool read_tensors();
  size_t front_bytes() const { return kHeadBytes + head_.body + head_.table; }
  void make_room();

  const uint64_t most_bytes_;
  std::shared_ptr<ReceiveMemory> memory_;
  std::unique_ptr<char[]> buffer_;
  size_t capacity_;
  size_t begin_ = 0;  // beginning of the message that is being read
  size_t end_ = 0;    // end of the received bytes
  Step step_ = Step::kHead;
  FrameHead head_;
  std::vector<TensorPlace> rows_;
  Tensors tensors_;
  size_t taken_ = 0;  // bytes of the message taken from the buffer; the rest are its next tensors'
  size_t next_ = 0;   // index of the current tensor
  char* target_ = nullptr;  // destination of its bytes
  size_t left_ = 0;         // its bytes that are still missing
  std::array<iovec, 2> places_{};
};

}  // namespace lockstep::inline v0::rpc::internal
