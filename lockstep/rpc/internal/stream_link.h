// StreamLink: a Link over a stream socket. Not a public header.
//
// Sending (stream_link_send.cpp): a sender puts its frame into `filling_`. If no thread is writing,
// it swaps that with `writing_` and writes it, with everything that others have added meanwhile
// (flat combining; Hendler et al., 2010). The leader writes the rest when the socket is full.
//
// Receiving (stream_link_receive.cpp): one thread at a time, the leader or a thread in
// receive_until(). While the latter reads, and for a short time afterwards, the leader does not
// watch the socket: a caller that makes one call after another does not make two system calls for
// that each time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "lockstep/core/cpus.h"
#include "lockstep/core/mutex.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/rpc/internal/hello.h"
#include "lockstep/rpc/internal/link.h"
#include "lockstep/rpc/internal/reactor.h"
#include "lockstep/rpc/internal/receive_memory.h"
#include "lockstep/rpc/internal/receiver.h"
#include "lockstep/rpc/internal/reply_spin.h"
#include "lockstep/rpc/internal/send_queue.h"

namespace lockstep::inline v0::rpc::internal {

class StreamLink;

// The common context of a transport's links; outlives them.
struct LinkContext {
  Reactor& reactor;
  LinkLimits limits;
  std::string host_identity;
  std::shared_ptr<ReceiveMemory> memory;
  LinkHandlers handlers;
  // The link has data that the leader must write soon. Any thread.
  std::function<void(std::shared_ptr<StreamLink>)> write_soon;
  // The link is lost and must be forgotten. Called before `lost`.
  std::function<void(const std::shared_ptr<StreamLink>&)> gone;
  // The link sent bytes that are no message.
  std::function<void(const std::string&)> refused;
};

class StreamLink final : public Link, public std::enable_shared_from_this<StreamLink> {
 public:
  // `fd` is introduced. `ready`: the frame that ends the introduction; empty at the end that
  // connected.
  StreamLink(std::shared_ptr<LinkContext> context, UniqueFd fd, Introduction introduction,
             const std::string& ready);
  ~StreamLink() override;

  // From now on the leader watches the socket.
  void start();
  // Writes the queue if no thread is doing so.
  void flush();

  const Peer& peer() const override { return introduction_.other.peer; }
  bool send(const MessageHead& head, std::string_view body, std::string_view body_end,
            const Tensors& tensors, When when) override;
  void check(size_t body_bytes, const Tensors& tensors) const override;
  size_t queued_bytes() const override { return queued_.load(std::memory_order_relaxed); }
  bool wait_for_room(Deadline deadline) override;
  void fetch(Incoming& message) override;
  void drop(uint64_t pending) noexcept override;
  bool receive_until(const std::function<bool()>& done, Deadline deadline) override;
  void close(const std::string& why) override;

  bool lost() const { return closed_.load(std::memory_order_acquire); }
  // Waits until no thread is in a handler of this link any more; called after close(). From a
  // handler it returns at once.
  void wait_until_quiet() const;

  // Prevents duplicate requests to LinkContext::write_soon.
  std::atomic<bool> written_soon{false};

 private:
  struct Named {  // a tensor in the sender's memory
    size_t place;
    TensorPlace row;
  };
  struct Kept {
    Tensors tensors;
    size_t bytes = 0;
  };

  // ---- sending ----
  void write();  // called by the thread that has set being_written_
  void leave_to_leader();
  void write_failed();
  void no_longer_queued(size_t bytes);
  void taken(uint64_t ticket);
  void send_taken(uint64_t ticket);
  void forget_what_waits();

  // ---- receiving ----
  bool begin_reading(const std::function<bool()>& done);
  bool look_for_a_moment(const std::shared_ptr<Link>& self, const std::function<bool()>& done);
  void ready(uint32_t events);
  void read_as_leader(bool to_the_end);
  enum class Got { kNothing, kSome, kAll, kEnd };  // kAll: most likely all that has arrived
  Got read_once(const std::shared_ptr<Link>& self);
  void hand_out(const std::shared_ptr<Link>& self, Receiver::Message& message);
  void end(const std::string& why);
  bool ended() const;
  void stop_reading();
  void hand_back();
  void say_lost();
  std::string why_it_ended() const;

  // ---- the leader's watch ----
  void look(bool in);
  void look_for_room(bool out);

  const std::shared_ptr<LinkContext> context_;
  const UniqueFd fd_;
  const Introduction introduction_;

  mutable Mutex look_mutex_;
  bool looks_ LOCKSTEP_GUARDED_BY(look_mutex_) = false;  // the leader watches for data
  bool looks_for_room_ LOCKSTEP_GUARDED_BY(look_mutex_) = false;
  std::atomic<bool> looked_at_{false};     // looks_
  std::atomic<bool> handing_back_{false};  // a timer will hand it back

  Mutex send_mutex_;
  SendQueue filling_ LOCKSTEP_GUARDED_BY(send_mutex_);
  // By ticket, until taken.
  std::unordered_map<uint64_t, Kept> kept_ LOCKSTEP_GUARDED_BY(send_mutex_);
  uint64_t last_ticket_ LOCKSTEP_GUARDED_BY(send_mutex_) = 0;
  // By the thread that has writing_.
  bool being_written_ LOCKSTEP_GUARDED_BY(send_mutex_) = false;
  // The socket is full; the leader continues.
  bool blocked_ LOCKSTEP_GUARDED_BY(send_mutex_) = false;
  bool broken_ LOCKSTEP_GUARDED_BY(send_mutex_) = false;  // no writing any more
  ConditionVariable room_;
  std::atomic<int> waiting_for_room_{0};
  std::atomic<size_t> queued_{0};
  SendQueue writing_;  // used by the thread that has set being_written_

  std::atomic<bool> reading_{false};       // some thread uses the members below
  std::atomic<bool> leader_reads_{false};  // the leader is that thread
  Receiver receiver_;
  ReplySpin spin_{host_cpu_count()};
  std::atomic<std::thread::id> handing_out_{};  // the thread that is in handlers
  bool answered_ = false;                       // that thread has sent a message meanwhile
  std::atomic<bool> others_wait_{false};        // waited for reading_ in vain
  std::atomic<bool> lost_is_said_{false};

  Mutex pending_mutex_;
  std::unordered_map<uint64_t, std::vector<Named>> pending_ LOCKSTEP_GUARDED_BY(pending_mutex_);

  mutable Mutex why_mutex_;
  std::string why_ LOCKSTEP_GUARDED_BY(why_mutex_);
  std::atomic<bool> closed_{false};
};

}  // namespace lockstep::inline v0::rpc::internal
