// Engine: one rank's end of a region; runs collectives and messages, waits, and notices who is late
// or gone.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/rounds/channels.h"
#include "lockstep/comm/rounds/program.h"
#include "lockstep/comm/rounds/region.h"

namespace lockstep::rounds {

// Asks the system whether a rank's process is dead. May take microseconds; called only while
// waiting.
using IsDead = std::function<bool(int rank)>;

// One thread at a time. Collectives run one after another, in the order in which they were started;
// messages run beside them.
class Engine {
 public:
  // `region` is initialised and outlives the engine. `is_dead` may be empty.
  Engine(Region region, int rank, IsDead is_dead);
  // Marks this rank as departed: peers that wait for it get PeerLost.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::unique_ptr<Request> start(const Call& call);
  void progress();
  Probe probe(int src, int tag);
  void abort(AbortKind kind, int lost_rank, const std::string& text) noexcept;
  bool lost(int rank) const;

 private:
  struct Operation;
  template <typename T>
  class PendingRequest;

  bool advance();  // moves data; true if anything moved
  bool advance(Operation& op);
  bool produce(Operation& op);
  bool consume(Operation& op);
  bool slot_is_free(uint64_t round);
  void check_headers(const Operation& op);
  [[noreturn]] void report_mismatch(const Operation& op, bool earlier);
  bool reads(const Operation& op, int rank) const;

  bool poll(const bool& done, const Call& call, bool check_peers);
  void wait(const bool& done, const Call& call, Deadline deadline);
  std::vector<int> awaited(const Call& call) const;
  void check_aborted();
  void check_lost(const bool& done, const Call& call);
  [[noreturn]] void fail(AbortKind kind, int lost_rank, const std::string& text);
  std::string whereabouts(int rank) const;

  Region region_;
  int rank_;
  IsDead is_dead_;
  int spins_;  // pauses before the first yield
  Channels channels_;
  std::deque<std::shared_ptr<Operation>> queue_;
  uint64_t next_round_ = 0;  // of the region, after the last finished operation
  uint64_t history_ = 0;     // of the collectives started
  std::string previous_;     // the last one started
  uint64_t slowest_ = 0;     // a lower bound of every rank's consumed
  int probes_ = 0;
  std::exception_ptr broken_;  // what broke this engine
};

}  // namespace lockstep::rounds
