// RunRecord: records a run step by step, for a file that `lockstep compare` and other programs read
// (report/run_result.h).
#pragma once

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/report/run_result.h"
#include "lockstep/train/train_loop.h"

namespace lockstep::inline v0 {

// Watches a training loop on every rank.
// Cost: one small all_reduce for each step.
class RunRecord final : public TrainCallback {
 public:
  // `begun`: the fields that are known before the first step: method, model, dtype, ...,
  // checkpoint. `labels`: the names of the classes, in the order of evaluations; may be empty.
  RunRecord(Communicator comm, RunResult begun, std::vector<std::string> labels);

  // To be called before the first step. `command`: the time at which the run was asked for.
  void starts(std::chrono::steady_clock::time_point command);

  void on_step(const TrainerState& state, const StepResult& result) override;
  void on_evaluation(const TrainerState& state, const Evaluation& evaluation, bool best,
                     TrainControl& control) override;
  void on_epoch(const TrainerState& state, const EpochEvent& event) override;

  // The record of the steps since the start. The caller fills in `epochs`. dev_* and confusion are
  // the best evaluation's; parts_s are this rank's.
  // Collective: all ranks.
  RunResult finish();

 private:
  Communicator comm_;
  RunResult result_;
  std::vector<std::string> labels_;
  std::array<double, kStepParts.size()> parts_{};
};

}  // namespace lockstep::inline v0
