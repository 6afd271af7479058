#include "lockstep/train/loop_point.h"

#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

using Json = nlohmann::json;

// In CBOR numbers keep their bits; callbacks' states may be any bytes.
Json sum_json(const RunningLoss& sum) {
  return {sum.loss.value(), sum.samples};
}
RunningLoss sum_from(const Json& json) {
  return {json.at(0).get<double>(), json.at(1).get<double>()};
}

Json state_json(const TrainerState& s) {
  return {s.epoch,      s.step_in_epoch, s.step,     s.samples,       s.seconds,
          s.best_score, s.best_step,     s.accuracy, s.metrics_bytes, s.steps_per_epoch};
}
TrainerState state_from(const Json& json) {
  TrainerState s;
  s.epoch = json.at(0).get<int64_t>();
  s.step_in_epoch = json.at(1).get<int64_t>();
  s.step = json.at(2).get<int64_t>();
  s.samples = json.at(3).get<int64_t>();
  s.seconds = json.at(4).get<double>();
  s.best_score = json.at(5).get<double>();
  s.best_step = json.at(6).get<int64_t>();
  s.accuracy = json.at(7).get<double>();
  s.metrics_bytes = json.at(8).get<int64_t>();
  s.steps_per_epoch = json.at(9).get<int64_t>();
  return s;
}

Json states_json(const std::vector<std::string>& states) {
  Json json = Json::array();
  for (const std::string& state : states)
    json.push_back(Json::binary({state.begin(), state.end()}));
  return json;
}
std::vector<std::string> states_from(const Json& json) {
  std::vector<std::string> states;
  for (const Json& state : json) {
    const auto& binary = state.get_binary();
    states.emplace_back(binary.begin(), binary.end());
  }
  return states;
}

void add(RunningLoss& sum, const RunningLoss& more) {
  sum = {sum.loss.value() + more.loss.value(), sum.samples + more.samples};
}

// What StepResult::counted() is.
int64_t counted(const LoopPoint& point) {
  return point.targets < 0 ? point.samples : point.targets;
}

}  // namespace

void inherit(LoopPoint& point, const LoopPoint& of_gone) {
  RunningLoss step;
  step.add(point.loss, counted(point));
  step.add(of_gone.loss, counted(of_gone));
  point.loss = step.mean();
  point.samples += of_gone.samples;
  if (point.targets >= 0) point.targets += of_gone.targets;
  add(point.since_log, of_gone.since_log);
  add(point.of_epoch, of_gone.of_epoch);
  point.uncounted += of_gone.uncounted;
  point.inherited.push_back(of_gone.callbacks);
  point.inherited.insert(point.inherited.end(), of_gone.inherited.begin(), of_gone.inherited.end());
}

std::string to_bytes(const LoopPoint& point) {
  Json inherited = Json::array();
  for (const auto& states : point.inherited) inherited.push_back(states_json(states));
  const Json json{state_json(point.state),
                  point.loss.value(),
                  point.samples,
                  sum_json(point.since_log),
                  sum_json(point.of_epoch),
                  {point.counted, point.uncounted, point.uncounted_steps},
                  point.evaluated_step,
                  point.after_update,
                  states_json(point.callbacks),
                  point.targets,
                  std::move(inherited)};
  std::string bytes;
  Json::to_cbor(json, bytes);
  return bytes;
}

LoopPoint loop_point_from(const std::string& bytes) try {
  const Json json = Json::from_cbor(bytes);
  LoopPoint point;
  point.state = state_from(json.at(0));
  point.loss = json.at(1).get<double>();
  point.samples = json.at(2).get<int64_t>();
  point.since_log = sum_from(json.at(3));
  point.of_epoch = sum_from(json.at(4));
  point.counted = json.at(5).at(0).get<int64_t>();
  point.uncounted = json.at(5).at(1).get<int64_t>();
  point.uncounted_steps = json.at(5).at(2).get<int64_t>();
  point.evaluated_step = json.at(6).get<int64_t>();
  point.after_update = json.at(7).get<bool>();
  point.targets = json.at(9).get<int64_t>();
  point.callbacks = states_from(json.at(8));
  for (const Json& states : json.at(10)) point.inherited.push_back(states_from(states));
  return point;
} catch (const Json::exception& error) {
  throw DataError(std::string("a training loop's place is damaged: ") + error.what());
}

}  // namespace lockstep::inline v0
