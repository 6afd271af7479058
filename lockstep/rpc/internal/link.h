// Link: a connection with another process, for messages. Not a public header.
//
// Tensors of less than kReachFrom bytes, and all tensors on links between hosts, follow the message
// in the stream: they are written straight from their storage (writev) and read straight into new
// ones. Larger ones, over a Unix socket and where the system allows it (process_vm_readv; hello.h
// says whose memory that is), are named by their address and read by the receiver. The sender's
// storage is kept until the receiver has said that it has read it, or the link is lost.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/core/deadline.h"
#include "lockstep/rpc/message.h"
#include "lockstep/rpc/peer.h"

namespace lockstep::inline v0::rpc::internal {

inline constexpr int64_t kReachFrom = int64_t{256} << 10;

// Limits of the data that waits in a process to be sent over one link, and of the memory that a
// sender may make a receiver hold.
struct LinkLimits {
  // Bytes of bodies and tensors in the queue, including those named by address.
  size_t queued_bytes = size_t{256} << 20;
  size_t message_bytes = size_t{16} << 30;  // of one message's tensors
};

class Link {
 public:
  virtual ~Link() = default;

  // The other end. It is known from the beginning at the connecting end, and after the challenge at
  // the other.
  virtual const Peer& peer() const = 0;

  // When a message is written. kNow: at once, by this thread, as far as the socket takes it
  // (messages that are sent while received ones are being handed out, by that thread, are written
  // together afterwards). kMine: the same, by a thread that calls receive_until() next, so that the
  // leader is not told to watch for the answer. kSoon: together with others that are sent
  // meanwhile, by the leader, which is woken for it once; for many calls in flight.
  enum class When : uint8_t { kNow, kMine, kSoon };
  // Copies `body` (two parts, one after the other) and keeps handles of the tensors, whose contents
  // must not change until they have been sent (a response, or kTaken, implies it). Messages arrive
  // in order. Never waits. Returns false if the link is lost and nothing was kept. It does not
  // check the limit of queued bytes: callers ask queued_bytes() before.
  // Throws: InvalidArgument for tensors that are not on the CPU or not dense, a body that is too
  // long, and tensors larger than LinkLimits::message_bytes.
  // Thread-safety: any thread.
  virtual bool send(const MessageHead& head, std::string_view body, std::string_view body_end,
                    const Tensors& tensors, When when) = 0;
  // Throws InvalidArgument where send() would, for tensors that will be copied to the CPU, before
  // they are copied.
  virtual void check(size_t body_bytes, const Tensors& tensors) const = 0;
  // Bytes that wait to be sent or to be taken; beyond LinkLimits::queued_bytes callers should wait
  // or refuse.
  virtual size_t queued_bytes() const = 0;
  // Waits until the queue is below the limit. Returns false at the deadline, or if the link is
  // lost. Not on a reactor's leader.
  virtual bool wait_for_room(Deadline deadline) = 0;

  // Reads the `pending` tensors from the sender's memory into `tensors` of that message, and tells
  // the sender. Called on a worker, or by the thread that needs the tensors. Either this or drop()
  // must be called once for each pending message. Throws PeerLost if the sender is gone or no
  // longer keeps them.
  virtual void fetch(Incoming& message) = 0;
  virtual void drop(uint64_t pending) noexcept = 0;

  // This thread receives the link's messages, instead of the leader, until done() or the deadline:
  // a caller that waits for its response saves two thread switches. Returns true if done() is true;
  // false at the deadline, if the link is lost, or at once if another thread is receiving: then
  // wait by other means. done() is asked after each batch of messages, and at least every 50 ms.
  // Afterwards the leader receives again, at once where `calls` shows a waiting caller.
  virtual bool receive_until(const std::function<bool()>& done, Deadline deadline) = 0;

  // The number of calls that wait for their answer over this link; maintained by the callers.
  std::atomic<int64_t> calls{0};

  // Stops receiving and sending. lost() is called, by this thread or the one that receives. Any
  // thread.
  virtual void close(const std::string& why) = 0;
};

// Called on the leader or in receive_until(), one at a time for a link; they must not wait or
// throw. `received` may keep the link. `lost` is called once for each link that was made, and no
// `received` follows it; also in close().
struct LinkHandlers {
  std::function<void(const std::shared_ptr<Link>& link, Incoming& message)> received;
  std::function<void(const std::shared_ptr<Link>& link, const std::string& why)> lost;
};

}  // namespace lockstep::inline v0::rpc::internal
