#include <ATen/core/Tensor.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/rpc/internal/stream_link.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

constexpr size_t kGather = 64;  // memory blocks per write
constexpr size_t kWrittenAtATime =
    size_t{4}  // By one thread for all; afterwards it is the leader's turn.
    << 20;

void check_one(const at::Tensor& tensor) {
  if (!tensor.defined()) throw InvalidArgument("rpc: an undefined tensor cannot be sent");
  if (tensor.layout() != at::kStrided || !travels(tensor.scalar_type()))
    throw InvalidArgument(std::string("rpc: a tensor of layout ") +
                          (tensor.layout() == at::kStrided ? "strided" : "sparse") + " and dtype " +
                          c10::toString(tensor.scalar_type()) +
                          " cannot be sent; send dense tensors, not quantized");
  if (tensor.dim() > static_cast<int64_t>(kMostDims))
    throw InvalidArgument("rpc: a tensor of " + std::to_string(tensor.dim()) +
                          " dims cannot be sent; 64 are the most");
}

// The tensor as it is sent: contiguous, without gradients. Throws InvalidArgument.
at::Tensor dense(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu())
    throw InvalidArgument("rpc: a tensor on " + tensor.device().str() +
                          " cannot be sent; move it to the CPU first");
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor;
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

std::string_view bytes_of(const FrameHead& head) {
  return {reinterpret_cast<const char*>(&head), kHeadBytes};
}

}  // namespace

void StreamLink::check(size_t body_bytes, const Tensors& tensors) const {
  if (body_bytes > kMostBody)
    throw InvalidArgument("rpc: a message of " + std::to_string(body_bytes) +
                          " bytes beside its tensors; " + std::to_string(kMostBody) +
                          " are the most");
  if (tensors.size() > kMostTensors)
    throw InvalidArgument("rpc: a message of " + std::to_string(tensors.size()) + " tensors; " +
                          std::to_string(kMostTensors) + " are the most");
  uint64_t total = 0;
  for (const at::Tensor& tensor : tensors) {
    check_one(tensor);
    total += tensor.nbytes();
    if (total > context_->limits.message_bytes)
      throw InvalidArgument("rpc: a message whose tensors have more than " +
                            std::to_string(context_->limits.message_bytes) +
                            " bytes; send them one after the other");
  }
}

bool StreamLink::send(const MessageHead& message, std::string_view body, std::string_view body_end,
                      const Tensors& tensors, When when) {
  check(body.size() + body_end.size(), tensors);
  FrameHead head;
  head.kind = message.kind;
  head.references = message.references ? 1 : 0;
  head.call = message.call;
  head.body = static_cast<uint32_t>(body.size() + body_end.size());
  head.tensors = static_cast<uint32_t>(tensors.size());

  std::string table;
  Tensors inline_tensors;
  Kept named;
  const bool by_address = introduction_.other_end_reads;
  for (size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor tensor = dense(tensors[i]);
    const bool to_device = message.devices && !message.devices->empty();
    const c10::Device device = to_device ? (*message.devices)[i] : c10::Device(c10::kCPU);
    const auto bytes = static_cast<uint64_t>(tensor.nbytes());
    // A tensor for a device lies in pinned memory, which a driver may not let other processes read.
    const bool by = by_address && device.is_cpu() && bytes >= static_cast<uint64_t>(kReachFrom);
    append_row(table, tensor.scalar_type(), tensor.sizes(),
               by ? reinterpret_cast<uint64_t>(tensor.const_data_ptr()) : 0, device);
    if (by) named.bytes += bytes;
    (by ? named.tensors : inline_tensors).push_back(std::move(tensor));
  }
  head.table = static_cast<uint32_t>(table.size());

  bool write_now = false, ask = false;
  {
    MutexLock lock(send_mutex_);
    if (broken_ || lost()) return false;
    const size_t before = filling_.bytes();
    if (!named.tensors.empty()) {
      head.ticket = ++last_ticket_;
      queued_.fetch_add(named.bytes);
      kept_.emplace(head.ticket, std::move(named));
    }
    filling_.add(bytes_of(head));
    filling_.add(body);
    filling_.add(body_end);
    filling_.add(table);
    for (const at::Tensor& tensor : inline_tensors) filling_.add(tensor, tensor.nbytes());
    queued_.fetch_add(filling_.bytes() - before);
    if (handing_out_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
      answered_ = true;
    } else if (being_written_ || blocked_) {
      // The writing thread takes it along.
    } else if (when == When::kSoon) {
      ask = true;
    } else {
      write_now = being_written_ = true;
      if (writing_.empty()) std::swap(filling_, writing_);
    }
  }
  if (write_now) write();
  if (ask && !written_soon.exchange(true)) context_->write_soon(shared_from_this());
  if (when != When::kMine && !looked_at_.load() && !reading_.load()) look(true);
  return true;
}

void StreamLink::flush() {
  {
    MutexLock lock(send_mutex_);
    if (being_written_ || blocked_ || broken_ || (filling_.empty() && writing_.empty())) return;
    being_written_ = true;
  }
  write();
}

void StreamLink::write() {
  size_t most = kWrittenAtATime;
  while (true) {
    if (writing_.empty()) {
      MutexLock lock(send_mutex_);
      if (filling_.empty() || broken_) {
        being_written_ = false;
        return;
      }
      std::swap(filling_, writing_);
    }
    if (most == 0) return leave_to_leader();
    std::array<iovec, kGather> pieces;
    const size_t count = writing_.pieces(pieces);
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count;
    const ssize_t n = count == 1 ? ::send(fd_.get(), pieces[0].iov_base, pieces[0].iov_len,
                                          MSG_DONTWAIT | MSG_NOSIGNAL)
                                 : ::sendmsg(fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS))
      return leave_to_leader();
    if (n < 0) return write_failed();
    const auto bytes = static_cast<size_t>(n);
    writing_.written(bytes);
    no_longer_queued(bytes);
    most -= std::min(most, bytes);
  }
}

// Continues when the socket accepts more data, which may be at once.
void StreamLink::leave_to_leader() {
  {
    MutexLock lock(send_mutex_);
    being_written_ = false;
    blocked_ = true;
  }
  look_for_room(true);
}

// Data that the other end sent before it left may still be read: the reading thread finds out that
// the link is lost.
void StreamLink::write_failed() {
  SendQueue waiting, being_written;  // their tensors are freed without the lock
  {
    MutexLock lock(send_mutex_);
    broken_ = true;
    being_written_ = false;
    std::swap(waiting, filling_);
    std::swap(being_written, writing_);
  }
  no_longer_queued(waiting.bytes() + being_written.bytes());
  if (!reading_.load()) look(true);
}

void StreamLink::no_longer_queued(size_t bytes) {
  queued_.fetch_sub(bytes);
  if (waiting_for_room_.load() == 0) return;
  MutexLock lock(send_mutex_);
  room_.notify_all();
}

bool StreamLink::wait_for_room(Deadline deadline) {
  const auto has_room = [this] { return queued_.load() < context_->limits.queued_bytes; };
  if (has_room()) return true;
  MutexLock lock(send_mutex_);
  waiting_for_room_.fetch_add(1);
  while (!has_room() && !broken_ && !lost())
    if (!room_.wait_until(lock, deadline.time())) break;
  waiting_for_room_.fetch_sub(1);
  return has_room() && !broken_ && !lost();
}

// The other end has read the tensors of a message.
void StreamLink::taken(uint64_t ticket) {
  Kept kept;
  {
    MutexLock lock(send_mutex_);
    const auto found = kept_.find(ticket);
    if (found == kept_.end()) throw BadFrame("it took what was not offered");
    kept = std::move(found->second);
    kept_.erase(found);
  }
  no_longer_queued(kept.bytes);
}

void StreamLink::send_taken(uint64_t ticket) {
  send({MessageKind::kTaken, ticket}, {}, {}, {}, When::kMine);
}

void StreamLink::forget_what_waits() {
  SendQueue waiting, being_written;  // their tensors are freed without the lock
  std::unordered_map<uint64_t, Kept> kept;
  {
    MutexLock lock(send_mutex_);
    broken_ = true;
    std::swap(waiting, filling_);
    // Otherwise the write fails, and the writing thread drops it.
    if (!being_written_) std::swap(being_written, writing_);
    kept.swap(kept_);
    room_.notify_all();
  }
  size_t bytes = waiting.bytes() + being_written.bytes();
  for (const auto& [ticket, one] : kept) bytes += one.bytes;
  no_longer_queued(bytes);
}

}  // namespace lockstep::inline v0::rpc::internal
