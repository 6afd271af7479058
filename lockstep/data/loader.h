// Loader: a data set in batches, in a sampler's order, gathered ahead by worker threads.
//
//   Loader loader(mnist.train, sampler, {.batch_size = 64});
//   for (int epoch = 0; epoch < 10; ++epoch) {
//     sampler.set_epoch(epoch);
//     for (auto& [image, label] : loader) { ... }
//   }
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/device_feed.h"
#include "lockstep/data/prefetch.h"
#include "lockstep/data/sampler.h"

namespace lockstep::inline v0::data {

// The options of a Loader.
struct LoaderOptions {
  int64_t batch_size = 1;  // samples per batch; the last batch of an epoch may be smaller
  int num_workers = 1;     // threads that gather batches; 0: the loop gathers them itself
  int prefetch = 2;        // batches that each worker may be ahead of the loop
  bool drop_last = false;  // leave out the last batch if it is smaller
  // The device of the tensors in the loop's batches, as flat/nested.h finds them. To a device other
  // than the CPU the workers copy them ahead, through pinned memory and beside the device's
  // computation; the loop's current stream waits for them, the host does not.
  c10::Device device = c10::kCPU;
};

// Throws InvalidArgument for a batch size below 1, workers outside 0..256, a prefetch
// outside 1..1024, and a drop_last that leaves nothing of `samples`.
LOCKSTEP_API void check_loader_options(const LoaderOptions& options, int64_t samples);
// Batches in an epoch of `samples` samples.
LOCKSTEP_API int64_t batch_count(const LoaderOptions& options, int64_t samples);

namespace internal {
// For a type that is not a data set, nothing, so that Loader reports it in one line.
template <typename D>
struct LoadedBatch {
  using type = void;
};
template <Dataset D>
struct LoadedBatch<D> {
  using type = BatchOf<D>;
};
}  // namespace internal

// Each begin() is one epoch: it takes the sampler's current epoch and indices (the epoch is passed
// to an EpochDataset) and starts the workers; leaving the loop, by its end, `break` or an
// exception, stops and joins them. Batches arrive in the sampler's order and do not depend on the
// number of workers. The loop rethrows a worker's exception after the batches before it.
//
// Lifetime: the data set and the sampler must outlive the loader, and the loader its loops; a batch
// belongs to the loop body until the next one is requested (its tensors may be kept or moved away).
// Thread-safety: one thread at a time; one loop at a time. The workers call the data set's batch().
template <typename D>
class Loader {
  static_assert(
      Dataset<D>,
      "Loader takes a data set with size() and a const batch(std::span<const int64_t> indices) "
      "(data/dataset.h), then a sampler");

 public:
  using Batch = typename internal::LoadedBatch<D>::type;
  class Iterator;

  // Throws InvalidArgument (see check_loader_options).
  Loader(const D& dataset, Sampler& sampler, LoaderOptions options = {})
      : dataset_(dataset), sampler_(sampler), options_(options) {
    check_loader_options(options, sampler.size());
  }
  Loader(const D&&, const Sampler&, LoaderOptions = {}) = delete;  // would refer to a temporary
  Loader(const D&, Sampler&&, LoaderOptions = {}) = delete;
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Batches in an epoch, including skipped ones.
  int64_t batches() const { return batch_count(options_, sampler_.size()); }
  // The number of samples in an epoch's batch, counted from 0.
  int64_t samples(int64_t batch) const {
    return std::min(options_.batch_size, sampler_.size() - batch * options_.batch_size);
  }
  const LoaderOptions& options() const { return options_; }  // as given
  const D& dataset() const { return dataset_; }              // the one that it loads
  Sampler& sampler() const { return sampler_; }              // the one whose order it follows

  // A function that counts the batches that loops have taken so far, over all epochs; it may be
  // called after the loader is gone. For DistributedDataParallel::follow().
  std::function<int64_t()> batches_taken() const {
    return [taken = taken_] { return *taken; };
  }

  // The samples of these indices as loops get them, in the sampler's current epoch.
  Batch gather(std::span<const int64_t> indices) const {
    Batch batch = gather(indices, sampler_.epoch());
    if (!options_.device.is_cpu()) {
      const DeviceFeed feed(options_.device);
      feed.arrive(batch, feed.send(batch));
    }
    return batch;
  }

  // Makes the next loop, and only that one, begin at batch `batches` of its epoch; the batches
  // before it are not loaded. To resume: sampler.set_epoch(epoch); loader.skip(batches_done).
  // Throws: InvalidArgument outside 0..batches().
  void skip(int64_t batches);

  // Throws InvalidArgument while another loop is running.
  [[nodiscard]] Iterator begin();
  std::default_sentinel_t end() const { return {}; }

 private:
  struct Run;

  Batch gather(std::span<const int64_t> indices, int64_t epoch) const {
    if constexpr (EpochDataset<D>)
      return dataset_.batch(indices, epoch);
    else
      return dataset_.batch(indices);
  }

  const D& dataset_;
  Sampler& sampler_;
  LoaderOptions options_;
  std::shared_ptr<int64_t> taken_ = std::make_shared<int64_t>(0);
  int64_t skip_ = 0;
  bool running_ = false;
};

// Throws InvalidArgument; the parts of Loader that do not depend on the data set.
LOCKSTEP_API void check_skip(int64_t skip, int64_t batches);
LOCKSTEP_API void check_not_running(bool running);

// One loop: the epoch's indices, the slots that the workers fill, and the workers.
template <typename D>
struct Loader<D>::Run {
  explicit Run(Loader& owner)
      : loader(owner),
        epoch(owner.sampler_.epoch()),
        indices(owner.sampler_.indices()),
        shape{.first = std::exchange(owner.skip_, 0),
              .count = batch_count(owner.options_, static_cast<int64_t>(indices.size())),
              .workers = owner.options_.num_workers,
              .ahead = std::max<int64_t>(
                  1, int64_t{owner.options_.num_workers} * owner.options_.prefetch)},
        slots(PrefetchRing::slots(shape)),
        sent(slots.size()),
        feed(owner.options_.device.is_cpu() ? std::optional<DeviceFeed>()
                                            : DeviceFeed(owner.options_.device)),
        ring(shape, [this](int64_t batch, size_t slot) { load(batch, slot); }) {
    loader.running_ = true;
  }
  ~Run() { loader.running_ = false; }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  void load(int64_t batch, size_t slot) {
    const auto begin = static_cast<size_t>(batch * loader.options_.batch_size);
    const auto size =
        std::min(static_cast<size_t>(loader.options_.batch_size), indices.size() - begin);
    const auto part = std::span<const int64_t>(indices).subspan(begin, size);
    slots[slot].emplace(loader.gather(part, epoch));
    if (feed) sent[slot] = feed->send(*slots[slot]);
  }
  Batch& taken(size_t slot) {
    if (feed) feed->arrive(*slots[slot], *sent[slot]);
    return *slots[slot];
  }

  Loader& loader;
  const int64_t epoch;
  const std::vector<int64_t> indices;
  const PrefetchRing::Shape shape;
  std::vector<std::optional<Batch>> slots;
  std::vector<std::optional<device::Event>> sent;  // by slot
  const std::optional<DeviceFeed> feed;            // nullopt: they stay on their device
  PrefetchRing ring;                               // last: its threads use the members above
};

// A move-only input iterator. Destroying it ends the loop.
template <typename D>
class Loader<D>::Iterator {
 public:
  using iterator_concept = std::input_iterator_tag;
  using difference_type = std::ptrdiff_t;
  using value_type = Batch;

  Batch& operator*() const { return *current_; }
  Batch* operator->() const { return current_; }
  // Throws the data set's error for the next batch.
  Iterator& operator++() {
    advance();
    return *this;
  }
  void operator++(int) { advance(); }
  friend bool operator==(const Iterator& it, std::default_sentinel_t) { return it.run_ == nullptr; }

 private:
  friend class Loader;
  explicit Iterator(std::unique_ptr<Run> run) : run_(std::move(run)) { advance(); }

  void advance() {
    current_ = nullptr;
    if (const auto slot = run_->ring.next()) {
      current_ = &run_->taken(*slot);
      ++*run_->loader.taken_;
    } else {
      run_.reset();  // the end: join the workers now
    }
  }

  std::unique_ptr<Run> run_;
  Batch* current_ = nullptr;
};

template <typename D>
void Loader<D>::skip(int64_t batches) {
  check_skip(batches, this->batches());
  skip_ = batches;
}

template <typename D>
typename Loader<D>::Iterator Loader<D>::begin() {
  check_not_running(running_);
  return Iterator(std::make_unique<Run>(*this));
}

}  // namespace lockstep::inline v0::data
