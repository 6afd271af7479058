// A rank of `lockstep compare --parallelism`: trains one model by one way, and measures.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/cli/engine/compare/parallelism_ways.h"

namespace lockstep::engine {

// Of one rank.
struct DividedRank {
  // Bytes: counted by the model between backward and the optimizer's step.
  int64_t parameters = 0, gradients = 0, state = 0, buffers = 0;
  // The most bytes that a step's tensors had at once beside those, communication's among them.
  // Where ZeRO divides gradients (stages 2 and 3), less by up to its part of them.
  int64_t activations = 0;
  double pss = 0;  // of the process after the steps, bytes
  std::map<std::string, double>
      sent;            // bytes a step by a ring's arithmetic, by axes, and "gradients"
  double step_ms = 0;  // median
  // Of the last step's pipeline, seconds: until its last action ended, and what it computed of
  // that.
  double span = 0, busy = 0;

  double sent_in_all() const;
};
// What the ranks of a job have found.
struct DividedRecord {
  double first_loss = 0, last_loss = 0;  // of the whole batch
  std::vector<DividedRank> by_rank;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DividedRank, parameters, gradients, state, buffers, activations,
                                   pss, sent, step_ms, span, busy)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DividedRecord, first_loss, last_loss, by_rank)
// Throws: DataError that begins with `source`.
DividedRecord parse_divided_record(const std::string& text, const std::string& source);

// On each rank of a job of settings.nproc ranks: two steps to warm up, one that counts activations,
// settings.steps that are timed. Rank 0 writes the record to `file`.
// Collective: all ranks call it.
// Throws: what ParallelLm throws.
void run_divided_rank(const DividedWay& way, const DividedSettings& settings,
                      const std::string& file);

}  // namespace lockstep::engine
