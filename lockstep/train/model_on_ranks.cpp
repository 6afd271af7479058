#include "lockstep/train/model_on_ranks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <torch/nn/module.h>

#include <map>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "lockstep/checkpoint/rng_state.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/optim/configured_optimizer.h"
#include "lockstep/train/loop_point.h"
#include "lockstep/train/rank_share.h"

namespace lockstep::inline v0 {
namespace {

std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

using Json = nlohmann::json;

Json binary(const std::string& bytes) {
  return Json::binary({bytes.begin(), bytes.end()});
}
std::string from_binary(const Json& json) {
  return {json.get_binary().begin(), json.get_binary().end()};
}

// What is kept of a loop: its point, the streams of a strategy that has some of its own, and what
// the log of its last step is still to say.
struct Place {
  std::string point;
  std::map<int64_t, std::string> streams = {};  // by their number among all ranks'
  std::optional<double> grad_norm = {};
};

Json streams_json(const Place& place) {
  Json streams = Json::array();
  for (const auto& [number, stream] : place.streams)
    streams.push_back(Json{number, binary(stream)});
  return streams;
}

void add_streams(Place& place, const Json& streams) {
  for (const Json& one : streams) place.streams[one.at(0).get<int64_t>()] = from_binary(one.at(1));
}

std::string to_bytes(const Place& place) {
  std::string bytes;
  const Json norm = place.grad_norm ? Json(*place.grad_norm) : Json();
  Json::to_cbor(Json{binary(place.point), streams_json(place), norm}, bytes);
  return bytes;
}

Place place_from(const std::string& bytes) try {
  const Json json = Json::from_cbor(bytes);
  Place place{.point = from_binary(json.at(0))};
  add_streams(place, json.at(1));
  if (!json.at(2).is_null()) place.grad_norm = json.at(2).get<double>();
  return place;
} catch (const Json::exception& error) {
  throw DataError(std::string(kGivenBack) + " is damaged: " + error.what());
}

// The model's parameters lose what they had in common with an optimizer that goes. `values`: they
// keep theirs. Those without values go to `where`.
void detach_parameters(torch::nn::Module& model,
                       const std::unordered_set<const c10::TensorImpl*>& optimized, bool values,
                       at::Device where) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : model.parameters()) {
    parameter.mutable_grad() = at::Tensor();
    // Memory that is never written takes no pages.
    if (!values && optimized.contains(parameter.unsafeGetTensorImpl()))
      parameter.set_data(at::empty_like(parameter, parameter.options().device(where)));
    else
      parameter.set_data(parameter.detach().clone());
  }
}

}  // namespace

ModelOnRanks::ModelOnRanks(Parts parts) : parts_(std::move(parts)) {
  Strategy& strategy = *parts_.strategy;
  // One that is divided stays where it is, as the names of parts that are moved.
  if (!device().is_cpu() && !strategy.traits().divides_model &&
      !strategy.placement().divides(*parts_.model, parts_.comm)) {
    give_initial_values();  // they are written on the host
    parts_.model->to(device());
  }
  if (parts_.step.precision == optim::Precision::kFloat16) scaler_.emplace(parts_.comm);
  const bool replaced = parts_.comm.generation() > 0;
  if ((replaced || recover::job_shrinks()) && strategy.traits().rebinds) {
    give_initial_values();
    make_optimizer();
    recovery_ = std::make_unique<Recovery>(
        parts_.comm, Recoverable{.model = parts_.model,
                                 .optimizer = optimizer_.get(),
                                 .scaler = scaler(),
                                 .save = [this] { return place(); },
                                 .load = [this](const std::string& given) { place_ = given; },
                                 .inherit = [this](const std::string& given) { inherit(given); }});
    bind_or_recover();
  } else if (replaced && strategy.state().shares() != nullptr) {
    first_stream_ = rng_state(device());
    // An optimizer that divides parameters takes them along where it goes before there is a state,
    // and a model that is divided keeps none.
    if (!device().is_cpu() || (strategy.traits().divides_model && !parts_.initial))
      for (const at::Tensor& one : parts_.model->parameters())
        first_values_.push_back(one.detach().cpu());
    rollback_ = std::make_unique<RollbackRecovery>(parts_.comm,
                                                   RollbackOptions{.every = parts_.copy_every});
    bind_or_recover();
  } else {
    set_up();
  }
}

void ModelOnRanks::give_initial_values() {
  if (!parts_.initial) return;
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters_of(*parts_.model))
    parts_.initial(name, 0, parameter.view(-1));
  parts_.initial = nullptr;
}

std::vector<torch::optim::OptimizerParamGroup> ModelOnRanks::groups() const {
  return optim::parameter_groups(*parts_.model, parts_.step.optimizer);
}

void ModelOnRanks::make_optimizer() {
  optimizer_ =
      parts_.strategy->state().make_optimizer(groups(), optim::algorithm_of(parts_.step.optimizer));
}

void ModelOnRanks::set_up() {
  Strategy& strategy = *parts_.strategy;
  strategy.set_up(parts_.model, comm(), parts_.initial);
  make_optimizer();
}

// All that stands on the ranks, to the present generation.
void ModelOnRanks::bind() {
  Strategy& strategy = *parts_.strategy;
  if (recovery_) {
    // What the strategy draws on the way is not what training draws.
    const at::Tensor stream = rng_state(device());
    strategy.bind(parts_.model, comm());
    set_rng_state(stream, device(), kGivenBack);
    return;
  }
  if (scaler_) scaler_->use(comm());
  const std::optional<at::Tensor>& state = rollback_->state();
  if (std::exchange(bound_, true) || state) {
    optimizer_.reset();
    if (!state && !first_values_.empty())
      put_back_first_values();
    else if (!strategy.traits().divides_model)  // whose parameters are names
      detach_parameters(*parts_.model, trained_of(groups()), /*values=*/!state,
                        strategy.placement().divides(*parts_.model, comm()) ? at::kCPU : device());
  }
  if (!state) {
    place_.clear();
    set_rng_state(first_stream_, device(), kGivenBack);
    return set_up();
  }
  strategy.bind(parts_.model, comm());
  make_optimizer();
  put_back(*state);
}

void ModelOnRanks::put_back_first_values() {
  const at::NoGradGuard no_grad;
  const Strategy& strategy = *parts_.strategy;
  // One that the strategy divides begins on the host.
  const bool on_host =
      strategy.traits().divides_model || strategy.placement().divides(*parts_.model, comm());
  std::vector<at::Tensor> parameters = parts_.model->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = at::Tensor();
    parameters[i].set_data(on_host ? first_values_[i] : first_values_[i].to(device()));
  }
}

RankParts ModelOnRanks::share_parts() {
  return {*parts_.strategy, *optimizer_, scaler()};
}

// This rank's, after a step or before the first.
at::Tensor ModelOnRanks::state(at::Tensor memory) {
  return written_share(share_parts(), place(), std::move(memory));
}

void ModelOnRanks::put_back(const at::Tensor& state) {
  place_ = restored_share(share_parts(), state);
  // The latest step may have been a later one.
  parts_.strategy->state().set_grad_norm(place_from(place_).grad_norm);
}

void ModelOnRanks::bind_or_recover() {
  while (true) {
    try {
      return bind();
    } catch (...) {
      recover_ranks();  // one more has died
    }
  }
}

// While an exception is handled, which is thrown further where it is no failure of another rank.
void ModelOnRanks::recover() {
  recover_ranks();
  result_.reset();
  bind_or_recover();
}

void ModelOnRanks::recover_ranks() {
  if (recovery_)
    recovery_->recover();
  else if (rollback_)
    rollback_->recover();
  else
    recover::rethrow_with_note_of_device();
}

void ModelOnRanks::claim(const std::filesystem::path& folder) {
  if (claim_) return;
  claim_.emplace(folder, process_env());
  if (!claim_->is_held())
    log_warning("output " + folder.string() +
                ": its file system has no locks, so a second job of another host that writes "
                "there is not noticed, and where a .lock has been left there, none is: remove it "
                "when no job is at work");
}

int64_t ModelOnRanks::goes_on_at() const {
  return goes_on() ? loop_point_from(place_from(place_).point).state.step : 0;
}

std::string ModelOnRanks::place() const {
  if (loop_ == nullptr) return place_;
  const LoopPoint point = result_ ? loop_->point_after(*result_) : loop_->point();
  Place kept{.point = to_bytes(point), .grad_norm = parts_.strategy->state().own_grad_norm()};
  if (parts_.strategy->traits().logical_ranks > 0) {
    const at::Tensor streams = parts_.strategy->gradients().random_states();
    const int64_t own = streams.size(0), first = own * parts_.strategy->comm().rank();
    for (int64_t i = 0; i < own; ++i) kept.streams[first + i] = bytes_of(streams[i]);
  }
  return to_bytes(kept);
}

// Adds what a rank that is gone had alone, at the same step.
void ModelOnRanks::inherit(const std::string& of_gone) {
  if (place_.empty() || of_gone.empty()) return;  // before the first step
  Place own = place_from(place_);
  Place gone = place_from(of_gone);
  LoopPoint point = loop_point_from(own.point);
  lockstep::inherit(point, loop_point_from(gone.point));
  own.point = to_bytes(point);
  own.streams.merge(gone.streams);
  place_ = to_bytes(own);
}

// The streams of logical ranks, whichever ranks have had them.
void ModelOnRanks::set_streams(const std::string& place) {
  const int64_t count = strategy().traits().logical_ranks;
  if (count == 0) return;
  Place all = place_from(place);
  for (const Json& streams : all_gather_object(comm(), streams_json(all)))
    add_streams(all, streams);
  std::vector<at::Tensor> rows;
  for (const auto& [number, stream] : all.streams)
    rows.push_back(at::from_blob(const_cast<char*>(stream.data()),
                                 {static_cast<int64_t>(stream.size())}, at::kByte));
  if (static_cast<int64_t>(rows.size()) != count)
    throw DataError("the random streams of " +
                    std::to_string(count - static_cast<int64_t>(rows.size())) + " of " +
                    std::to_string(count) +
                    " logical ranks are gone with the ranks that had them and those that kept "
                    "copies; start again from the last checkpoint");
  strategy().gradients().set_random_states(at::stack(rows), kGivenBack);
}

TrainSpec::Data ModelOnRanks::dealt_anew(const TrainSpec::Data& data) {
  return lockstep::dealt_anew(data, strategy(), parts_.comm.size(), comm().size());
}

void ModelOnRanks::begin(TrainLoop& loop) {
  loop_ = &loop;
  if (!goes_on()) {
    if (first_states_)
      loop.set_callback_states(*first_states_);
    else
      first_states_ = loop.callback_states();
    begin_states();
    return;
  }
  begin_states();
  set_streams(place_);
  loop.go_on_at(loop_point_from(place_from(place_).point));
}

void ModelOnRanks::begin_states() {
  if (!rollback_) return;
  rollback_->begin([this](at::Tensor memory) { return state(std::move(memory)); });
  first_values_.clear();
}

void ModelOnRanks::step(const StepResult& result, const StrategyStep& how) {
  if (!recovery_) {
    strategy().state().step(*optimizer_, how);
    if (!rollback_) return;
    result_ = result;
    rollback_->stepped([this](at::Tensor memory) { return state(std::move(memory)); });
    result_.reset();
    return;
  }
  // From here on the step communicates no more.
  if (how.scaler != nullptr) how.scaler->unscale(*optimizer_);
  result_ = result;
  // Kept by the recovery, which may be what calls it.
  recovery_->update([this, how] { strategy().state().step(*optimizer_, how); });
  result_.reset();
}

}  // namespace lockstep::inline v0
