// Evaluates a classifier over all ranks and counts every sample exactly once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// The same on every rank.
struct Evaluation {
  double loss = 0;      // mean negative log-probability of the right class
  double accuracy = 0;  // 0..1
  int64_t samples = 0;
  std::vector<std::vector<int64_t>> confusion;               // [true class][predicted class]
  std::vector<std::pair<std::string, double>> metrics = {};  // further metrics, by name
};

// Adds up this rank's samples, of which there may be none. reduce() combines those of all ranks.
class LOCKSTEP_API ClassifierCounts {
 public:
  explicit ClassifierCounts(int64_t classes);
  // log_probabilities: float [B, classes]; target: int64 [B]; both on one device.
  void add(const at::Tensor& log_probabilities, const at::Tensor& target);
  // Collective.
  Evaluation reduce(Communicator& comm) const;

 private:
  int64_t classes_;
  at::Tensor confusion_;  // int64 [classes * classes], CPU
  double loss_ = 0;       // sum
};

}  // namespace lockstep::inline v0
