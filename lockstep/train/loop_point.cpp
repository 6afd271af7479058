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

}  // namespace

std::string to_bytes(const LoopPoint& point) {
  Json callbacks = Json::array();
  for (const std::string& state : point.callbacks)
    callbacks.push_back(Json::binary({state.begin(), state.end()}));
  const Json json{state_json(point.state),
                  point.loss.value(),
                  point.samples,
                  sum_json(point.since_log),
                  sum_json(point.of_epoch),
                  {point.counted, point.uncounted, point.uncounted_steps},
                  point.evaluated_step,
                  point.after_update,
                  std::move(callbacks),
                  point.targets};
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
  for (const Json& state : json.at(8)) {
    const auto& binary = state.get_binary();
    point.callbacks.emplace_back(binary.begin(), binary.end());
  }
  return point;
} catch (const Json::exception& error) {
  throw DataError(std::string("a training loop's place is damaged: ") + error.what());
}

}  // namespace lockstep::inline v0
