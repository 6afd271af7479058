#include "lockstep/train/trainer_state.h"

#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

constexpr const char* kStepsPerEpoch = "steps_per_epoch";

template <class State, class Visit>
void visit_state(State& state, Visit&& visit) {
  visit("epoch", state.epoch);
  visit("step_in_epoch", state.step_in_epoch);
  visit("step", state.step);
  visit("samples", state.samples);
  visit("seconds", state.seconds);
  visit("best_score", state.best_score);
  visit("best_step", state.best_step);
  visit("accuracy", state.accuracy);
  visit("metrics_bytes", state.metrics_bytes);
}

}  // namespace

std::string to_json(const TrainerState& state) {
  nlohmann::ordered_json json;
  visit_state(state, [&](const char* name, const auto& value) { json[name] = value; });
  json[kStepsPerEpoch] = state.steps_per_epoch;
  return json.dump(2) + "\n";
}

TrainerState trainer_state_from_json(const std::string& text, const std::string& source) {
  TrainerState state;
  try {
    const auto json = nlohmann::json::parse(text);
    visit_state(state, [&](const char* name, auto& value) { json.at(name).get_to(value); });
    state.steps_per_epoch = json.value(kStepsPerEpoch, int64_t{0});  // older ones lack it
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError(source + ": is not the state of a trainer; the checkpoint is damaged");
  }
  if (state.epoch < 0 || state.step_in_epoch < 0 || state.step < 0 || state.samples < 0 ||
      state.metrics_bytes < 0 || state.steps_per_epoch < 0) {
    throw CheckpointError(source + ": has a negative count; the checkpoint is damaged");
  }
  return state;
}

}  // namespace lockstep::inline v0
