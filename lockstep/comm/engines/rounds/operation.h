// Engine::Operation: a pending collective. Included by the engine's own files only.
#pragma once

#include <optional>

#include "lockstep/comm/engines/rounds/engine.h"
#include "lockstep/comm/engines/rounds/pieces.h"

namespace lockstep::inline v0::rounds {

struct Engine::Operation {
  enum class Phase : uint8_t { kWaitingTurn, kLines, kMeeting, kStaged, kLeaving };

  // Both must outlive the operation.
  Operation(const Call& c, const trace::CallRecord& r, int rank, int size)
      : call(c), record(r), pieces(call, rank, size) {}
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  const Call& call;
  const trace::CallRecord& record;
  Pieces pieces;
  uint64_t number = 0;
  uint64_t history = 0;
  Phase phase = Phase::kWaitingTurn;
  bool posted = false;
  bool done = false;

  bool through_ll = false;
  bool shown = false;  // its LL buffers are written
  int ready = 0;       // the number of ranks, from 0 on, whose LL buffers are all ready
  Memory memory = Memory::kStaged;
  Window window;
  bool shows_target = false;   // the descriptor contains the address of this rank's output
  bool copied = false;         // executed by copies
  bool pushed = false;         // executed by writing parts into each other's outputs
  bool surely_staged = false;  // it is staged, whatever the peers post

  // For staged operations:
  std::optional<Program> program;
  uint64_t base = 0;       // the slots' round at which it starts
  int64_t own_rounds = 0;  // rounds that this rank's own data needs
  int64_t produced = 0;
  int64_t combined = 0;
  int64_t consumed = 0;
  bool total_known = false;
};

// An operation that outlives the call that started it.
struct Engine::KeptOperation {
  KeptOperation(const Call& c, int rank, int size)
      : call(c),
        record(c.record != nullptr ? *c.record : make_record(c)),
        operation(call, record, rank, size) {
    call.record = &record;
    call.note.text = record.note;
  }

  Call call;
  trace::CallRecord record;
  Operation operation;
};

}  // namespace lockstep::inline v0::rounds
