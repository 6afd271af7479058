// Transport: authenticated connections between named processes, for messages. It does not know
// about functions.
//
// A process listens on a Unix socket of its host (abstract, of a random name) and on TCP, and
// writes both into the store under its name with a random number, its incarnation. A caller
// connects over the Unix socket on the same host (host_identity()), otherwise over TCP. A link
// belongs to the process that made it: requests go forth, responses back; the other direction makes
// a link of its own. Both ends prove the job's secret (wire/challenge.h) before anything else is
// read.
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
#include "lockstep/core/secret.h"
#include "lockstep/rpc/internal/reactor.h"
#include "lockstep/rpc/message.h"
#include "lockstep/rpc/peer.h"
#include "lockstep/store/store.h"

namespace lockstep::rpc::internal {

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

struct TransportOptions {
  std::string name;  // 1 to 200 printable bytes; unique among living processes
  // Numeric address for TCP; beyond loopback only where a job has several hosts.
  std::string listen = "127.0.0.1";
  // Acts as if every other process were on another host: TCP, and no reading of memory.
  bool alone = false;
  LinkLimits limits = {};
  // Bytes of freed receive buffers that are kept for the next large tensors.
  size_t kept_bytes = size_t{512} << 20;
};

class Transport {
 public:
  // Called on the leader or in receive_until(), one at a time for a link; they must not wait or
  // throw. `received` may keep the link. `lost` is called once for each link that was made, and no
  // `received` follows it; also in close().
  struct Handlers {
    std::function<void(const std::shared_ptr<Link>& link, Incoming& message)> received;
    std::function<void(const std::shared_ptr<Link>& link, const std::string& why)> lost;
  };

  // Listens and writes its entry into the store (keys begin with "rpc/"); connecting peers wait for
  // start(). The reactor and the store outlive it. Throws InvalidArgument (a living process has the
  // name: its listener answers), SystemError, StoreError.
  Transport(Reactor& reactor, std::shared_ptr<Store> store, const Secret& secret,
            TransportOptions options, Deadline deadline);
  // Handlers are called from now on. Call it once, before anything except self(). Throws
  // SystemError.
  void start(Handlers handlers);
  // Removes its name from the store if it is still its own, and closes everything.
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  const Peer& self() const;
  // The link to the process that has this name now. It is made when there is none, or when the last
  // one was lost: then the store is asked again, so that a process that came back under its name is
  // found. Waits until the deadline for a process that is not there (yet). Concurrent callers share
  // one attempt. `only`: this incarnation; PeerLost at once where it is gone, instead of waiting
  // for another. Must not be called on the leader, since it waits. Throws Timeout ("'ps' has not
  // come", "is gone since ..."), PeerLost, StoreError, and SystemError at once for an address that
  // can never be reached.
  std::shared_ptr<Link> link_to(const std::string& name, Deadline deadline, uint64_t only = 0);
  // Returns the link to that process if it exists and is alive; never waits.
  std::shared_ptr<Link> living_link_to(const std::string& name) const;

  // Whether a link with this very process is alive, whichever end made it.
  bool has_link_with(uint64_t incarnation) const;

  // Connections refused (wrong secret, nonsense) since the start, for tests and the doctor.
  uint64_t refused() const;

  // Closes the listeners and all links; all handlers have returned when it returns.
  void close(const std::string& why);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::rpc::internal
