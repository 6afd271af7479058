#include "lockstep/checkpoint/scaler_state.h"

#include <nlohmann/json.hpp>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {
namespace {

template <class State, class Visit>
void visit_scaler(State& state, Visit&& visit) {
  visit("scale", state.scale);
  visit("growth_factor", state.growth_factor);
  visit("backoff_factor", state.backoff_factor);
  visit("growth_interval", state.growth_interval);
  visit("_growth_tracker", state.growth_tracker);
}

}  // namespace

std::string to_json(const amp::GradScalerState& state) {
  nlohmann::ordered_json json;
  visit_scaler(state, [&](const char* name, const auto& value) { json[name] = value; });
  return json.dump(2) + "\n";
}

amp::GradScalerState scaler_state_from_json(const std::string& text, const std::string& source) {
  amp::GradScalerState state;
  try {
    const auto json = nlohmann::json::parse(text);
    visit_scaler(state, [&](const char* name, auto& value) { json.at(name).get_to(value); });
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError(source + ": is not the state of a GradScaler; the checkpoint is damaged");
  }
  return state;
}

}  // namespace lockstep::inline v0
