#include "lockstep/comm/engines/tcp/link.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::tcp {
namespace {

constexpr size_t kBuffer = 64 * 1024;
static_assert(kBuffer >= sizeof(FrameHeader) + kMaxText);
constexpr size_t kBudget = size_t{4} << 20;  // bytes read from one peer before the others' turn
constexpr int kGather = 48;                  // memory blocks per write

std::string reason_of(int error) {
  return std::string("the connection failed: ") + std::strerror(error);
}

}  // namespace

Link::Link(UniqueFd fd, int peer) : fd_(std::move(fd)), peer_(peer), buffer_(kBuffer) {}

void Link::lose(const std::string& reason) {
  if (!lost_.empty()) return;
  lost_ = reason;
  queue_.clear();
  written_ = 0;
}

void Link::push(FrameHeader header, std::string_view text, const std::byte* payload, size_t bytes,
                std::shared_ptr<SendListener> listener, int token) {
  LOCKSTEP_CHECK(bytes <= kMaxPayload, "a frame's payload is at most kMaxPayload");
  if (!lost_.empty()) return;
  Outgoing& out = queue_.emplace_back();
  out.text = text.substr(0, kMaxText);
  header.text_bytes = static_cast<uint16_t>(out.text.size());
  header.bytes = bytes;
  out.header = header;
  out.payload = payload;
  if (!listener && bytes > 0) {
    out.owned = std::make_unique<std::byte[]>(bytes);
    std::memcpy(out.owned.get(), payload, bytes);
    out.payload = out.owned.get();
  }
  out.listener = std::move(listener);
  out.token = token;
}

bool Link::flush() {
  bool moved = false;
  while (!queue_.empty() && !write_failed_) {
    std::array<iovec, kGather> pieces;
    size_t count = 0;
    size_t skip = written_;
    size_t wanted = 0;
    const auto add = [&](const void* data, size_t size) {
      if (skip >= size) {
        skip -= size;
        return;
      }
      pieces[count++] = {static_cast<char*>(const_cast<void*>(data)) + skip, size - skip};
      wanted += size - skip;
      skip = 0;
    };
    for (const Outgoing& out : queue_) {
      if (count + 3 > kGather) break;
      add(&out.header, sizeof out.header);
      add(out.text.data(), out.text.size());
      add(out.payload, out.header.bytes);
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    const ssize_t n = ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      // Data that the peer wrote before it left may still be read: receive() tells when it is lost.
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) write_failed_ = true;
      break;
    }
    moved |= n > 0;
    finish_written(static_cast<size_t>(n));
    if (static_cast<size_t>(n) < wanted) break;
  }
  return moved;
}

void Link::finish_written(size_t bytes) {
  written_ += bytes;
  while (!queue_.empty() && written_ >= queue_.front().size()) {
    Outgoing done = std::move(queue_.front());
    queue_.pop_front();
    written_ -= done.size();
    payload_sent_ += done.header.bytes;
    if (done.listener) done.listener->sent(done.token);  // may push
  }
}

bool Link::receive(FrameListener& listener) {
  if (!lost_.empty() || stopped_) return false;
  bool moved = false;
  size_t budget = kBudget;
  while (budget > 0) {
    ssize_t n = 0;
    size_t room = 0;
    if (in_payload_) {
      // The rest of the payload is read to its place, and what follows into the buffer, which is
      // empty now.
      begin_ = end_ = 0;
      iovec pieces[2] = {{target_, left_}, {buffer_.data(), buffer_.size()}};
      room = left_ + buffer_.size();
      n = ::readv(fd_.get(), pieces, 2);
    } else {
      std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
      room = buffer_.size() - end_;
      n = ::recv(fd_.get(), buffer_.data() + end_, room, MSG_DONTWAIT);
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n <= 0) {
      lose(n == 0 ? "its process is gone" : reason_of(errno));
      return true;
    }
    moved = true;
    const auto got = static_cast<size_t>(n);
    budget -= std::min(budget, got);
    if (in_payload_) {
      const size_t direct = std::min(got, left_);
      target_ += direct;
      left_ -= direct;
      end_ = got - direct;
      if (left_ == 0) {
        in_payload_ = false;
        listener.end_frame(peer_, header_);
      }
    } else {
      end_ += got;
    }
    if (!parse(listener)) return true;
    if (got < room) break;  // most likely all data has been read
  }
  return moved;
}

// Takes frames out of the buffer. Returns false if the link is lost or stopped.
bool Link::parse(FrameListener& listener) {
  while (!in_payload_ && !stopped_) {
    std::optional<FrameHeader> header;
    try {
      header = parse_frame_header({buffer_.data() + begin_, end_ - begin_});
    } catch (const StoreError& error) {
      lose(std::string("it sent ") + error.what());
      return false;
    }
    if (!header || end_ - begin_ < sizeof(FrameHeader) + header->text_bytes) break;
    header_ = *header;
    const std::string_view text(
        reinterpret_cast<const char*>(buffer_.data()) + begin_ + sizeof(FrameHeader),
        header_.text_bytes);
    target_ = listener.begin_frame(peer_, header_, text);
    if (stopped_) return false;
    begin_ += sizeof(FrameHeader) + header_.text_bytes;
    const size_t there = std::min<size_t>(header_.bytes, end_ - begin_);
    if (there > 0) std::memcpy(target_, buffer_.data() + begin_, there);
    begin_ += there;
    left_ = header_.bytes - there;
    if (left_ > 0) {
      target_ += there;
      in_payload_ = true;
    } else {
      listener.end_frame(peer_, header_);
    }
  }
  return lost_.empty() && !stopped_;
}

bool Link::settle() {
  if (!lost_.empty()) return true;
  flush();
  while (true) {
    const ssize_t n = ::recv(fd_.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    if (n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return true;
    break;
  }
  int unsent = 0;
  return write_failed_ ||
         (queue_.empty() && (::ioctl(fd_.get(), SIOCOUTQ, &unsent) != 0 || unsent == 0));
}

void Link::drop_output() {
  if (written_ == 0) {
    queue_.clear();
    return;
  }
  queue_.resize(1);
  Outgoing& front = queue_.front();
  if (front.listener && front.header.bytes > 0) {
    front.owned = std::make_unique<std::byte[]>(front.header.bytes);
    // The part of the payload that is already written needs no copy, but its place counts.
    std::memcpy(front.owned.get(), front.payload, front.header.bytes);
    front.payload = front.owned.get();
  }
  front.listener.reset();
}

}  // namespace lockstep::inline v0::tcp
