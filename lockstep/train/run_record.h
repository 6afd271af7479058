// RunRecord: a run step by step, as a file that `lockstep compare` and others read
// (report/run_result.h).
#pragma once

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/report/run_result.h"
#include "lockstep/train/train_loop.h"

namespace lockstep {

// Watches a training loop on every rank. One small all_reduce a step.
class RunRecord final : public TrainCallback {
 public:
  // `begun`: what is known before the first step: method, model, dtype, ..., checkpoint. `labels`: of
  // the classes, in the order of evaluations; empty where there are none.
  RunRecord(Communicator comm, RunResult begun, std::vector<std::string> labels);

  // The first step comes next. `command`: when the run was asked for.
  void starts(std::chrono::steady_clock::time_point command);

  void on_step(const TrainerState& state, const StepResult& result) override;
  void on_evaluation(const TrainerState& state, const Evaluation& evaluation, bool best,
                     TrainControl& control) override;
  void on_epoch(const TrainerState& state, const EpochEvent& event) override;

  // Of the steps since the start; `epochs` is left to the caller. dev_* and confusion are the best
  // evaluation's; parts_s are this rank's. Collective.
  RunResult finish();

 private:
  Communicator comm_;
  RunResult result_;
  std::vector<std::string> labels_;
  std::array<double, kStepParts.size()> parts_{};
};

}  // namespace lockstep
