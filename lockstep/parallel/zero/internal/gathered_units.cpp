#include "lockstep/parallel/zero/internal/gathered_units.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/core/stopwatch.h"
#include "lockstep/parallel/zero/internal/zero_layout.h"

namespace lockstep::inline v0::internal {
namespace {

// A storage of the parameter's size, so that shapes and strides fit; reading it throws.
c10::Storage no_memory(const at::Tensor& parameter, const std::string& unit) {
  const c10::Storage& home = parameter.storage();
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), home.nbytes(), at::DataPtr(nullptr, home.device()),
      /*allocator=*/nullptr, /*resizable=*/false);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "ZeroOptimizer: the parameters of '" + unit +
      "' are here only while its forward or backward runs; read them under "
      "whole_parameters(), and leave modules whose parameters others use out of ZeroUnits::names");
  return storage;
}

}  // namespace

UnitOrder::UnitOrder(size_t units) : units_(units), next_(2 * units) {
  for (size_t i = 0; i + 1 < units; ++i) {
    next_[index({i, Pass::kForward})] = i + 1;
    next_[index({i + 1, Pass::kBackward})] = i;
  }
}

std::optional<size_t> UnitOrder::after(size_t unit, Pass pass) {
  if (last_)
    next_[index(*last_)] = unit;
  else if (stepped_)
    first_ = unit;
  last_ = {unit, pass};
  return next_[index(*last_)];
}

std::optional<size_t> UnitOrder::after_step() {
  stepped_ = true;
  last_.reset();
  return first_;
}

GatheredUnits::GatheredUnits(HostCopy& copy, std::vector<Unit> units, bool keep)
    : copy_(copy), order_(units.size()), passes_(units.size()), keep_(keep) {
  for (Unit& unit : units) {
    State& state = units_.emplace_back();
    for (const at::Tensor& parameter : unit.parameters) {
      state.homes.push_back(parameter.storage());
      state.nowhere.push_back(no_memory(parameter, unit.name));
    }
    state.unit = std::move(unit);
    release(state);
  }
}

GatheredUnits::~GatheredUnits() {
  for (State& state : units_) {
    for (Work& work : state.works) {
      try {
        work.wait();
      } catch (const std::exception&) {  // NOLINT: the group is broken; its next user learns of it
      }
    }
  }
}

void GatheredUnits::went(uint64_t step) {
  if (holders_ > 0) return;
  way_ = (way_ ^ step) * 0x100000001b3ULL;
  ++places_;
}

void GatheredUnits::need(size_t unit, Pass pass) {
  went(2 * unit);
  if (!units_[unit].here || (crowded_ && holders_ == 0)) bring(unit, pass);
  ++units_[unit].users;
}

void GatheredUnits::done(size_t unit, Pass pass, bool stays) {
  went(2 * unit + 1);
  State& state = units_[unit];
  if (state.users > 0) --state.users;
  if (pass == Pass::kBackward) state.stays = false;
  if (keep_ && stays) state.stays = true;
  if (stays && in_order() && holders_ == 0) passes_.went(unit);
}

void GatheredUnits::reach(size_t unit) {
  if (in_order() && holders_ == 0) {
    turn_(/*ended=*/false);
    std::vector<size_t> units = passes_.until(unit);
    units.pop_back();
    go_by(units, /*ended=*/false);
    passes_.pass(unit);
  }
  need(unit, Pass::kBackward);
}

void GatheredUnits::go_by(const std::vector<size_t>& units, bool ended) {
  for (const size_t unit : units) {
    passes_.pass(unit);
    need(unit, Pass::kBackward);
    done(unit, Pass::kBackward);
    turn_(ended);
  }
}

void GatheredUnits::end_backward(bool threw) {
  if (in_order() && holders_ == 0) {
    const std::vector<size_t> rest = passes_.rest();
    if (threw) {
      for (const size_t unit : rest) passes_.pass(unit);
    } else {
      turn_(/*ended=*/true);
      go_by(rest, /*ended=*/true);
    }
  }
  went(2 * units_.size());
  for (State& state : units_) {
    state.users = holders_;
    state.stays = false;
  }
}

void GatheredUnits::forget_forwards() {
  passes_.clear();
  for (State& state : units_) state.stays = false;
}

void GatheredUnits::need_all() {
  crowded_ = false;
  for (size_t i = 0; i < units_.size(); ++i) need(i, Pass::kForward);
  ++holders_;
}

void GatheredUnits::take_back() {
  if (holders_ == 0) return;
  const at::NoGradGuard no_grad;
  for (const State& state : units_)
    for (const KeptFlat& flat : state.unit.flats) copy_.take_back(flat);
}

void GatheredUnits::let_all() noexcept {
  try {
    if (holders_ == 1) take_back();
  } catch (const std::exception&) {  // NOLINT: the device is broken, and its next user learns of it
  }
  --holders_;
  for (State& state : units_) state.users = std::max(0, state.users - 1);
  crowded_ = holders_ == 0;
}

void GatheredUnits::start(size_t unit) {
  State& state = units_[unit];
  for (const KeptFlat& flat : state.unit.flats) copy_.claim(flat.whole);
  state.works = copy_.start_fetch(state.unit.flats, "unit " + state.unit.name);
  coming_.push_back(unit);
}

void GatheredUnits::finish_coming() {
  try {
    for (const size_t one : coming_) {
      for (Work& work : std::exchange(units_[one].works, {})) work.wait();
    }
  } catch (const std::exception& error) {
    copy_.abort(error.what());
    throw;
  }
}

// A prefetched unit is completed as well, though another one was needed: it is then present, and is
// freed unless it is used.
void GatheredUnits::bring(size_t unit, Pass pass) {
  const Stopwatch watch(waiting_);
  if (!units_[unit].here && std::find(coming_.begin(), coming_.end(), unit) == coming_.end())
    start(unit);
  finish_coming();
  // Ranks may have reached the same unit by different paths.
  copy_.meet("unit " + units_[unit].unit.name + " at place " + std::to_string(places_), way_);
  crowded_ = false;
  for (const size_t one : std::exchange(coming_, {})) put_back(units_[one]);
  ++units_[unit].users;  // keeps the unit from being idle
  for (State& state : units_) {
    if (state.here && state.users == 0 && !state.stays) release(state);
  }
  --units_[unit].users;
  const std::optional<size_t> next = order_.after(unit, pass);
  if (next && !units_[*next].here) start(*next);
}

void GatheredUnits::put_back(State& state) {
  for (size_t i = 0; i < state.homes.size(); ++i)
    state.unit.parameters[i].unsafeGetTensorImpl()->set_storage_keep_dtype(state.homes[i]);
  state.here = true;
}

void GatheredUnits::release(State& state) {
  for (size_t i = 0; i < state.homes.size(); ++i)
    state.unit.parameters[i].unsafeGetTensorImpl()->set_storage_keep_dtype(state.nowhere[i]);
  state.here = false;
  if (!copy_.writes()) return;
  for (const KeptFlat& flat : state.unit.flats) copy_.release(flat.whole);
}

void GatheredUnits::before_change() {
  // No unit is in use: frees those that a backward left behind that threw, or that only reached an
  // activation.
  if (holders_ == 0)
    for (State& state : units_) state.users = 0;
  passes_.clear();
  finish_coming();
}

void GatheredUnits::changed() {
  went(2 * units_.size() + 1);
  coming_.clear();
  crowded_ = false;
  for (State& state : units_) {
    state.stays = false;
    release(state);
  }
  if (const std::optional<size_t> first = order_.after_step()) start(*first);
}

int64_t GatheredUnits::most_bytes() const {
  std::vector<int64_t> foreign;
  for (const State& state : units_) {
    int64_t bytes = 0;
    for (const auto& [whole, own] : state.unit.flats)
      bytes += static_cast<int64_t>(whole.nbytes()) - static_cast<int64_t>(own.nbytes());
    foreign.push_back(bytes);
  }
  return most_here(std::move(foreign), keep_);
}

}  // namespace lockstep::inline v0::internal
