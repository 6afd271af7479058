// For an optimizer that keeps the options and the state of a torch::optim kind, but steps
// differently.
#pragma once

#include <string>

#include "lockstep/core/export.h"

namespace lockstep::inline v0 {

// An optimizer that derives from torch::optim::SGD, Adam, AdamW, RMSprop or Adagrad is saved and
// loaded as that kind, and its files are interchangeable with that kind's. If it also implements
// this, its files have kind() in place of the base's name, and only files with that name are
// loaded.
class LOCKSTEP_API OptimizerKind {
 public:
  virtual ~OptimizerKind() = default;
  virtual std::string kind() const = 0;  // the name in checkpoints
};

}  // namespace lockstep::inline v0
