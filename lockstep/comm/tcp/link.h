// Link: this rank's end of the connection to one peer. Writes frames, gathered, straight from where
// their payload lies; reads payloads straight to where they belong. Never blocks.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/tcp/frame.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::tcp {

// Learns that a frame's payload has left: its memory may be written again.
class SendListener {
 public:
  virtual ~SendListener() = default;
  virtual void sent(int token) = 0;
};

// Gets what arrives. Must not destroy the link from inside.
class FrameListener {
 public:
  virtual ~FrameListener() = default;
  // A header and its text are here; returns where `header.bytes` of payload shall go.
  virtual std::byte* begin_frame(int peer, const FrameHeader& header, std::string_view text) = 0;
  // The payload is there; also for a frame without one.
  virtual void end_frame(int peer, const FrameHeader& header) = 0;
};

class Link {
 public:
  // `fd` is connected and non-blocking.
  Link(UniqueFd fd, int peer);

  int fd() const { return fd_.get(); }
  int peer() const { return peer_; }

  // Queues a frame; fills in text_bytes and bytes. `payload` must stay until listener->sent(token),
  // where there is a listener; without one the payload is copied.
  void push(FrameHeader header, std::string_view text, const std::byte* payload = nullptr,
            size_t bytes = 0, std::shared_ptr<SendListener> listener = nullptr, int token = 0);
  // Writes what the connection takes. True if anything was written.
  bool flush();
  bool has_output() const { return !queue_.empty(); }

  // Reads what is there, up to a few MiB. True if anything was read.
  bool receive(FrameListener& listener);
  // In the midst of a frame.
  bool is_receiving() const { return in_payload_ || end_ > begin_; }

  // No more can be read: "" while the connection stands.
  const std::string& lost() const { return lost_; }
  void lose(const std::string& reason);

  // Drops what is queued but for a frame that has begun, whose rest is copied: no memory of others
  // is touched afterwards.
  void drop_output();
  // Nothing is received any more.
  void stop_receiving() { stopped_ = true; }

  // Writes what is left and throws away what comes. True once the peer's system has all that this
  // rank wrote: then it may be read even if this end closes before it has read everything itself.
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
  size_t written_ = 0;  // of the front frame
  uint64_t payload_sent_ = 0;

  std::vector<std::byte> buffer_;
  size_t begin_ = 0, end_ = 0;  // unread bytes of buffer_
  FrameHeader header_{};
  bool in_payload_ = false;
  std::byte* target_ = nullptr;
  size_t left_ = 0;  // of the payload
};

}  // namespace lockstep::tcp
