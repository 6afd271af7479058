// Engine: one rank's end of a region. It runs collectives and messages, waits, and notices which
// ranks are late, gone or out of step.
//
// A collective is posted first: fingerprint, history and the place of the data. Only LL buffers may
// be written before their call descriptor, which is then written while they travel. The path of the
// data follows from the call and from all ranks' descriptors, never from knowledge of one rank
// alone, and does not change a single bit of the result:
//   LL       up to Tuning::ll_up_to bytes a rank
//   mapped   every rank's data lies where the others can reach it: each takes its pieces in place;
//            all_reduce in one fused pass
//   copied   from Tuning::copies_from bytes (an all_reduce: all_reduce_copies_from), where every
//            rank may copy from and to every other's memory
//   staged   in rounds through the slots (program.h), for everything else
// Messages go through rings (channels.h), or the receiver pulls them from the sender's memory. A
// large broadcast is moved from both sides, by the root and by the other ranks; in a large copied
// all_gather or all_to_all the owner of the data writes it, since the data is in its cache.
//
// Mapped and copied calls, and pulled messages, touch a peer's memory without its help. A rank that
// gives up therefore waits until no peer is inside before it releases its memory, but no longer
// than Tuning::quiesce_at_most for a peer that is stopped inside. When that peer resumes, it
// finishes the current transfer (at most kTransfer bytes; for a mapped call the rest of its share)
// and no more, in memory that close() has said to keep.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/backend/backend.h"
#include "lockstep/comm/backend/failure.h"
#include "lockstep/comm/backend/mismatch_text.h"
#include "lockstep/comm/engines/rounds/channels.h"
#include "lockstep/comm/engines/rounds/doorbell.h"
#include "lockstep/comm/engines/rounds/ll_buffers.h"
#include "lockstep/comm/engines/rounds/peer_memory.h"
#include "lockstep/comm/engines/rounds/pieces.h"
#include "lockstep/comm/engines/rounds/program.h"
#include "lockstep/comm/engines/rounds/region.h"
#include "lockstep/core/deadline.h"

namespace lockstep::inline v0::rounds {

// Asks the system whether a rank's process is dead. It may take microseconds and is called only
// while waiting.
using IsDead = std::function<bool(int rank)>;

// The sizes at which one data path gives way to the next, in bytes that a rank offers. Equal on all
// ranks.
struct Tuning {
  int64_t ll_up_to = 3072;  // at most kLineCapacity; negative: never
  bool mapped = true;
  int64_t shares_from = 16 * 1024;  // staged all_reduce: each rank adds up its share for all
  int64_t copies_from = 48 * 1024;
  // An all_reduce goes both ways, and the system call pays for every page: on some processors it is
  // never faster than slots. Ranks may differ in this; the largest counts.
  int64_t all_reduce_copies_from = INT64_MAX;
  // From here on the owner of the data writes a copied all_gather or all_to_all.
  int64_t pushes_from = 512 * 1024;
  // How long a rank that gives up waits for peers that touch its memory.
  Deadline::Duration quiesce_at_most = std::chrono::seconds(2);
};

// Copies check after this many bytes whether the group is broken.
inline constexpr int64_t kTransfer = 1024 * 1024;

// Collectives run one after another, in the order in which they were started; messages run beside
// them.
// Thread-safety: one thread at a time, except abort().
class Engine {
 public:
  // `region` is initialised and outlives the engine, and so does `peer_memory`, which may be null.
  // `is_dead` may be empty.
  Engine(Region region, int rank, const PeerMemory* peer_memory, IsDead is_dead,
         Tuning tuning = {});
  // Calls close() and ignores its result.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::unique_ptr<Request> start(const Call& call);
  void show(const Call& call);  // Backend::show()
  void run(const Call& call, Deadline::Duration timeout);
  void progress();
  void set_siblings(SiblingProgress* siblings) { siblings_ = siblings; }
  Probe probe(int src, int tag);  // Backend::probe()
  // Writes to the region alone, so it may be called from any thread.
  void abort(const Breakage& why) noexcept;
  bool lost(int rank) const;  // Backend::lost()
  bool close() noexcept;      // Backend::close()

 private:
  struct Operation;
  struct KeptOperation;
  template <typename T>
  class PendingRequest;

  // engine.cpp: the progress of a call.
  void enroll(Operation& op);
  bool may_copy(Op op, int64_t bytes) const;
  Channels make_channels();
  bool may_post(uint64_t number);
  bool post(Operation& op);
  bool advance();  // moves data; true if anything moved
  bool advance(Operation& op);
  bool stage(Operation& op);
  bool produce(Operation& op);
  bool combine(Operation& op);
  bool consume(Operation& op);
  bool slots_are_written(const Operation& op, int64_t round);
  void finish(Operation& op);
  bool slot_is_free(uint64_t round);
  bool reads(const Operation& op, int rank) const;

  // engine_ll.cpp: calls through LL buffers.
  bool through_ll(const Pieces& pieces) const;
  void show_lines(Operation& op);
  void ring_for_ll();
  bool exchange_lines(Operation& op);
  void take_lines(const Operation& op);

  // engine_execute.cpp: calls in which ranks touch each other's memory.
  bool meet(Operation& op);
  bool execute(Operation& op);
  bool pull(int rank, uint64_t address, std::byte* to, int64_t bytes);
  void execute_mapped(Operation& op);
  void execute_copied(Operation& op);
  bool leave(Operation& op);
  const std::byte* shown_memory(const Operation& op) const;
  bool meets(const Operation& op, int rank) const;
  bool touched_by(const Operation& op, int rank) const;
  static bool exposes(const Operation& op);
  bool touched(int rank) const noexcept;
  void quiesce() noexcept;
  class WatchedPeerMemory;

  // engine_wait.cpp: waiting, and failures.
  bool poll(const bool& done, const Call& call, bool check_peers);
  void wait(const bool& done, const Call& call, Deadline deadline);
  void check_slowly(const bool& done, const Call& call);
  void check_elsewhere(const Call& call, bool moved);
  [[noreturn]] void time_out(const Call& call, Deadline deadline);
  std::vector<int> awaited(const Call& call) const;
  std::vector<int> culprits(const Call& call, Deadline::Duration silence) const;
  bool has_posted(const Operation& op, int rank) const;
  std::optional<trace::CallRecord> posted(int rank, uint64_t number) const;
  void check_descriptor(const Operation& op, int rank);
  void compare_descriptors(const Operation& op);
  [[noreturn]] void report_mismatch(const Operation& op);
  std::vector<RankCall> differing(uint64_t number, const Operation& op) const;
  void check_aborted();
  void check_lost(const bool& done, const Call& call);
  [[noreturn]] void fail(Failure kind, int lost_rank, const std::string& text);
  [[noreturn]] void break_down(Failure kind, int lost_rank, const std::string& text);
  std::string whereabouts(int rank) const;

  Region region_;
  int rank_;
  RankState& own_;
  const PeerMemory* peer_memory_;
  IsDead is_dead_;
  Tuning tuning_;
  SiblingProgress* siblings_ = nullptr;
  Channels channels_;
  LlBuffers ll_;
  Doorbell doorbell_;
  std::deque<std::shared_ptr<Operation>> queue_;
  uint64_t numbered_ = 0;    // calls enrolled
  uint64_t next_round_ = 0;  // of the slots, after the last finished operation
  uint64_t history_ = 0;     // of the calls enrolled
  uint64_t all_done_ = 0;    // a lower bound of every rank's done
  uint64_t slowest_ = 0;     // a lower bound of every rank's consumed
  int probes_ = 0;
  bool shown_ = false;  // the LL buffers of the next run() call are written
  std::vector<std::byte> scratch_;
  // Kept for their memory; used by the call that is being executed.
  std::vector<const std::byte*> offers_;
  std::vector<std::byte*> buffers_;
  std::vector<uint64_t> addresses_;
  std::vector<uint64_t> targets_;
  std::exception_ptr broken_;  // the error that broke this engine
  bool exposed_ = false;       // peers were shown memory of calls that will not complete
  bool quiesced_ = false;
  bool closed_ = false;
};

}  // namespace lockstep::inline v0::rounds
