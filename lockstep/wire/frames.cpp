#include "lockstep/wire/frames.h"

#include <array>

#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"

namespace lockstep::inline v0::wire {
namespace {

constexpr size_t kLengthBytes = 4;

// Throws above the limit.
size_t read_length(std::string_view bytes, size_t most) {
  size_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;)
    length = length << 8 | static_cast<unsigned char>(bytes[i]);
  if (length <= most) return length;
  throw StoreError("a message claims " + std::to_string(length) + " bytes; at most " +
                   std::to_string(most) + " are allowed: the other end speaks something else");
}

}  // namespace

std::string make_frame(std::string_view body, size_t most) {
  if (body.size() > most) {
    throw InvalidArgument("a message of " + std::to_string(body.size()) + " bytes; at most " +
                          std::to_string(most) + " are allowed");
  }
  std::string frame;
  frame.reserve(kLengthBytes + body.size());
  for (size_t i = 0; i < kLengthBytes; ++i) frame += static_cast<char>(body.size() >> (8 * i));
  frame += body;
  return frame;
}

void FrameReader::append(std::string_view bytes) {
  buffer_.erase(0, begin_);
  begin_ = 0;
  buffer_ += bytes;
}

std::optional<std::string_view> FrameReader::next() {
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  if (rest.size() < kLengthBytes) return std::nullopt;
  const size_t length = read_length(rest, most_);
  if (rest.size() - kLengthBytes < length) return std::nullopt;
  begin_ += kLengthBytes + length;
  return rest.substr(kLengthBytes, length);
}

void send_frame(int fd, std::string_view body, size_t most, Deadline deadline) {
  const std::string frame = make_frame(body, most);
  write_exact(fd, frame.data(), frame.size(), deadline);
}

std::string receive_frame(int fd, size_t most, Deadline deadline) {
  std::array<char, kLengthBytes> head{};
  read_exact(fd, head.data(), head.size(), deadline);
  std::string body(read_length({head.data(), head.size()}, most), '\0');
  read_exact(fd, body.data(), body.size(), deadline);
  return body;
}

}  // namespace lockstep::inline v0::wire
