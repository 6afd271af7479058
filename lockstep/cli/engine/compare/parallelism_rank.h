// A rank of `lockstep compare --parallelism`: it trains one model by one way, and measures.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/cli/engine/compare/parallelism_ways.h"

namespace lockstep::inline v0::engine {

// The figures of one rank.
struct DividedRank {
  // In bytes, counted by the model between backward and the optimizer's step.
  int64_t parameters = 0, gradients = 0, state = 0, buffers = 0;
  // The most bytes that a step's tensors had at once beside those, communication's among them.
  // Where ZeRO divides gradients (stages 2 and 3), it is less by up to ZeRO's part of them.
  int64_t activations = 0;
  double pss = 0;  // the process's after the steps, bytes
  // Bytes per step by a ring's arithmetic, by axes, and "gradients".
  std::map<std::string, double> sent;
  double step_ms = 0;  // median
  // The last step's pipeline, in seconds: the time until its last action ended, and the part of it
  // in which it computed.
  double span = 0, busy = 0;

  double sent_in_all() const;
  int64_t bytes_in_all() const;  // of tensors: all but pss
};
// The results of a job's ranks.
struct DividedRecord {
  double first_loss = 0, last_loss = 0;  // the whole batch's
  std::vector<DividedRank> by_rank;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DividedRank, parameters, gradients, state, buffers, activations,
                                   pss, sent, step_ms, span, busy)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DividedRecord, first_loss, last_loss, by_rank)
// Throws: DataError that begins with `source`.
DividedRecord parse_divided_record(const std::string& text, const std::string& source);

// Trains two steps to warm up, one that counts activations, and settings.steps timed ones. Rank 0
// writes the record to `file`.
// Collective: all ranks of a job of settings.nproc ranks call it.
// Throws: what ParallelLm throws.
void run_divided_rank(const DividedWay& way, const DividedSettings& settings,
                      const std::string& file);

}  // namespace lockstep::inline v0::engine
