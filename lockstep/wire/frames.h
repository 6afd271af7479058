// Frames: cut a stream of bytes into messages. A frame is a 32-bit little-endian length and that
// many bytes of body. The contents of a body are defined by its users: the store's requests, the
// agents' and the doctor's JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/core/deadline.h"

namespace lockstep::inline v0::wire {

// The frame of a body.
// Throws: InvalidArgument beyond `most` bytes.
std::string make_frame(std::string_view body, size_t most);

// Cuts a stream into bodies. Pure.
class FrameReader {
 public:
  // `most`: maximum bytes of a body.
  explicit FrameReader(size_t most) : most_(most) {}

  void append(std::string_view bytes);
  // The next body, or nullopt until more bytes arrive; valid until the next append().
  // Throws: StoreError on a length beyond the limit, as soon as the length has arrived.
  std::optional<std::string_view> next();

 private:
  size_t most_;
  std::string buffer_;
  size_t begin_ = 0;  // bytes before this were returned
};

// The blocking forms, over a connected stream socket. Throw as write_exact() and read_exact()
// (core/net.h), and as the functions above.
void send_frame(int fd, std::string_view body, size_t most, Deadline deadline);
std::string receive_frame(int fd, size_t most, Deadline deadline);

}  // namespace lockstep::inline v0::wire
