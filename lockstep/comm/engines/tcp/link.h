// Link: this rank's end of the connection to one peer. It writes frames, gathered, straight from
// their payload's memory, and reads payloads straight into theirs. Never blocks.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/engines/tcp/frame.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::tcp {

// Told when a frame's payload has been sent: its memory may be reused.
class SendListener {
 public:
  virtual ~SendListener() = default;
  virtual void sent(int token) = 0;
};

// Receives what arrives. Must not destroy the link from inside.
class FrameListener {
 public:
  virtual ~FrameListener() = default;
  // A header and its text have arrived; returns the destination of `header.bytes` of payload.
  virtual std::byte* begin_frame(int peer, const FrameHeader& header, std::string_view text) = 0;
  // The payload has arrived; also called for a frame without one.
  virtual void end_frame(int peer, const FrameHeader& header) = 0;
};

class Link {
 public:
  // `fd` is connected and non-blocking.
  Link(UniqueFd fd, int peer);

  int fd() const { return fd_.get(); }
  int peer() const { return peer_; }

  // Queues a frame; fills in text_bytes and bytes. With a listener, `payload` must stay valid until
  // listener->sent(token); without one it is copied.
  void push(FrameHeader header, std::string_view text, const std::byte* payload = nullptr,
            size_t bytes = 0, std::shared_ptr<SendListener> listener = nullptr, int token = 0);
  // Writes as much as the connection takes. True if anything was written.
  bool flush();
  bool has_output() const { return !queue_.empty(); }

  // Reads what has arrived, up to a few MiB. True if anything was read.
  bool receive(FrameListener& listener);
  // Whether a frame has arrived in part.
  bool is_receiving() const { return in_payload_ || end_ > begin_; }

  // Why no more can be read; "" while the connection stands.
  const std::string& lost() const { return lost_; }
  void lose(const std::string& reason);

  // Drops queued frames, except one that has begun, whose rest is copied: callers' memory is not
  // touched afterwards.
  void drop_output();
  // Stops receiving.
  void stop_receiving() { stopped_ = true; }

  // Writes the rest and discards received data. True once the peer's system has all data that this
  // rank wrote: the peer can then read it even if this end closes before it has read everything
  // itself.
  bool settle();

  // Payload bytes of kData, kMessage and kPart that were written.
  uint64_t payload_sent() const { return payload_sent_; }

 private:
  struct Outgoing {
    FrameHeader header;
    std::string text;
    const std::byte* payload = nullptr;
    std::unique_ptr<std::byte[]> owned;
    std::shared_ptr<SendListener> listener;
    int token = 0;
    size_t size() const { return sizeof(FrameHeader) + text.size() + header.bytes; }
  };
  bool parse(FrameListener& listener);
  void finish_written(size_t bytes);

  UniqueFd fd_;
  int peer_;
  std::string lost_;
  bool stopped_ = false;
  bool write_failed_ = false;

  std::deque<Outgoing> queue_;
  size_t written_ = 0;  // bytes of the front frame
  uint64_t payload_sent_ = 0;

  std::vector<std::byte> buffer_;
  size_t begin_ = 0, end_ = 0;  // unread bytes of buffer_
  FrameHeader header_{};
  bool in_payload_ = false;
  std::byte* target_ = nullptr;
  size_t left_ = 0;  // bytes of the payload still to come
};

}  // namespace lockstep::inline v0::tcp
