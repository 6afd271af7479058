#include "lockstep/train/run_record.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <utility>

#include "lockstep/core/memory_use.h"
#include "lockstep/train/text_evaluation.h"

namespace lockstep::inline v0 {

RunRecord::RunRecord(Communicator comm, RunResult begun, std::vector<std::string> labels)
    : comm_(std::move(comm)), result_(std::move(begun)), labels_(std::move(labels)) {
  result_.nproc = comm_.size();
}

void RunRecord::starts(std::chrono::steady_clock::time_point command) {
  result_.startup_s =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - command).count();
}

void RunRecord::on_step(const TrainerState&, const StepResult& result) {
  RunningLoss mine;
  mine.add(result.loss, result.counted());
  const at::Tensor sums = at::tensor(
      {mine.loss.value(), mine.samples, static_cast<double>(result.samples)}, at::kDouble);
  comm_.all_reduce(sums);
  const double* all = sums.const_data_ptr<double>();
  ++result_.steps;
  result_.losses.push_back(all[1] > 0 ? all[0] / all[1] : 0);
  result_.samples += std::llround(all[2]);
  const StepTimes& times = result.times;
  const std::array<double, kStepParts.size()> parts{times.data, times.forward, times.backward,
                                                    times.waiting, times.optimizer};
  for (size_t i = 0; i < parts.size(); ++i) parts_[i] += parts[i];
}

void RunRecord::on_evaluation(const TrainerState& state, const Evaluation& evaluation, bool best,
                              TrainControl&) {
  result_.evaluations.push_back(
      {.step = state.step, .loss = evaluation.loss, .accuracy = evaluation.accuracy});
  if (!best) return;
  result_.dev_loss = evaluation.loss;
  result_.dev_accuracy = evaluation.accuracy;
  if (!labels_.empty()) result_.confusion = confusion_matrix(evaluation, labels_);
}

void RunRecord::on_epoch(const TrainerState&, const EpochEvent& event) {
  result_.seconds += event.seconds;
}

RunResult RunRecord::finish() {
  if (result_.seconds > 0)
    result_.samples_per_s = static_cast<double>(result_.samples) / result_.seconds;
  const at::Tensor peaks = comm_.all_gather(at::full({1}, peak_memory_mib(), at::kDouble));
  result_.peak_memory_mib.assign(peaks.const_data_ptr<double>(),
                                 peaks.const_data_ptr<double>() + peaks.numel());
  if (result_.confusion) {
    const auto report = classification_report(*result_.confusion);
    result_.macro_f1 = report.macro.f1;
    result_.weighted_f1 = report.weighted.f1;
  }
  double measured = 0;
  for (const double part : parts_) measured += part;
  if (measured > 0) result_.parts_s = parts_;
  return result_;
}

}  // namespace lockstep::inline v0
