#include "lockstep/recover/recovery.h"

#include <ATen/ops/empty.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <array>
#include <iterator>
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
#include "lockstep/core/text.h"
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
  const std::array<int64_t, 9> mine{own.whole,       own.step,    own.agreeing,
                                    own.has_copies,  own.has_own, own.former,
                                    own.former_size, own.first,   own.local_size};
  std::vector<RankProgress> ranks;
  for (const auto& row : recover::exchange_numbers(comm, mine))
    ranks.push_back({row[0] != 0, row[1], row[2] != 0, row[3] != 0, row[4] != 0,
                     static_cast<int>(row[5]), static_cast<int>(row[6]), static_cast<int>(row[7]),
                     static_cast<int>(row[8])});
  return ranks;
}

}  // namespace

Recovery::Recovery(Communicator comm, Recoverable state, RecoveryOptions options)
    : comm_(std::move(comm)),
      state_(std::move(state)),
      options_(options),
      dead_ranks_(recover::dead_ranks_of(comm_, options.shrinks)) {
  if (!state_.model) throw InvalidArgument("Recovery: there is no model");
  if ((state_.save == nullptr) != (state_.load == nullptr))
    throw InvalidArgument("Recovery: save and load belong together; give both or none");
  if (state_.inherit && !state_.save)
    throw InvalidArgument("Recovery: inherit is given what save returns; give save and load, too");
  device_ = device_of(*state_.model);
  first_ = comm_.rank();
  for (int r = 0; r < comm_.size(); ++r) firsts_.push_back(r);
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
  return recover::reason_to_go_on(dead_ranks_, phase_ == Phase::kUpdating || lost_);
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
  next_copies_ = exchange_copies(comm_, next_, local_);
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
  // The former ones are freed later: the first step after a meeting may be under a profiler, which
  // warns of memory that it has not seen allocated.
  std::swap(own_, next_);
  std::swap(copies_, next_copies_);
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
  const std::vector<int> before = firsts_;
  some_lost_ = false;
  Resumption plan;
  recover::meet_again(
      comm_, dead_ranks_, deadline, times_, [&] { plan = resume(); },
      [this] { return phase_ == Phase::kUpdating || lost_; });
  ++recoveries_;
  if (comm_.rank() == plan.source) say_it_goes_on(plan, before, reason);
  if (comm_.rank() == 0 && plan.anew)
    log_warning(
        "no rank held the state of training any more, it begins anew, or from its last "
        "checkpoint; what had happened: " +
        reason);
}

void Recovery::say_it_goes_on(const Resumption& plan, const std::vector<int>& before,
                              const std::string& reason) const {
  std::vector<int> replaced, gone;
  for (const auto& newcomer : plan.newcomers) replaced.push_back(newcomer.rank);
  std::set_difference(before.begin(), before.end(), firsts_.begin(), firsts_.end(),
                      std::back_inserter(gone));
  std::string who = recover::replaced_text(replaced);
  if (dead_ranks_ == recover::DeadRanks::kLeftOut) {
    const std::string size = std::to_string(comm_.size());
    who = gone.empty() ? "all " + size + " ranks are there"
                       : "without rank " + joined(gone, ", ") + ", on " + size +
                             (comm_.size() == 1 ? " rank" : " ranks");
    if (some_lost_) who += "; what ranks had alone whose neighbours have died with them is lost";
  }
  log_warning(recover::recovery_line("step " + std::to_string(plan.step) + " goes on", who, times_,
                                     reason));
}

// Where one rank has passed the barrier of a Standing, all have it.
void Recovery::settle_standing() {
  const std::array<int64_t, 1> mine{standings_};
  int64_t most = 0;
  for (const auto& row : recover::exchange_numbers(comm_, mine)) most = std::max(most, row[0]);
  std::optional<Standing> pending = std::exchange(agreeing_on_, std::nullopt);
  if (pending && most == standings_ + 1) stand(std::move(*pending));
}

void Recovery::stand(Standing standing) {
  own_ = std::move(standing.own);
  copies_ = std::move(standing.copies);
  former_ = standing.rank;
  firsts_ = std::move(standing.firsts);
  ++standings_;
}

// This rank's own state; rank 0's with what those had alone that are gone.
at::Tensor Recovery::with_inheritance(const Resumption& plan) {
  if (plan.gone.empty() || !state_.inherit) return own_;
  for (const auto& [former, holder] : plan.gone) {
    if (holder < 0) {
      some_lost_ = true;
    } else if (comm_.rank() == 0) {
      const at::Tensor copy =
          holder == 0 ? copies_.at(former) : recover::receive_copy(comm_, holder);
      state_.inherit(recover::unpack(copy, buffers_of(*state_.model)).extra);
    } else if (comm_.rank() == holder) {
      recover::send_copy(comm_, copies_.at(former), 0);
    }
  }
  return comm_.rank() == 0 ? capture() : own_;
}

// When the ranks have met again: afterwards all of them are at the same step.
Resumption Recovery::resume() {
  const bool leaves_out = dead_ranks_ == recover::DeadRanks::kLeftOut;
  if (leaves_out) settle_standing();
  const std::vector<RankProgress> ranks =
      exchange_progress(comm_, {.whole = whole_,
                                .step = step_,
                                .agreeing = phase_ == Phase::kAgreeing,
                                .has_copies = standings_ > 0,
                                .has_own = !whole_ && own_.defined(),
                                .former = former_,
                                .former_size = static_cast<int>(firsts_.size()),
                                .first = first_,
                                .local_size = leaves_out ? 1 : comm_.local_size()});
  local_ = recover::most_local(ranks);
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
    if (comm_.rank() == holder && holder != rank) recover::send_copy(comm_, copies_.at(rank), rank);
    if (comm_.rank() == rank) become_whole(plan.source, holder, plan.step);
  }
  // The state after a failure: a new rank keeps no other rank's state yet; the others keep theirs,
  // which belong to this very step; and a run that begins has none.
  const at::Tensor own = with_inheritance(plan);
  Standing standing{.rank = comm_.rank(),
                    .own = own,
                    .copies = exchange_copies(comm_, own, local_),
                    .firsts = {}};
  for (const RankProgress& rank : ranks) standing.firsts.push_back(rank.first);
  // With other numbers, and with what rank 0 has inherited, it is a state only once all have it.
  if (leaves_out)
    agreeing_on_ = std::move(standing);
  else
    stand(std::move(standing));
  comm_.barrier();
  if (agreeing_on_) stand(*std::exchange(agreeing_on_, std::nullopt));
  next_ = at::Tensor();
  next_copies_.clear();
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
  if (holder != comm_.rank()) own = recover::receive_copy(comm_, holder);
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
