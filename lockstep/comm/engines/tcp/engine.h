// Engine: one rank's end of a mesh. It runs exchanges and messages, waits, compares the ranks'
// calls, and notices which ranks are late or gone.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/backend/failure.h"
#include "lockstep/comm/backend/sibling_progress.h"
#include "lockstep/comm/backend/types.h"
#include "lockstep/comm/engines/tcp/exchange.h"
#include "lockstep/comm/engines/tcp/link.h"
#include "lockstep/comm/engines/tcp/messages.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/set_once.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::inline v0::tcp {

// A call that outlives its start. It owns the text that its note points to, and has no record.
class KeptCall {
 public:
  explicit KeptCall(const Call& call) : call_(call), note_(call.note.text) {
    call_.note.text = note_.c_str();
    call_.record = nullptr;
  }
  KeptCall(const KeptCall&) = delete;
  KeptCall& operator=(const KeptCall&) = delete;
  const Call& get() const { return call_; }

 private:
  Call call_;
  std::string note_;
};

// An operation that a rank waits for.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual bool done() const = 0;
  virtual const Call& call() const = 0;
  // The ranks without which it cannot continue.
  virtual std::vector<int> awaited() const = 0;
  // The same for an error message, where other ranks watch some of them.
  virtual std::vector<int> late() const { return awaited(); }
  // Progresses the part that the engine does not progress by itself; true if anything moved.
  virtual bool advance() { return false; }
  // False while its progress depends on the engine alone: then a wait may sleep in the engine.
  virtual bool needs_advance() const { return false; }
  // If needs_advance(): whether every turn is part of the work, as of a library that moves data only
  // while it is asked, so that turns must not become rare.
  virtual bool is_impatient() const { return false; }
};

// Any number of exchanges are pending in the order of their keys, and a few of them are active at
// once; messages run beside them.
// Thread-safety: one thread at a time, except interrupt().
class Engine final : private FrameListener, private Wire {
 public:
  // `links[r]` is connected to rank r; empty for this rank.
  Engine(std::vector<UniqueFd> links, int rank, const ScheduleSizes& sizes);
  // Says goodbye as far as possible without waiting: peers that wait for this rank get PeerLost.
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Starts this rank's next collective, by its sequence number. It is compared with the others'
  // while the record has an owner, and for a while after that.
  // Throws: the error that broke the group.
  std::shared_ptr<const Record> enter(const Call& call);
  // Queues an exchange of that collective among `members`, of which this rank is one. All of them
  // give one order, in which they add. `call` is as they see it. Sequences and phases ascend.
  std::shared_ptr<Exchange> exchange(const Call& call, std::shared_ptr<const Record> record,
                                     std::vector<int> members, int phase);
  std::shared_ptr<Message> message(const Call& call);

  // Moves data; waits up to `wait` for progress. Returns true if anything moved.
  // Throws: the error that broke the group, unless `pending` is complete nevertheless.
  bool advance(Pending* pending = nullptr, Deadline::Duration wait = Deadline::Duration::zero());
  // The same without throwing: later calls throw the error.
  void progress() noexcept;
  void set_siblings(SiblingProgress* siblings) { siblings_ = siblings; }  // Backend::set_siblings()
  // As Backend::probe().
  Probe probe(int src, int tag);
  bool poll(Pending& pending);
  void wait(Pending& pending, Deadline deadline);

  // Breaks the group on all ranks. Does not throw or wait.
  void abort(const Breakage& why) noexcept;
  // From any thread: a pending or later wait breaks the group and throws.
  void interrupt(const Breakage& why) noexcept { interruption_.set(why); }
  // Breaks the group on all ranks and throws.
  [[noreturn]] void fail(Failure kind, int lost_rank, const std::string& text);
  // The same for a difference that another engine found in the collective `sequence`: asks all
  // ranks for their calls. `text` is used where these show no difference.
  [[noreturn]] void fail_mismatch(uint64_t sequence, const std::string& text);
  void check_broken() const {
    if (broken_) std::rethrow_exception(broken_);
  }

  // Whether the peer's end is closed. Callable in any state.
  bool lost(int peer) const;
  // Whether the connection has ended without a goodbye from the peer. Known once the end was read.
  bool died(int peer) const {
    const Peer& p = peers_[peer];
    return p.link && !p.link->lost().empty() && !p.departed;
  }

  // Payload bytes that were written to `peer`.
  uint64_t payload_sent(int peer) const;

 private:
  struct ParkedData {
    std::unique_ptr<std::byte[]> payload;
    size_t bytes = 0;
    bool complete = false;
  };
  struct Peer {
    std::unique_ptr<Link> link;
    bool departed = false;  // the peer said goodbye
    uint32_t events = 0;    // what epoll watches
    bool dirty = false;     // has output that has not been tried to write yet
    Record last;            // its last known collective
    // Its collectives that this rank has not reached, by sequence.
    std::map<uint64_t, Record> ahead;
    std::optional<Record> differing;  // a collective that differs from this rank's
    std::set<uint64_t> started;       // keys of exchanges that this rank has not reached
    std::map<uint64_t, std::deque<ParkedData>> parked;  // data of those exchanges, by key
    size_t parked_bytes = 0;
    std::shared_ptr<Exchange> current;  // the exchange of the current frame
    ParkedData* parking = nullptr;      // in `parked`: where the current frame's data goes
    bool junk = false;                  // the current frame's data is discarded
    std::vector<std::byte> junk_memory;
    uint64_t told_sequence = 0;  // the last sequence that it was sent in full
    std::optional<Record> answer;
    bool told = false;  // it has been told where this rank is since it asked
  };
  // The operation that a rank waits for in the engine, to report to other ranks.
  class Waiting {
   public:
    Waiting(Engine& engine, const Pending& pending) : engine_(engine), before_(engine.waiting_) {
      engine_.waiting_ = &pending;
    }
    ~Waiting() { engine_.waiting_ = before_; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Engine& engine_;
    const Pending* before_;
  };
  struct Trouble {
    Failure kind;
    int rank;  // the lost rank, or the reporter
    std::string text;
    uint64_t sequence = 0;  // the collective with a difference, about which all ranks must be asked
    bool earlier = false;   // ... or an earlier one
    bool reported = false;  // another rank reported it to all ranks
  };
  struct Word {  // why the group is broken, as sent to other ranks
    Failure kind;
    int lost_rank;
    std::string text;
  };

  std::byte* begin_frame(int peer, const FrameHeader& header, std::string_view text) override;
  void end_frame(int peer, const FrameHeader& header) override;
  void send_call(int peer, const Exchange& exchange, uint64_t amount) override;
  void send_data(int peer, uint64_t key, const std::byte* data, size_t bytes,
                 std::shared_ptr<SendListener> listener, int token) override;

  // This rank found that the group is broken: operations no longer progress.
  bool stands_still() const { return asking_ || (trouble_ && !trouble_->reported); }
  std::byte* begin_data(int peer, const FrameHeader& header);
  void heard_call(int peer, const FrameHeader& header, std::string_view text);
  void compare(int peer, const Record& theirs);
  void deliver_parked(int peer);
  void answer(int peer, uint64_t sequence);
  void hear_answer(int peer, const FrameHeader& header, std::string_view text);
  void raise(Trouble trouble);
  [[noreturn]] void settle();
  [[noreturn]] void adopt(const Trouble& trouble);
  [[noreturn]] void mismatch(uint64_t sequence, bool earlier, const std::string& otherwise);
  bool ask_all(uint64_t sequence, Deadline deadline);
  const Record* called_as(int rank, uint64_t sequence) const;
  [[noreturn]] void break_with(Failure kind, int rank, const std::string& text);
  void push_abort(Peer& peer, const Word& word, bool first_hand);
  void check_interrupted();
  void announce();
  void push_here(int peer, uint8_t kind);
  void ask_where();
  bool has_told(const Pending& pending) const;
  std::vector<int> culprits(const Pending& pending) const;
  [[noreturn]] void time_out(const Pending& pending, Deadline deadline);

  void activate();
  Exchange* find(uint64_t key) const;
  Link* link_for(int peer);
  bool pump(Deadline::Duration wait = Deadline::Duration::zero());
  bool flush();
  void watch(int peer);
  bool wants_input(int peer) const;
  void check_lost(Pending& pending);
  std::string whereabouts(int rank) const;
  // This rank's record of that collective; null for one that it has not reached or no longer knows:
  // such a collective is not compared.
  const Record* record(uint64_t sequence) const;
  const Record& latest() const;  // an empty one before the first
  void forget_old();
  static constexpr uint64_t kLookBack = 16;  // collectives to look back for the first that differs
  static constexpr size_t kKept = 64;        // records of completed collectives

  const int rank_;
  const int size_;
  const ScheduleSizes sizes_;
  const int spins_;
  SiblingProgress* siblings_ = nullptr;
  UniqueFd epoll_;
  std::vector<Peer> peers_;
  std::vector<int> dirty_;
  Messages messages_;
  ScratchPool scratch_;

  // Pending exchanges, by key; the first few are active.
  std::deque<std::shared_ptr<Exchange>> queue_;
  uint64_t activated_ = 0;  // the last key that was activated
  // Records of this rank's collectives, by sequence: all from kLookBack before the first incomplete
  // one, and the last kKept.
  std::deque<std::shared_ptr<const Record>> records_;
  size_t over_ = 0;        // the number of complete ones at the front
  uint64_t entered_ = 0;   // the last sequence
  uint64_t arrivals_ = 0;  // data frames that began to arrive
  uint64_t history_ = 0;

  const Pending* waiting_ = nullptr;
  std::optional<Trouble> trouble_;
  bool asking_ = false;          // asking all ranks for their calls
  std::optional<Word> adopted_;  // the failure reported by another rank
  SetOnce<Breakage> interruption_;
  std::exception_ptr broken_;
};

}  // namespace lockstep::inline v0::tcp
