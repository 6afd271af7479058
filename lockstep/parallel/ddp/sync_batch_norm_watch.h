// SyncBatchNormWatch: notices a conversion to SyncBatchNorm that was undone by accident.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep {

// Remembers which layers of a model were converted when it was made.
class SyncBatchNormWatch {
 public:
  SyncBatchNormWatch() = default;
  explicit SyncBatchNormWatch(const torch::nn::Module& model);
  // Throws InvalidArgument that names the layers which are not converted any more. Cheap.
  void check() const;

 private:
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> layers_;
};

}  // namespace lockstep
