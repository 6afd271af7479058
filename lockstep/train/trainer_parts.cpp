#include "lockstep/train/trainer_parts.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep {
std::function<double(const Evaluation&)> score_of(const TrainingArguments& args) {
  return [name = best_metric(args),
          sign = best_is_greatest(args) ? 1.0 : -1.0](const Evaluation& evaluation) {
    if (const auto value = find_metric(evaluation.metrics, name)) return sign * *value;
    std::vector<std::string> names;
    for (const auto& metric : evaluation.metrics) names.push_back(metric.first);
    throw InvalidArgument("metric_for_best_model: there is no metric '" + name + "'; there are " +
                          joined(names));
  };
}

EarlyStoppingCallback::EarlyStoppingCallback(const TrainingArguments& args, int64_t patience,
                                             double threshold)
    : score_(score_of(args)), patience_(patience), threshold_(threshold) {
  if (patience < 1) throw InvalidArgument("EarlyStoppingCallback: patience must be 1 or more");
}

void EarlyStoppingCallback::on_evaluation(const TrainerState&, const Evaluation& evaluation, bool,
                                          TrainControl& control) {
  const double score = score_(evaluation);
  if (!best_ || score > *best_ + threshold_) {
    best_ = score;
    waited_ = 0;
  } else if (++waited_ >= patience_) {
    control.stop = true;
  }
}

std::string EarlyStoppingCallback::state() const {
  nlohmann::json json{waited_};
  if (best_) json.push_back(*best_);
  return json.dump();
}

void EarlyStoppingCallback::set_state(const std::string& state) {
  const nlohmann::json json = nlohmann::json::parse(state, nullptr, /*allow_exceptions=*/false);
  if (!json.is_array() || json.empty() || json.size() > 2)
    throw DataError("EarlyStoppingCallback: its state is damaged");
  waited_ = json.at(0).get<int64_t>();
  best_.reset();
  if (json.size() > 1) best_ = json.at(1).get<double>();
}

void PredictionSum::add(const LossOutput& output, int64_t counted) {
  if (output.logits.defined()) logits_.push_back(output.logits.detach().to(at::kFloat).cpu());
  labels_.push_back(output.labels.cpu());
  loss_.add(DeviceScalar(output.loss), counted);
}

EvalPrediction PredictionSum::rows() const {
  if (labels_.empty()) return {};
  return {logits_.empty() ? at::Tensor() : at::cat(logits_), at::cat(labels_)};
}

std::optional<double> PredictionSum::mean_loss(Communicator& comm) const {
  const at::Tensor sums = at::tensor({loss_.loss.value(), loss_.samples}, at::kDouble);
  comm.all_reduce(sums);
  const double* values = sums.const_data_ptr<double>();
  return values[1] > 0 ? std::optional(values[0] / values[1]) : std::nullopt;
}

}  // namespace lockstep
