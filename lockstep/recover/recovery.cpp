#include "lockstep/recover/recovery.h"

#include <ATen/ops/empty.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/checkpoint/module_state.h"
#include "lockstep/checkpoint/optimizer_state.h"
#include "lockstep/checkpoint/rng_state.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/scaler_state.h"
#include "lockstep/comm/objects.h"
#include "lockstep/comm/same_on_all_ranks.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/device/event.h"
#include "lockstep/flat/module_device.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/recover/rank_copy.h"
#include "lockstep/recover/resumption.h"
#include "lockstep/recover/reunion.h"

namespace lockstep::inline v0 {
namespace {

using recover::buffers_of;
using recover::decide_resumption;
using recover::exchange_copies;
using recover::RankProgress;
using recover::RankState;
using recover::Resumption;

constexpr const char* kSource = "the state that came from another rank";

// Sends a list of tensors that the other side does not know: first their descriptions, then each
// tensor, on the CPU.
void send_tensors(Communicator& comm, const NamedTensors& tensors, int to) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [name, tensor] : tensors)
    list.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  send_object(comm, list, to);
  for (const auto& [name, tensor] : tensors) comm.send(tensor.detach().cpu(), to);
}

NamedTensors receive_tensors(Communicator& comm, int from) {
  NamedTensors tensors;
  for (const nlohmann::json& entry : recv_object(comm, from)) {
    const at::Tensor tensor =
        at::empty(entry.at(2).get<std::vector<int64_t>>(),
                  at::TensorOptions(static_cast<at::ScalarType>(entry.at(1).get<int>())));
    tensors.emplace_back(entry.at(0).get<std::string>(), tensor);
  }
  for (const auto& [name, tensor] : tensors) comm.recv(tensor, from);
  return tensors;
}

std::vector<RankProgress> exchange_progress(Communicator& comm, const RankProgress& own) {
  const std::array<int64_t, 5> mine{own.whole, own.step, own.agreeing, own.has_copies, own.has_own};
  std::vector<RankProgress> ranks;
  for (const auto& row : recover::exchange_numbers(comm, mine))
    ranks.push_back({row[0] != 0, row[1], row[2] != 0, row[3] != 0, row[4] != 0});
  return ranks;
}

}  // namespace

Recovery::Recovery(Communicator comm, Recoverable state, RecoveryOptions options)
    : comm_(std::move(comm)), state_(std::move(state)), options_(options) {
  if (!state_.model) throw InvalidArgument("Recovery: there is no model");
  if ((state_.save == nullptr) != (state_.load == nullptr))
    throw InvalidArgument("Recovery: save and load belong together; give both or none");
  device_ = device_of(*state_.model);
  // Fails now rather than at a failure.
  if (state_.optimizer != nullptr) optimizer_state(*state_.optimizer);
  const Deadline deadline = Deadline::after(options_.patience);
  recover::say_at_work(comm_);
  try {
    resume();
  } catch (...) {
    meet_again(deadline, reason_to_go_on());
  }
}

std::string Recovery::reason_to_go_on() const {
  return recover::reason_to_go_on(comm_, phase_ == Phase::kUpdating || lost_);
}

// This rank's own current state.
at::Tensor Recovery::capture() const {
  return recover::pack({.generator = rng_state(device_),
                        .buffers = buffers_of(*state_.model),
                        .extra = state_.save ? state_.save() : std::string()});
}

void Recovery::put_back(const at::Tensor& packed) {
  const std::vector<at::Tensor> buffers = buffers_of(*state_.model);
  const RankState state = recover::unpack(packed, buffers);
  set_rng_state(state.generator, device_, kSource);
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(state.buffers[i]);
  if (state_.load) state_.load(state.extra);
}

void Recovery::update(const std::function<void()>& take) {
  if (phase_ != Phase::kComputing)
    throw InvalidArgument("Recovery: an update failed before; call recover() first");
  take_ = take;
  next_ = capture();
  next_copies_ = exchange_copies(comm_, next_);
  phase_ = Phase::kAgreeing;
  // A device may be far behind the host, and all ranks agree that the gradients exist.
  device::Event gradients(device_);
  gradients.record();
  gradients.synchronize();
  comm_.throw_if_broken();  // the device was released from an operation of a duplicate
  comm_.barrier();
  apply();
}

// Called after all ranks have agreed.
void Recovery::apply() {
  phase_ = Phase::kUpdating;
  take_();
  take_ = nullptr;
  ++step_;
  own_ = std::move(next_);
  copies_ = std::move(next_copies_);
  phase_ = Phase::kComputing;
}

void Recovery::recover() {
  meet_again(Deadline::after(options_.patience), reason_to_go_on());
}

void Recovery::finish() {
  const Deadline deadline = Deadline::after(options_.patience);
  const int64_t steps = step_;
  while (true) {
    try {
      recover::finish_together(comm_);
      return;
    } catch (...) {
      meet_again(deadline, reason_to_go_on());
    }
    if (step_ != steps)
      throw Mismatch("Recovery: this rank has done " + std::to_string(steps) + " steps, others " +
                     std::to_string(step_) + "; all ranks must call update() equally often");
  }
}

void Recovery::meet_again(Deadline deadline, const std::string& reason) {
  Resumption plan;
  recover::meet_again(
      comm_, deadline, times_, [&] { plan = resume(); },
      [this] { return phase_ == Phase::kUpdating || lost_; });
  ++recoveries_;
  if (comm_.rank() == plan.source) {
    std::vector<int> replaced;
    for (const auto& newcomer : plan.newcomers) replaced.push_back(newcomer.rank);
    log_warning(recover::recovery_line("step " + std::to_string(plan.step) + " goes on", replaced,
                                       times_, reason));
  }
  if (comm_.rank() == 0 && plan.anew)
    log_warning(
        "no rank held the state of training any more, it begins anew, or from its last "
        "checkpoint; what had happened: " +
        reason);
}

// In a new generation: afterwards all ranks are at the same step.
Resumption Recovery::resume() {
  const std::vector<RankProgress> ranks =
      exchange_progress(comm_, {.whole = whole_,
                                .step = step_,
                                .agreeing = phase_ == Phase::kAgreeing,
                                .has_copies = has_copies_,
                                .has_own = !whole_ && own_.defined()});
  lost_ = true;
  const Resumption plan = recover::decided_by_all(comm_, [&] { return decide_resumption(ranks); });
  lost_ = false;
  if (plan.anew) {
    NamedTensors everything = parameters_of(*state_.model);
    for (auto& buffer : to_named_tensors(state_.model->named_buffers()))
      everything.push_back(std::move(buffer));
    check_same_on_all_ranks(comm_, everything);
    broadcast_tensors(comm_, everything);
    own_ = capture();
  } else if (whole_) {
    if (step_ < plan.step) apply();
    phase_ = Phase::kComputing;
    put_back(own_);
  }
  // After the update, in which the scaler may have taken part.
  if (state_.scaler != nullptr) state_.scaler->use(comm_);
  for (const auto& [rank, holder] : plan.newcomers) {
    if (comm_.rank() == plan.source) send_state(rank);
    if (comm_.rank() == holder && holder != rank) {
      const at::Tensor& copy = copies_.at(rank);
      send_object(comm_, copy.numel(), rank);
      comm_.send(copy, rank);
    }
    if (comm_.rank() == rank) become_whole(plan.source, holder, plan.step);
  }
  // The state after a failure: a new rank keeps no other rank's state yet; the others keep theirs,
  // which belong to this very step; and a run that begins has none.
  copies_ = exchange_copies(comm_, own_);
  has_copies_ = true;
  comm_.barrier();
  whole_ = true;
  return plan;
}

// Receives everything before it changes anything, so a failure in between leaves this rank as it
// was.
void Recovery::become_whole(int source, int holder, int64_t step) {
  NamedTensors model = receive_tensors(comm_, source);
  Safetensors optimizer;
  if (state_.optimizer != nullptr) {
    optimizer.metadata = recv_object(comm_, source).get<Metadata>();
    optimizer.tensors = receive_tensors(comm_, source);
  }
  std::string scaler;
  if (state_.scaler != nullptr) scaler = recv_object(comm_, source).get<std::string>();
  at::Tensor own = own_;
  if (holder != comm_.rank()) {
    own = at::empty({recv_object(comm_, holder).get<int64_t>()}, at::kByte);
    comm_.recv(own, holder);
  }
  for (auto& own_buffer : to_named_tensors(state_.model->named_buffers()))
    model.push_back(std::move(own_buffer));
  set_module_state(*state_.model, model, kSource);
  if (state_.optimizer != nullptr) set_optimizer_state(*state_.optimizer, optimizer, kSource);
  if (state_.scaler != nullptr) state_.scaler->load_state(scaler_state_from_json(scaler, kSource));
  put_back(own);
  own_ = own;
  step_ = step;
  whole_ = true;
}

void Recovery::send_state(int to) {
  send_tensors(comm_, parameters_of(*state_.model), to);
  if (state_.optimizer != nullptr) {
    const Safetensors optimizer = optimizer_state(*state_.optimizer);
    send_object(comm_, optimizer.metadata, to);
    send_tensors(comm_, optimizer.tensors, to);
  }
  if (state_.scaler != nullptr) send_object(comm_, to_json(state_.scaler->state()), to);
}

}  // namespace lockstep::inline v0
