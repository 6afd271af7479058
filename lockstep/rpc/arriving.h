// What a future's value is of, where tensors of devices are still on their way. Not for programs.
#pragma once

#include <memory>

namespace lockstep::rpc::internal {

class Arriving {
 public:
  virtual ~Arriving() = default;
  // What this thread's current streams are given from now on comes after it. The host does not wait.
  virtual void come_here() const = 0;
  // Of what has been computed of it, by this thread's current streams so far.
  virtual std::shared_ptr<const Arriving> went_on() const = 0;
};

}  // namespace lockstep::rpc::internal
