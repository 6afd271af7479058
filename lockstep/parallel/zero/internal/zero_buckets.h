// Where parameters, gradients and state lie: flat buckets, each divided among the ranks. Not used
// directly: see zero_optimizer.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/work.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/shard_plan.h"

namespace lockstep::internal {

// A parameter, and how far its gradient is in this step.
struct ZeroParameter {
  std::string name;
  at::Tensor tensor;  // the module's, whose memory is in the bucket
  at::Tensor view;    // its gradient's place
  size_t bucket = 0;
  bool arrived = false;  // in the backward that communicates
  bool used = false;     // in any backward of this step
  int64_t steps = 0;     // that its state has seen

  // Makes the view the gradient, with the gradient's values if there is one elsewhere.
  void place();
};

// A parameter's place in a bucket.
struct ZeroSlot {
  size_t parameter = 0;
  int64_t offset = 0;
  int64_t numel = 0;
  flat::Range own;  // its elements in this rank's part
};

struct ZeroBucket {
  size_t group = 0;
  int64_t part = 0;    // elements that a rank keeps state of
  int64_t origin = 0;  // where this rank's part begins
  std::vector<ZeroSlot> slots;
  at::Tensor parameters;
  at::Tensor gradients;
  at::Tensor own_parameters;       // this rank's part of `parameters`
  at::Tensor own_gradient;         // of `gradients`: the average, once reduced
  at::Tensor arriving;             // the average on its way
  std::vector<at::Tensor> states;  // of this rank's part; made when first asked for
  size_t missing = 0;              // gradients that have not arrived
  Work work;                       // the reduction, then the gathering

  const at::Tensor& state(size_t which);
};

// Throws InvalidArgument as zero_optimizer.h says.
void check_parameters(const std::vector<ZeroParameter>& parameters);

class ZeroBuckets {
 public:
  // Moves the parameters; groups[i] is parameter i's. `parts`: ranks that the state is divided
  // among; 1: this rank keeps all. They have been checked. Collective.
  ZeroBuckets(Communicator& comm, std::vector<ZeroParameter> parameters,
              std::span<const size_t> groups, int parts, flat::BucketSizes sizes);

  std::vector<ZeroParameter>& parameters() { return parameters_; }
  std::vector<ZeroBucket>& buckets() { return buckets_; }
  const std::vector<ZeroBucket>& buckets() const { return buckets_; }
  int parts() const { return parts_; }

  // Throws InvalidArgument if a parameter no longer lies where it was put.
  void check_places() const;
  // Everything as before the first backward of a step: no gradients. No work may be under way.
  void reset();
  // The same, but for the gradients and what is known of their use.
  void forget_arrivals();

 private:
  void move(ZeroBucket& bucket, const flat::Bucket& plan, int part);

  std::vector<ZeroParameter> parameters_;
  std::vector<ZeroBucket> buckets_;
  int parts_;
};

}  // namespace lockstep::internal
