// SyncBatchNormWatch: detects a conversion to SyncBatchNorm that was undone by accident.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/core/export.h"

namespace torch::nn {
class Module;
}

namespace lockstep::inline v0 {

namespace internal {
struct SyncLayers;
}

// Remembers which layers of a model were converted when it was made, and which are SyncBatchNorm.
class LOCKSTEP_API SyncBatchNormWatch {
 public:
  SyncBatchNormWatch() = default;
  explicit SyncBatchNormWatch(const torch::nn::Module& model);
  // Cheap.
  // Throws: InvalidArgument that names the layers that are not converted any more.
  void check() const;

  // For join.h. `call` precedes each of the layers' exchanges, with the length of the row and the
  // number of the layers' group (those converted together); null: no call. stand_in() makes such an
  // exchange for a rank without rows.
  void before_exchange(const std::function<void(int64_t numbers, int64_t group)>& call);
  void stand_in(int64_t numbers, int64_t group);

 private:
  std::vector<std::shared_ptr<internal::SyncLayers>> groups_;  // each once, in the model's order
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> layers_;
};

// The watch of a module of libtorch; other models have no such layers.
template <typename Module>
SyncBatchNormWatch watch_sync_batch_norms(const Module& module) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Module>)
    return SyncBatchNormWatch(module);
  else
    return {};
}

}  // namespace lockstep::inline v0
