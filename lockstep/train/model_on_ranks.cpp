#include "lockstep/train/model_on_ranks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <torch/nn/module.h>

#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/rng_state.h"
#include "lockstep/core/errors.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/train/loop_point.h"

namespace lockstep {
namespace {

constexpr const char* kSource = "the state that a recovery gave back";

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

at::Tensor tensor_of(const std::string& bytes, at::IntArrayRef shape) {
  return at::from_blob(const_cast<char*>(bytes.data()), shape, at::kByte).clone();
}

// What Recovery keeps of a loop: its point, and the streams of a strategy that has some of its own.
struct Place {
  std::string point;
  std::string streams;
  int64_t stream_count = 0;
};

std::string to_bytes(const Place& place) {
  using Json = nlohmann::json;
  const auto binary = [](const std::string& s) { return Json::binary({s.begin(), s.end()}); };
  std::string bytes;
  Json::to_cbor(Json{binary(place.point), binary(place.streams), place.stream_count}, bytes);
  return bytes;
}

Place place_from(const std::string& bytes) try {
  const auto json = nlohmann::json::from_cbor(bytes);
  const auto text = [](const nlohmann::json& b) {
    return std::string(b.get_binary().begin(), b.get_binary().end());
  };
  return {text(json.at(0)), text(json.at(1)), json.at(2).get<int64_t>()};
} catch (const nlohmann::json::exception& error) {
  throw DataError(std::string(kSource) + " is damaged: " + error.what());
}

}  // namespace

ModelOnRanks::ModelOnRanks(Parts parts) : parts_(std::move(parts)) {
  Strategy& strategy = *parts_.strategy;
  const Strategy::Initial initial = std::exchange(parts_.initial, nullptr);
  if (parts_.float16) scaler_.emplace(parts_.comm);
  if (!strategy.rebinds() || parts_.comm.generation() == 0) {
    if (initial)
      strategy.set_up_undrawn(parts_.model, parts_.comm, initial);
    else
      strategy.set_up(parts_.model, parts_.comm);
    optimizer_ = strategy.make_optimizer(parts_.groups(), parts_.algorithm);
    return;
  }
  if (initial) {
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : parameters_of(*parts_.model))
      initial(name, 0, parameter.view(-1));
  }
  optimizer_ = strategy.make_optimizer(parts_.groups(), parts_.algorithm);
  recovery_ = std::make_unique<Recovery>(
      parts_.comm, Recoverable{.model = parts_.model,
                               .optimizer = optimizer_.get(),
                               .scaler = scaler(),
                               .save = [this] { return place_after_step(); },
                               .load = [this](const std::string& place) { place_ = place; }});
  bind_or_recover();
}

// The strategy, to the present generation. What it draws on the way is not what training draws.
void ModelOnRanks::bind() {
  const at::Tensor stream = cpu_rng_state();
  parts_.strategy->bind(parts_.model, comm());
  set_cpu_rng_state(stream, kSource);
}

void ModelOnRanks::bind_or_recover() {
  while (true) {
    try {
      return bind();
    } catch (...) {
      recovery_->recover();  // one more has died
    }
  }
}

// While an exception is handled, which is thrown further where it is no failure of another rank.
void ModelOnRanks::recover() {
  if (!recovery_) throw;
  recovery_->recover();
  result_.reset();
  bind_or_recover();
}

std::string ModelOnRanks::place_after_step() const {
  if (loop_ == nullptr || !result_) return place_;
  Place place{.point = to_bytes(loop_->point_after(*result_)), .streams = {}, .stream_count = 0};
  if (parts_.strategy->logical_ranks() > 0) {
    const at::Tensor streams = parts_.strategy->random_states();
    place.streams = bytes_of(streams);
    place.stream_count = streams.size(0);
  }
  return to_bytes(place);
}

void ModelOnRanks::begin(TrainLoop& loop) {
  loop_ = &loop;
  if (!goes_on()) {
    if (first_states_)
      loop.set_callback_states(*first_states_);
    else
      first_states_ = loop.callback_states();
    return;
  }
  const Place place = place_from(place_);
  if (place.stream_count > 0) {
    const auto bytes = static_cast<int64_t>(place.streams.size()) / place.stream_count;
    const at::Tensor own = tensor_of(place.streams, {place.stream_count, bytes});
    strategy().set_random_states(comm().all_gather(own), kSource);
  }
  loop.go_on_at(loop_point_from(place.point));
}

void ModelOnRanks::step(const StepResult& result, const StrategyStep& how) {
  if (!recovery_) {
    strategy().step(*optimizer_, how);
    return;
  }
  // From here on the step communicates no more.
  if (how.scaler != nullptr) how.scaler->unscale(*optimizer_);
  result_ = result;
  // Kept by the recovery, which may be what calls it.
  recovery_->update([this, how] { strategy().step(*optimizer_, how); });
  result_.reset();
}

}  // namespace lockstep
