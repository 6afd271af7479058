#include "lockstep/train/prometheus_callback.h"

#include <chrono>
#include <utility>
#include <vector>

#include "lockstep/report/prometheus.h"
#include "lockstep/train/callbacks.h"

namespace lockstep::inline v0 {
namespace {

using Family = MetricFamily;

RankMetrics first_metrics(const Communicator& comm) {
  RankMetrics metrics;
  metrics.backend = comm.capabilities().backend;
  metrics.device = comm.device().str();
  metrics.rank = comm.rank();
  metrics.world_size = comm.size();
  return metrics;
}

// Adds families with the rank's label.
class Families {
 public:
  explicit Families(int rank) : rank_(std::to_string(rank)) {}

  void gauge(const char* name, const char* help, double value) {
    add(name, Family::Type::kGauge, help).samples = {sample({}, value)};
  }
  void gauge(const char* name, const char* help, const std::optional<double>& value) {
    if (value) gauge(name, help, *value);
  }
  void counter(const char* name, const char* help, double value) {
    add(name, Family::Type::kCounter, help).samples = {sample({}, value)};
  }
  Family& add(const char* name, Family::Type type, const char* help) {
    return all_.emplace_back(Family{.name = name, .type = type, .help = help});
  }
  // `more`: the labels besides the rank's.
  Family::Sample sample(MetricLabels more, double value) const {
    more.insert(more.begin(), {"rank", rank_});
    return {.labels = std::move(more), .value = value};
  }
  std::string text() const { return prometheus_text(all_); }

 private:
  std::string rank_;
  std::vector<Family> all_;
};

void add_calls_by_op(Families& families, const CommunicatorStats& stats) {
  const auto add = [&](const char* name, const char* help, auto CommunicatorStats::Calls::* count) {
    Family& family = families.add(name, Family::Type::kCounter, help);
    for (int i = 0; i < kOpCount; ++i) {
      const Op op = static_cast<Op>(i);
      family.samples.push_back(
          families.sample({{"op", to_string(op)}}, static_cast<double>(stats.of(op).*count)));
    }
  };
  add("lockstep_op_calls_total", "Calls of this rank, by operation.",
      &CommunicatorStats::Calls::calls);
  add("lockstep_op_bytes_total",
      "Payload bytes of these calls; the algorithm's traffic is not counted.",
      &CommunicatorStats::Calls::bytes);
}

}  // namespace

std::string to_prometheus(const RankMetrics& metrics) {
  Families families(metrics.rank);
  families.add("lockstep_info", Family::Type::kGauge, "1, with what the rank runs on as labels.")
      .samples = {families.sample({{"backend", metrics.backend}, {"device", metrics.device}}, 1)};
  families.gauge("lockstep_world_size", "Ranks of the job.",
                 static_cast<double>(metrics.world_size));
  families.counter("lockstep_steps_total", "Optimizer steps of this process.",
                   static_cast<double>(metrics.steps));
  families.counter("lockstep_samples_total", "Samples that this process has trained on.",
                   static_cast<double>(metrics.samples));
  if (metrics.steps > 0) {
    families.gauge("lockstep_step", "Optimizer steps of the run, those before a resume included.",
                   static_cast<double>(metrics.state.step));
    families.gauge("lockstep_epoch", "The present epoch, from 1.",
                   static_cast<double>(epoch_number(metrics.state)));
    families.gauge("lockstep_last_step_seconds", "Duration of the last step.",
                   metrics.step_seconds);
    families.gauge("lockstep_last_step_timestamp_seconds",
                   "When the last step ended, in Unix time.", metrics.ended);
  }
  Family& parts = families.add("lockstep_step_seconds_total", Family::Type::kCounter,
                               "Seconds of all steps of this process, by part.");
  for (const auto& [part, seconds] :
       {std::pair{"data", metrics.times.data}, std::pair{"forward", metrics.times.forward},
        std::pair{"backward", metrics.times.backward}, std::pair{"waiting", metrics.times.waiting},
        std::pair{"optimizer", metrics.times.optimizer}})
    parts.samples.push_back(families.sample({{"part", part}}, seconds));
  families.counter("lockstep_waited_seconds_total",
                   "Seconds in calls of communicators, transfers included.", metrics.waited);
  add_calls_by_op(families, metrics.calls);
  families.gauge("lockstep_loss", "Mean loss over all ranks and the steps of the last log.",
                 metrics.loss);
  families.gauge("lockstep_samples_per_second",
                 "Samples of all ranks a second, over the steps of the last log.",
                 metrics.samples_per_s);
  families.gauge("lockstep_evaluation_loss", "Loss of the last evaluation.",
                 metrics.evaluation_loss);
  families.gauge("lockstep_evaluation_accuracy", "Accuracy of the last evaluation, 0 to 1.",
                 metrics.accuracy);
  return families.text();
}

PrometheusCallback::PrometheusCallback(Communicator comm, uint16_t port)
    : comm_(std::move(comm)),
      metrics_(first_metrics(comm_)),
      endpoint_(port, [this] { return text(); }) {}

std::string PrometheusCallback::text() const {
  RankMetrics now;
  {
    const MutexLock lock(mutex_);
    now = metrics_;
  }
  now.waited = comm_.waited();
  now.calls = comm_.job_stats();
  return to_prometheus(now);
}

void PrometheusCallback::on_step(const TrainerState& state, const StepResult& result) {
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  const MutexLock lock(mutex_);
  metrics_.state = state;
  ++metrics_.steps;
  metrics_.samples += result.samples;
  metrics_.times.data += result.times.data;
  metrics_.times.forward += result.times.forward;
  metrics_.times.backward += result.times.backward;
  metrics_.times.waiting += result.times.waiting;
  metrics_.times.optimizer += result.times.optimizer;
  metrics_.step_seconds = result.seconds;
  metrics_.ended = now.count();
}

void PrometheusCallback::on_log(const TrainerState&, const LogEvent& event) {
  const MutexLock lock(mutex_);
  metrics_.loss = event.loss;
  metrics_.samples_per_s = event.samples_per_s;
}

void PrometheusCallback::on_evaluation(const TrainerState&, const Evaluation& evaluation, bool,
                                       TrainControl&) {
  const MutexLock lock(mutex_);
  metrics_.evaluation_loss = evaluation.loss;
  metrics_.accuracy = evaluation.accuracy;
}

void PrometheusCallback::on_epoch(const TrainerState& state, const EpochEvent&) {
  const MutexLock lock(mutex_);
  metrics_.state = state;
}

}  // namespace lockstep::inline v0
