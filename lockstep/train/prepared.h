// The results of Accelerator::prepare().
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/core/export.h"
#include "lockstep/data/batch_shards.h"
#include "lockstep/data/loader.h"
#include "lockstep/train/accelerator_state.h"

namespace lockstep::inline v0 {

// A model under the accelerator's strategy. Its forward computes under the accelerator's autocast.
// 16-bit outputs, also inside vectors and the like (flat/nested.h), are converted to float32, so
// that the loss is computed in float32.
template <typename M>
class PreparedModel {
 public:
  PreparedModel(M model, const std::shared_ptr<AcceleratorState>& state)
      : model_(std::move(model), state->strategy, state->comm), state_(state) {}

  template <typename... Args>
  auto operator()(Args&&... args) {
    return forward(std::forward<Args>(args)...);
  }
  // The same as operator().
  template <typename... Args>
  auto forward(Args&&... args) {
    return state_->forward([&] {
      auto output = [&] {
        std::optional<amp::Autocast> autocast;
        if (const auto settings = state_->autocast()) autocast.emplace(*settings);
        return model_.forward(std::forward<Args>(args)...);
      }();
      amp::widen(output);
      return output;
    });
  }

  // Before an evaluation, all ranks get rank 0's buffers, such as BatchNorm's running statistics,
  // which are the saved ones. module()->eval() is local and keeps the rank's own.
  // Collective: with `on` false.
  void train(bool on = true) {
    if (!on) state_->strategy->placement().share_buffers();
    model_->train(on);
  }
  void eval() { train(false); }
  M& module() { return model_.module(); }
  Strategy& strategy() { return model_.strategy(); }  // the accelerator's
  auto operator->() { return model_.operator->(); }
  // While the result exists, backwards only add up gradients on this rank.
  Accumulation no_sync() { return Accumulation(model_.shared_strategy()); }
  template <typename Loader>
  void follow(const Loader& loader) {
    model_.strategy().gradients().follow(loader.batches_taken());
  }

 private:
  StrategyModel<M> model_;
  std::shared_ptr<AcceleratorState> state_;
};

// A torch optimizer whose steps follow the accumulation.
class LOCKSTEP_API PreparedOptimizer {
 public:
  PreparedOptimizer(torch::optim::Optimizer& optimizer, std::shared_ptr<AcceleratorState> state)
      : optimizer_(optimizer), state_(std::move(state)) {}

  // Does nothing within an accumulation. To be called before each backward, or after each step().
  void zero_grad() {
    if (!state_->has_begun()) optimizer_.zero_grad();
  }
  // Does nothing within an accumulation. Clips the gradients to a global norm first, if one is
  // given. Returns whether a step was taken; in fp16 a step with infinite gradients is not.
  // Collective: in fp16, and if the strategy divides the state.
  bool step(std::optional<double> max_norm = {}) { return state_->step(optimizer_, max_norm); }
  torch::optim::Optimizer& optimizer() { return optimizer_; }  // the one that was given

 private:
  torch::optim::Optimizer& optimizer_;
  std::shared_ptr<AcceleratorState> state_;
};

// This rank's batches of a loader (BatchShards). Every loop over it is an epoch, counted from 0,
// also after a loop that was left early, by `break` or an exception. An accumulation that such a
// loop had begun is dropped, and its gradients with the next accumulate(). Loops over other loaders
// may be nested in it, such as an evaluation's.
template <data::Dataset D>
class PreparedLoader {
 public:
  PreparedLoader(data::Loader<D>& loader, const std::shared_ptr<AcceleratorState>& state)
      : parts_(std::make_unique<Parts>(loader, state->data_ranks, state->batch_device())),
        state_(state),
        place_(state->add_loader()) {}

  int64_t batches() const { return parts_->loader.batches(); }  // of this rank in an epoch
  // As Loader::batches_taken().
  std::function<int64_t()> batches_taken() const { return parts_->loader.batches_taken(); }
  // The next loop begins at batch `count` of its epoch.
  void skip(int64_t count) {
    end_left();
    place_->taken = count;
  }

  // An input iterator over this rank's batches.
  class Iterator {
   public:
    data::BatchOf<D>& operator*() const { return *it_; }
    data::BatchOf<D>* operator->() const { return &*it_; }
    Iterator& operator++() {
      {
        const TimelineSpan span(owner_->state_->timeline.get(), "data");
        ++it_;
      }
      moved();
      return *this;
    }
    friend bool operator==(const Iterator& iterator, std::default_sentinel_t) {
      return iterator.it_ == std::default_sentinel;
    }

   private:
    friend class PreparedLoader;
    Iterator(PreparedLoader* owner, typename data::Loader<D>::Iterator it)
        : owner_(owner), inside_(owner->enter()), it_(std::move(it)) {
      moved();
    }
    void moved() {
      LoaderPlace& place = *owner_->place_;
      if (it_ != std::default_sentinel) {
        ++place.taken;
        return;
      }
      place.taken = 0;
      ++place.epoch;
      inside_.reset();
    }
    PreparedLoader* owner_;
    std::shared_ptr<void> inside_;  // the loop runs while it exists
    typename data::Loader<D>::Iterator it_;
  };

  [[nodiscard]] Iterator begin() {
    end_left();
    parts_->shards.set_epoch(place_->epoch);
    check_place(*place_, batches());
    parts_->loader.skip(place_->taken);
    place_->batches = batches();
    place_->last_step_samples = parts_->shards.last_step_samples();
    const TimelineSpan span(state_->timeline.get(), "data");
    return Iterator(this, parts_->loader.begin());
  }
  std::default_sentinel_t end() const { return {}; }

 private:
  struct Parts {
    Parts(data::Loader<D>& whole, const Communicator& comm, at::Device device)
        : shards(whole.sampler(), whole.options().batch_size, comm.size(), comm.rank(),
                 whole.options().drop_last),
          loader(whole.dataset(), shards, on_device(whole.options(), device)) {}
    // Unless the options name a device.
    static data::LoaderOptions on_device(data::LoaderOptions options, at::Device device) {
      if (options.device.is_cpu()) options.device = device;
      return options;
    }
    data::BatchShards shards;
    data::Loader<D> loader;
  };

  std::shared_ptr<void> enter() {
    state_->enter(place_);
    return {nullptr, [state = state_, place = place_](void*) { state->leave(*place); }};
  }
  // Ends the epoch of a loop that was left.
  void end_left() {
    if (!std::exchange(place_->left, false)) return;
    place_->taken = 0;
    ++place_->epoch;
  }

  std::unique_ptr<Parts> parts_;  // not moved, since the loader refers to the shards
  std::shared_ptr<AcceleratorState> state_;
  std::shared_ptr<LoaderPlace> place_;
};

}  // namespace lockstep::inline v0
