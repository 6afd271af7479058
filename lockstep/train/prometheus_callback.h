// PrometheusCallback: serves what a rank of a training does, for Prometheus.
//
//   loop.add(std::make_shared<lockstep::PrometheusCallback>(comm, 9400 + comm.local_rank()));
//   $ curl http://127.0.0.1:9400/metrics
//
// Trainer does so by TrainingArguments::metrics_port, `lockstep train` by --metrics-port. The
// metrics are listed in docs/trainer.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"
#include "lockstep/core/mutex.h"
#include "lockstep/report/metrics_endpoint.h"
#include "lockstep/train/train_loop.h"

namespace lockstep::inline v0 {

// A rank of a training at a moment.
struct RankMetrics {
  // The labels of lockstep_info.
  std::string backend = {}, device = {};
  int rank = 0, world_size = 1;
  TrainerState state = {};
  // The totals of this process so far; `times` and `waited` are in seconds.
  int64_t steps = 0, samples = 0;
  StepTimes times = {};
  double waited = 0;
  CommunicatorStats calls = {};
  // The last step.
  double step_seconds = 0;
  double ended = 0;  // when, in seconds of Unix time
  // The last log and evaluation, if there was one.
  std::optional<double> loss = {}, samples_per_s = {};
  std::optional<double> evaluation_loss = {}, accuracy = {};
};

// The metrics as Prometheus reads them. Pure.
LOCKSTEP_API std::string to_prometheus(const RankMetrics& metrics);

// Serves GET /metrics on 127.0.0.1 (report/metrics_endpoint.h) from the constructor to the
// destructor. A request does not delay the training and costs it nothing else: calls and waits are
// read while it goes on, the rest is of the last step. It sends nothing to other ranks.
class LOCKSTEP_API PrometheusCallback final : public TrainCallback {
 public:
  // `port` 0: the system chooses one.
  // Throws: as MetricsEndpoint.
  PrometheusCallback(Communicator comm, uint16_t port);

  uint16_t port() const { return endpoint_.port(); }  // it serves there

  void on_step(const TrainerState& state, const StepResult& result) override;
  void on_log(const TrainerState& state, const LogEvent& event) override;
  void on_evaluation(const TrainerState& state, const Evaluation& evaluation, bool best,
                     TrainControl& control) override;
  void on_epoch(const TrainerState& state, const EpochEvent& event) override;

 private:
  std::string text() const;

  Communicator comm_;
  mutable Mutex mutex_;
  RankMetrics metrics_ LOCKSTEP_GUARDED_BY(mutex_);
  MetricsEndpoint endpoint_;  // the last, since its thread reads the others
};

}  // namespace lockstep::inline v0
