// Program: a staged collective as a sequence of rounds over the slots of a region.
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/comm/rounds/region.h"
#include "lockstep/comm/types.h"

namespace lockstep::rounds {

// Whose slots a rank reads in each round.
enum class Reads : uint8_t { kNobody, kRoot, kEverybody };

// In round t of `rounds`, every rank writes its own slot (`produce`, possibly nothing) and then,
// once the ranks that it reads have written theirs, reads those (`consume`). No data depends on an
// earlier round, so ranks may produce ahead.
//
// A tensor longer than a slot is cut into chunks, one a round. Where every rank sends another part
// to every other (scatter, reduce_scatter, all_to_all) a slot is cut into N equal lanes, lane d for
// rank d.
struct Program {
  int64_t rounds = 1;  // at least 1: an empty tensor still meets its peers
  // All ranks take the largest `rounds` of any of them (all_to_all: nobody knows the whole matrix).
  bool dynamic = false;
  Reads reads = Reads::kNobody;
  std::function<void(int64_t round, std::byte* payload)> produce;     // may be empty
  std::function<void(int64_t round, uint64_t global_round)> consume;  // may be empty
};

// `region` must outlive the program; the call's memory must stay valid while it runs.
Program make_program(const Call& call, int rank, const Region& region);

}  // namespace lockstep::rounds
